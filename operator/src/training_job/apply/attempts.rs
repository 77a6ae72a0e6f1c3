//! The part of `apply` that writes attempts: the ConfigMap with the assignment, which decides who
//! runs where, and the Secret with the key.

use std::sync::Arc;
use std::time::Instant;

use contract::assignment::{
    ALGORITHM, AssignedNode, Assignment, CheckpointFolder, JobRef, VERSION,
};
use crds::fabric::FabricSpec;
use crds::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DeleteParams;
use link::handshake::Key;
use scheduler::{JobKey, NewAttempt};
use serde_json::{Value, json};

use super::{Applier, Error, Progress, gone_is_fine, same_uid};
use crate::cluster::{key_of, version_of};
use crate::node_validation;
use crate::proof::Signer;
use crate::training_job::job_view::JobView;
use crate::training_job::observe::class_of;
use crate::training_job::translate::AttemptProof;
use crate::training_job::{pod, translate, write};
use crate::views::AttemptView;
use crate::watch;
use crate::workload::Workload;

/// Port that rank 0 offers to the training framework. The pod network gives each pod its own.
pub const MASTER_PORT: u16 = 29_500;

impl Applier {
    pub(super) async fn create_attempt(
        &self,
        progress: &Progress<'_>,
        new: &NewAttempt,
    ) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Err(Error::Stale(format!("job {} is gone", progress.key)));
        };
        let key = progress.key;
        let name = names::attempt_name(&key.name, new.number);
        let (assignment, task) = match job {
            Workload::Training(job) => (assignment_of(job, progress.fabric, new)?, None),
            Workload::Validation(validation) => {
                let assignment = node_validation::assignment(key, new);
                let mirrors = self.cluster.mirrors();
                let task = node_validation::task(key, validation, progress.fabric, &mirrors);
                (assignment, Some(task.to_json()))
            }
        };
        let packed = ByteString(assignment.to_gz()?);
        let proof = self.masters.prove(&key.uid, new.number, &packed.0);
        let mut metadata = metadata(&job.owner_reference(), key, &name, new.number);
        metadata["annotations"] = json!({names::ANNOTATION_PROOF: proof});
        let mut config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "immutable": true,
            "binaryData": {translate::ASSIGNMENT_FILE: packed},
        });
        if let Some(task) = task {
            config_map["data"] = json!({contract::validation::FILE: task});
        }
        let created: AttemptView = match progress.writer.create(&key.namespace, &config_map).await {
            Ok(created) => created,
            Err(write::Error::Exists { .. }) => return Err(self.who_has(key, new.number).await),
            Err(error) => return Err(error.into()),
        };
        if let Some(attempt) = watch::attempt(&created, &self.masters) {
            let (key, version) = (key_of(&created), version_of(&created));
            self.cluster
                .mirrors()
                .attempts
                .created(key, version, attempt, Instant::now());
        }
        Ok(())
    }

    /// Why the ConfigMap of an attempt exists already.
    async fn who_has(&self, key: &JobKey, attempt: u32) -> Error {
        let name = names::attempt_name(&key.name, attempt);
        let found: AttemptView = match self.writer.get(&key.namespace, &name).await {
            Ok(found) => found,
            Err(error) => return error.into(),
        };
        let mirrored = translate::attempt(&found, &self.masters);
        match mirrored.filter(|mirrored| mirrored.attempt.job == *key) {
            Some(mirrored) if mirrored.standing == AttemptProof::Unproved => Error::Stale(format!(
                "the ConfigMap of attempt {attempt} of job {key} has no valid proof, the next number is taken"
            )),
            Some(_) => Error::Stale(format!(
                "attempt {attempt} of job {key} was decided already"
            )),
            // What only points to the job is nobody's of ours.
            None => {
                let owner = translate::owner(&found.metadata);
                Error::taken("ConfigMap", &name, key, owner.filter(|owner| owner != key))
            }
        }
    }

    pub(super) async fn create_key(
        &self,
        progress: &Progress<'_>,
        attempt: u32,
    ) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Err(Error::Stale(format!("job {} is gone", progress.key)));
        };
        let key = progress.key;
        let signer = self.signer_of(key, attempt);
        let bytes = self.masters.attempt_key(signer, &key.uid, attempt);
        let name = self.key_name(key, attempt, signer);
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(&job.owner_reference(), key, &name, attempt),
            "immutable": true,
            "data": {"key": ByteString(bytes.as_bytes().to_vec())},
        });
        match progress
            .writer
            .create::<Secret>(&key.namespace, &secret)
            .await
        {
            Ok(_) | Err(write::Error::Exists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Name of the Secret with an attempt's key. It ends in a digest of the key, so that nobody
    /// else has a Secret of this name: the operator may not read Secrets to find out.
    pub(super) fn key_name(&self, key: &JobKey, attempt: u32, signer: Signer) -> String {
        let secret = self.masters.attempt_key(signer, &key.uid, attempt);
        let digest = Key::derive(secret.as_bytes(), "name", attempt);
        let mut name = names::attempt_name(&key.name, attempt);
        name.push('-');
        for byte in &digest.as_bytes()[..5] {
            name.push_str(&format!("{byte:02x}"));
        }
        name
    }

    /// The master key from which the attempt's key is made: the one that proves its ConfigMap.
    pub(super) fn signer_of(&self, key: &JobKey, attempt: u32) -> Signer {
        let mirrors = self.cluster.mirrors();
        let name = names::attempt_name(&key.name, attempt);
        let mirrored = mirrors.attempts.get(&key.namespace, &name);
        let mirrored = mirrored.filter(|mirrored| mirrored.attempt.job == *key);
        mirrored.map_or(Signer::Current, translate::MirroredAttempt::signer)
    }

    /// The Secret first: as long as the ConfigMap is seen, this is planned again. The Secret's name
    /// follows from the job's uid, so no other job has one of that name; the ConfigMap's does not,
    /// so its own uid is said.
    pub(super) async fn delete_attempt(&self, key: &JobKey, attempt: u32) -> Result<(), Error> {
        let name = names::attempt_name(&key.name, attempt);
        let uid = {
            let mirrors = self.cluster.mirrors();
            let mirrored = mirrors.attempts.get(&key.namespace, &name);
            mirrored
                .filter(|mirrored| mirrored.attempt.job == *key)
                .map(|mirrored| Arc::clone(&mirrored.uid))
        };
        let Some(uid) = uid else {
            return Ok(()); // Gone, or another job's by now.
        };
        // Which key it was made from is not known of one that is not proved.
        for signer in self.masters.signers() {
            let secret = self.key_name(key, attempt, signer);
            let params = DeleteParams::default();
            let deleted = self
                .writer
                .delete::<Secret>(&key.namespace, &secret, &params);
            gone_is_fine(deleted.await.map(drop))?;
        }
        let params = DeleteParams::default().preconditions(same_uid(&uid));
        let config_map = self
            .writer
            .delete::<ConfigMap>(&key.namespace, &name, &params)
            .await
            .map(drop);
        gone_is_fine(config_map)?;
        self.cluster
            .mirrors()
            .attempts
            .missing(&key.namespace, &name);
        Ok(())
    }
}

pub(super) fn metadata(owner: &Value, key: &JobKey, name: &str, attempt: u32) -> Value {
    json!({
        "name": name,
        "namespace": &*key.namespace,
        "labels": {
            names::LABEL_JOB: &*key.name,
            names::LABEL_JOB_UID: &*key.uid,
            names::LABEL_ATTEMPT: attempt.to_string(),
        },
        "ownerReferences": [owner],
    })
}

/// What the attempt's ConfigMap says.
fn assignment_of(
    job: &JobView,
    fabric: &FabricSpec,
    new: &NewAttempt,
) -> Result<Assignment, Error> {
    let class = class_of(job, fabric)
        .ok_or_else(|| Error::Stale("the node class of the job is gone".to_owned()))?;
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let nodes = new.nodes.iter().map(|place| AssignedNode {
        name: place.node.to_string(),
        zone: place.zone.to_string(),
        leaf: place.leaf.to_string(),
    });
    Ok(Assignment {
        version: VERSION,
        job: JobRef {
            namespace: name(&job.metadata.namespace),
            name: name(&job.metadata.name),
            uid: name(&job.metadata.uid),
        },
        attempt: new.number,
        algorithm: ALGORITHM,
        procs_per_node: pod::procs_per_node(job, class),
        nodes: nodes.collect(),
        crossing: new.crossing,
        master_port: MASTER_PORT,
        on_peer_loss: translate::on_peer_loss(job.spec.failure_policy.on_peer_loss),
        peer_loss_seconds: job.spec.failure_policy.peer_loss_seconds,
        min_nodes: job.spec.failure_policy.min_nodes,
        grace_seconds: Some(pod::grace_seconds(job)),
        traffic_class: fabric.traffic_classes.hfreduce,
        relaxed_ordering: fabric.rdma.relaxed_ordering,
        checkpoint: job
            .spec
            .checkpoint
            .as_ref()
            .map(|checkpoint| CheckpointFolder {
                claim_name: checkpoint.claim_name.clone(),
                path: pod::checkpoint_folder(job).unwrap_or_default().to_owned(),
            }),
        resume: new.resume.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fabric_says_of_the_network_is_in_the_assignment() {
        let job = json!({
            "apiVersion": "fireflyer.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "digits", "namespace": "team", "uid": "u-1"},
            "spec": {"nodes": 1, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "i", "command": ["train"]}]}}},
        });
        let job: JobView = serde_json::from_value(job).unwrap();
        let new = NewAttempt {
            number: 1,
            nodes: vec![scheduler::PlacedNode {
                node: "n0".into(),
                zone: "a".into(),
                leaf: "".into(),
            }],
            crossing: false,
            resume: None,
        };
        let mut fabric = crate::bootstrap::default_fabric(None).unwrap();
        let said = |fabric: &FabricSpec| {
            let packed = assignment_of(&job, fabric, &new).unwrap().to_gz().unwrap();
            let read =
                Assignment::from_gz(&packed, contract::assignment::ASSIGNMENT_LIMIT_BYTES).unwrap();
            (read.traffic_class, read.relaxed_ordering)
        };
        assert_eq!(said(&fabric), (1, true));
        fabric.traffic_classes.hfreduce = 5;
        fabric.rdma.relaxed_ordering = false;
        assert_eq!(said(&fabric), (5, false));
    }
}
