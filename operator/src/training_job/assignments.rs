//! Who is known to run where: what the ConfigMaps of attempts say as far as the operator wrote
//! them, and what the pods of a gang say where no ConfigMap does.

use std::collections::BTreeSet;

use crds::fabric::FabricSpec;
use scheduler::{Doubt, JobKey, Timestamp};
use topology::NodeName;

use crate::cluster::Mirrors;
use crate::training_job::translate::{AttemptProof, MirroredAttempt};
use crate::workload::Workload;

/// What the ConfigMaps of attempts say, as far as it is known to be the operator's word. Where it
/// is not, the pods of a gang that is whole say where it is.
pub fn known(
    mirrors: &Mirrors,
    fabric: &FabricSpec,
    mirrored: &[&MirroredAttempt],
) -> (Vec<scheduler::Attempt>, Vec<scheduler::Doubtful>) {
    let (mut attempts, mut doubtful) = (Vec::new(), Vec::new());
    for mirrored in mirrored {
        let scheduler::Attempt { job, number, .. } = &mirrored.attempt;
        let mut doubt = |doubt| {
            doubtful.push(scheduler::Doubtful {
                job: job.clone(),
                number: *number,
                doubt,
            });
        };
        match &mirrored.standing {
            AttemptProof::Proved(_) => attempts.push(mirrored.attempt.clone()),
            AttemptProof::Unreadable(..) => {
                doubt(Doubt::Unreadable);
                let known = !mirrored.attempt.nodes.is_empty();
                attempts.extend(known.then(|| mirrored.attempt.clone()));
            }
            AttemptProof::Unproved => {
                doubt(Doubt::Unproved);
                let gang = || gang_of_pods(mirrors, job, *number);
                attempts.extend(gang().map(|nodes| scheduler::Attempt {
                    crossing: crosses(mirrors, fabric, &nodes),
                    nodes,
                    ..mirrored.attempt.clone()
                }));
            }
        }
    }
    for (job, number) in mirrors
        .all_jobs()
        .filter_map(|mirrored| held(mirrored.whole()?))
    {
        let name = crds::names::attempt_name(&job.name, number);
        let mirrored = mirrors.attempts.get(&job.namespace, &name);
        if mirrored.is_some_and(|mirrored| mirrored.attempt.job == job) {
            continue;
        }
        // Whoever took its ConfigMap away did not take its nodes away.
        let Some(nodes) = gang_of_pods(mirrors, &job, number) else {
            continue;
        };
        doubtful.push(scheduler::Doubtful {
            job: job.clone(),
            number,
            doubt: Doubt::Unproved,
        });
        attempts.push(scheduler::Attempt {
            crossing: crosses(mirrors, fabric, &nodes),
            created: Timestamp::default(),
            seen: Timestamp::default(),
            nodes,
            job,
            number,
        });
    }
    (attempts, doubtful)
}

/// The attempt of a job that holds nodes.
fn held(job: &Workload) -> Option<(JobKey, u32)> {
    let status = job.status()?;
    let held = status.phase.holds_nodes().then_some(status.attempt)?;
    Some((job.key()?, held))
}

/// The nodes of a job's current attempt, by rank, as its pods say; none unless all of them are
/// there. Nobody but the operator creates pods that ask for their node, so they need no other
/// proof. The nodes of ranks that were lost, or ended well and were collected, have no name.
pub fn gang_of_pods(mirrors: &Mirrors, key: &JobKey, attempt: u32) -> Option<Vec<NodeName>> {
    let job = mirrors.workload(key)?;
    let status = job.status()?;
    if status.attempt != attempt {
        return None;
    }
    let members = status
        .membership
        .filter(|members| members.attempt == attempt);
    let lost = members.map(|members| members.lost).unwrap_or_default();
    let completed = status
        .completed
        .filter(|completed| completed.attempt == attempt);
    let completed = completed
        .map(|completed| completed.ranks)
        .unwrap_or_default();
    let node = |rank: u32| {
        let name = crds::names::pod_name(&key.name, attempt, rank);
        let pod = mirrors.pods.get(&key.namespace, &name);
        let pod = pod.filter(|mirrored| mirrored.pod.job == *key);
        let is_over = lost.contains(&rank) || completed.contains(&rank);
        let nobody = || is_over.then(|| NodeName::from(""));
        pod.map(|mirrored| mirrored.pod.node.clone())
            .or_else(nobody)
    };
    (0..job.nodes()).map(node).collect()
}

fn crosses(mirrors: &Mirrors, fabric: &FabricSpec, nodes: &[NodeName]) -> bool {
    let zone = |name: &NodeName| {
        mirrors
            .nodes
            .get("", name.as_str())?
            .label(&fabric.zone_label)
    };
    let zones: BTreeSet<_> = nodes.iter().filter_map(zone).collect();
    zones.len() > 1
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use scheduler::JobKind;
    use serde_json::json;

    use super::*;
    use crate::bootstrap;
    use crate::mirror::{Mirror, Mirrored};
    use crate::proof::Signer;
    use crate::training_job::job_view::JobView;
    use crate::training_job::mirrored_job::MirroredJob;
    use crate::training_job::translate;

    fn mirror<T: Mirrored>(objects: Vec<(String, T)>) -> Mirror<T> {
        let mut mirror = Mirror::default();
        mirror.listing(0, Instant::now());
        for (name, value) in objects {
            mirror.listed(("team".to_owned(), name), 1, value);
        }
        mirror.listing_done();
        mirror
    }

    /// A job of two nodes that trains in attempt 1, with pods on these nodes.
    fn mirrors(nodes: &[&str]) -> Mirrors {
        let job = json!({
            "apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "digits", "namespace": "team", "uid": "u-1"},
            "spec": {"nodes": 2, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "i", "command": ["train"]}]}}},
            "status": {"phase": "Running", "attempt": 1},
        });
        let job: JobView = serde_json::from_value(job).unwrap();
        let pod = |(rank, node): (usize, &&str)| {
            let name = format!("digits-1-{rank}");
            let owner = json!({"apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
                               "name": "digits", "uid": "u-1"});
            let limits = json!({"fireflyer.dev/node": "1"});
            let view = json!({
                "metadata": {"name": name, "namespace": "team", "ownerReferences": [owner]},
                "spec": {"nodeName": node, "containers": [{"name": "trainer", "resources": {"limits": limits}}]},
            });
            let view = serde_json::from_value(view).unwrap();
            (name, translate::pod(view).unwrap())
        };
        Mirrors {
            jobs: mirror(vec![("digits".to_owned(), MirroredJob::new(job.into()))]),
            pods: mirror(nodes.iter().enumerate().map(pod).collect()),
            ..Mirrors::default()
        }
    }

    fn key() -> JobKey {
        JobKey {
            kind: JobKind::TrainingJob,
            namespace: "team".into(),
            name: "digits".into(),
            uid: "u-1".into(),
        }
    }

    fn mirrored(standing: AttemptProof, nodes: &[&str]) -> MirroredAttempt {
        MirroredAttempt {
            attempt: scheduler::Attempt {
                job: key(),
                number: 1,
                nodes: nodes.iter().map(|&node| node.into()).collect(),
                crossing: false,
                created: Timestamp::default(),
                seen: Timestamp::default(),
            },
            resume: None,
            terms: None,
            standing,
            uid: "map-1".into(),
        }
    }

    /// The nodes of the attempt as the planner sees them, and its doubt; with pods on these nodes.
    fn seen(
        pods: &[&str],
        attempt: Option<MirroredAttempt>,
    ) -> (Option<Vec<String>>, Option<Doubt>) {
        let fabric = bootstrap::default_fabric(None).unwrap();
        let attempts: Vec<_> = attempt.iter().collect();
        let found = attempt
            .clone()
            .map(|mirrored| ("digits-1".to_owned(), mirrored));
        let mirrors = Mirrors {
            attempts: mirror(found.into_iter().collect()),
            ..mirrors(pods)
        };
        let (known, doubtful) = known(&mirrors, &fabric, &attempts);
        assert!(known.len() < 2 && doubtful.len() < 2);
        let nodes = known.first().map(|attempt| {
            let nodes = attempt.nodes.iter();
            nodes.map(ToString::to_string).collect()
        });
        (nodes, doubtful.first().map(|one| one.doubt))
    }

    #[test]
    fn what_nobody_signed_says_nothing_and_the_pods_of_a_whole_gang_say_where_it_is() {
        let whole = ["n1", "n2"];
        let pods = Some(vec!["n1".to_owned(), "n2".to_owned()]);
        let forged = mirrored(AttemptProof::Unproved, &[]);
        assert_eq!(
            seen(&whole, Some(forged.clone())),
            (pods.clone(), Some(Doubt::Unproved))
        );
        assert_eq!(seen(&whole, None), (pods, Some(Doubt::Unproved)));
        // A gang that is not whole runs nowhere.
        let half = ["n1"];
        assert_eq!(seen(&half, Some(forged)), (None, Some(Doubt::Unproved)));
        assert_eq!(seen(&half, None), (None, None));
    }

    #[test]
    fn what_was_signed_counts_as_it_is_and_what_cannot_be_read_keeps_its_nodes() {
        let whole = ["n1", "n2"];
        let said = Some(vec!["n8".to_owned(), "n9".to_owned()]);
        let proved = mirrored(AttemptProof::Proved(Signer::Previous), &["n8", "n9"]);
        assert_eq!(seen(&whole, Some(proved)), (said.clone(), None));
        let newer = || AttemptProof::Unreadable(Signer::Current, "version 9".into());
        let read = seen(&whole, Some(mirrored(newer(), &["n8", "n9"])));
        assert_eq!(read, (said, Some(Doubt::Unreadable)));
        let unknown = seen(&whole, Some(mirrored(newer(), &[])));
        assert_eq!(unknown, (None, Some(Doubt::Unreadable)));
    }

    #[test]
    fn only_the_current_attempt_is_read_from_pods() {
        let whole = mirrors(&["n1", "n2"]);
        assert!(gang_of_pods(&whole, &key(), 1).is_some());
        assert_eq!(gang_of_pods(&whole, &key(), 2), None);
        let other = JobKey {
            uid: "u-2".into(),
            ..key()
        };
        assert_eq!(gang_of_pods(&whole, &other, 1), None);
    }

    /// The ConfigMap is not proved, after an upgrade or the loss of the master key, or somebody
    /// took it away.
    #[test]
    fn a_gang_of_which_a_rank_ended_well_and_was_collected_is_known_by_its_pods() {
        let job = json!({
            "apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "digits", "namespace": "team", "uid": "u-1"},
            "spec": {"nodes": 2, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "i", "command": ["train"]}]}}},
            "status": {"phase": "Running", "attempt": 1, "completedRanks": {"attempt": 1, "ranks": "1"}},
        });
        let job: JobView = serde_json::from_value(job).unwrap();
        let fabric = bootstrap::default_fabric(None).unwrap();
        let mirrors = Mirrors {
            jobs: mirror(vec![("digits".to_owned(), MirroredJob::new(job.into()))]),
            ..mirrors(&["n1"])
        };
        assert!(
            mirrors
                .workload(&key())
                .unwrap()
                .status()
                .unwrap()
                .completed
                .is_some()
        );
        let (attempts, doubtful) = known(&mirrors, &fabric, &[]);
        assert_eq!(
            (attempts.len(), doubtful.len()),
            (1, 1),
            "who ended well is missed by nobody"
        );
    }
}
