//! Keeps NodeValidationPolicies while this replica leads: creates the runs that are due, lets those
//! that are overdue interrupt jobs, deletes those that others took the place of, and shows what
//! came of it. When a node is due is decided by `health`; when a run gets its node, by
//! `scheduler`.

mod observed;
mod quarantine;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crds::node_validation::WhenBusy;
use crds::node_validation_policy::NodeValidationPolicy;
use crds::{NodeValidation, names};
use daemon::CancellationToken;
use health::{DuePlan, NewRun, QuarantineSummary, Waits, Withdrawal};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::JobKind;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::clock;
use crate::cluster::SharedCluster;
use crate::event::{CLUSTER_NAMESPACE, Event};
use crate::fabric::{FabricObservation, NodesSeen};
use crate::metrics::Metrics;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::TaintRules;
use crate::training_job::write::{self, Writer};
use crate::workload::{Workload, owner_reference};
use observed::{Observed, OpenRun};

use super::{finished, level_to_api};

/// The time between looks at what is due.
const PERIOD: Duration = Duration::from_secs(10);
/// Runs that are created, and deleted, in one look: the rest follows.
const WRITES: usize = 32;

/// Keeps the policies.
#[derive(Debug)]
pub struct PolicyKeeper {
    /// What is known.
    pub cluster: Arc<SharedCluster>,
    /// For its writes.
    pub writer: Writer,
    /// Meaning of taints.
    pub taints: TaintRules,
    /// The pod that it runs in, for Events.
    pub instance: String,
    /// Where it counts.
    pub metrics: Metrics,
    /// Which runs do not start, as this leader has seen it.
    pub waits: Mutex<Waits>,
}

/// What one look found.
struct Look {
    plan: DuePlan,
    policies: BTreeMap<String, NodeValidationPolicy>,
    /// The uid of each run that is to be deleted.
    uids: BTreeMap<String, String>,
    open: BTreeMap<String, OpenRun>,
}

impl PolicyKeeper {
    /// Keeps the policies for ever. None is seen while another replica leads.
    pub async fn keep(
        self,
        seen: watch::Receiver<Option<FabricObservation>>,
        shutdown: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            let seen = seen.borrow().clone();
            match seen {
                Some(seen) => self.step(seen.nodes()).await,
                None => {
                    self.metrics.quarantined.reset();
                    *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = Waits::default();
                }
            }
        }
    }

    /// Does what is to be done now.
    pub async fn step(&self, seen: &NodesSeen) {
        self.step_at(seen, seconds(clock::now().as_millis())).await;
    }

    /// Does what is to be done at this time, in seconds since the Unix epoch.
    pub async fn step_at(&self, seen: &NodesSeen, now: i64) {
        // What is superseded depends on who is in quarantine by now.
        let quarantines = self.quarantine(seen).await;
        if let Some(found) = self.look(seen, now) {
            self.carry_out(found, &quarantines).await;
        }
    }

    /// Returns what is due; None before everything was listed once, or without a policy.
    fn look(&self, seen: &NodesSeen, now: i64) -> Option<Look> {
        let (observed, policies) = {
            let mirrors = self.cluster.mirrors();
            let policies = mirrors.policies.values().map(|policy| {
                let name = policy.metadata.name.clone().unwrap_or_default();
                (name, policy.clone())
            });
            let policies: BTreeMap<_, _> = policies.collect();
            (Observed::new(&mirrors, seen)?, policies)
        };
        if observed.policies.is_empty() {
            return None;
        }
        let plan = {
            let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
            let runs = observed.views();
            health::plan(&observed.policies, &observed.nodes, &runs, &mut waits, now)
        };
        let doomed: BTreeSet<&str> = plan.delete.iter().map(String::as_str).collect();
        let doomed = |run: &&finished::Run| doomed.contains(run.name.as_str());
        let runs = observed.runs.iter().filter(doomed);
        let uids = runs
            .map(|run| (run.name.clone(), run.uid.clone()))
            .collect();
        Some(Look {
            plan,
            policies,
            uids,
            open: observed.open,
        })
    }

    /// Deletes a run that did not start, as it was seen: one that has started since stays.
    async fn withdraw(&self, one: &Withdrawal, run: &OpenRun, policy: &NodeValidationPolicy) {
        let Withdrawal {
            run: name,
            policy: by,
            node,
            waited,
        } = one;
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(run.uid.clone()),
            resource_version: Some(run.version.clone()),
        });
        let deleted = self.writer.delete::<NodeValidation>("", name, &params);
        match deleted.await {
            Ok(_) => {}
            Err(write::Error::Conflict { .. } | write::Error::Missing { .. }) => return,
            Err(error) => {
                warn!(run = name, %error, "failed to withdraw a validation, trying again");
                return;
            }
        }
        info!(
            policy = by,
            node,
            run = name,
            why = run.why,
            "withdrew a validation that did not start"
        );
        let why = match run.why.as_str() {
            "" => "no reason is known",
            why => why,
        };
        let note = format!(
            "NodeValidation {name} of node {node} did not start within {waited} s and is deleted; \
             the node is tried again later: {why}"
        );
        let event = Event {
            name: by,
            regarding: json!({"apiVersion": names::API_VERSION, "kind": "NodeValidationPolicy",
                "name": by, "uid": policy.uid()}),
            namespace: CLUSTER_NAMESPACE,
            instance: &self.instance,
            reason: "Withdrawn",
            note: &note,
            warning: true,
        };
        event.publish(&self.writer).await;
    }

    async fn carry_out(&self, look: Look, quarantines: &BTreeMap<String, QuarantineSummary>) {
        let Look {
            plan,
            policies,
            uids,
            open,
        } = look;
        let writer = &self.writer;
        for run in first(&plan.create) {
            let Some(policy) = policies.get(&run.policy) else {
                continue;
            };
            match writer
                .create::<NodeValidation>("", &object(run, policy))
                .await
            {
                Ok(created) => {
                    info!(policy = run.policy, node = run.node, run = run.name, reason = ?run.reason, "created a validation");
                    let (key, version) = (
                        crate::cluster::key_of(&created),
                        crate::cluster::version_of(&created),
                    );
                    let mirrored = MirroredJob::new(Workload::from(created).slim());
                    let now = crate::cluster::now();
                    let mut mirrors = self.cluster.mirrors();
                    mirrors.validations.created(key, version, mirrored, now);
                    drop(mirrors);
                    self.cluster.notify();
                }
                // An earlier leader has created it; the watch will show it.
                Err(write::Error::Exists { .. }) => {}
                Err(error) => {
                    warn!(policy = run.policy, node = run.node, %error, "failed to create a validation, trying again");
                }
            }
        }
        for name in plan.interrupt.iter().take(WRITES) {
            let patch = Patch::Merge(json!({"spec": {"whenBusy": WhenBusy::Interrupt}}));
            let written = writer.patch::<NodeValidation>("", name, None, &patch);
            match written.await {
                Ok(_) => info!(run = name, "asked the job on an overdue node to leave it"),
                Err(error) => {
                    warn!(run = name, %error, "failed to have a validation interrupt a job, trying again");
                }
            }
        }
        for name in plan.delete.iter().take(WRITES) {
            let params = DeleteParams::background().preconditions(Preconditions {
                uid: uids.get(name).cloned(),
                resource_version: None,
            });
            if let Err(error) = writer.delete::<NodeValidation>("", name, &params).await {
                warn!(run = name, %error, "failed to delete a validation, trying again");
            }
        }
        for one in plan.withdraw.iter().take(WRITES) {
            if let (Some(run), Some(policy)) = (open.get(&one.run), policies.get(&one.policy)) {
                self.withdraw(one, run, policy).await;
            }
        }
        for (name, policy) in &policies {
            let summary = plan.policies.get(name);
            let quarantine = quarantines.get(name).cloned().unwrap_or_default();
            let news = summary.and_then(|summary| status::news(policy, summary, &quarantine));
            let Some(status) = news else {
                continue;
            };
            let patch = Patch::Merge(json!({"status": status}));
            let written = writer.patch::<NodeValidationPolicy>("", name, Some("status"), &patch);
            if let Err(error) = written.await {
                warn!(policy = name, %error, "failed to write the policy's status, trying again");
            }
        }
    }
}

/// The runs to create now. Two that measure the network between them are not parted.
fn first(create: &[NewRun]) -> &[NewRun] {
    let (now, later) = create.split_at(create.len().min(WRITES));
    let ends = now.last().zip(later.first());
    let parts = ends.is_some_and(|(last, next)| last.partner.as_ref() == Some(&next.node));
    &create[..now.len() + usize::from(parts)]
}

/// The run of a policy, as it is created.
fn object(run: &NewRun, policy: &NodeValidationPolicy) -> Value {
    let when_busy = match run.is_next {
        true => WhenBusy::Next,
        false => WhenBusy::Wait,
    };
    let mut object = json!({
        "apiVersion": names::API_VERSION,
        "kind": JobKind::NodeValidation.as_str(),
        "metadata": {
            "name": run.name,
            "labels": {names::LABEL_VALIDATION_POLICY: run.policy},
            "ownerReferences": [owner_reference("NodeValidationPolicy", &policy.metadata)],
        },
        "spec": {
            "nodeName": run.node,
            "level": level_to_api(run.level),
            "whenBusy": when_busy,
            "deadlineSeconds": policy.spec.deadline_seconds,
        },
    });
    if let Some(claim) = &policy.spec.claim_name {
        object["spec"]["claimName"] = json!(claim);
    }
    if let Some(partner) = &run.partner {
        object["spec"]["partnerNodeName"] = json!(partner);
    }
    object
}

/// Seconds of a time of the planner's.
fn seconds(millis: u64) -> i64 {
    i64::try_from(millis / 1000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use health::{DueReason, Level};

    use super::*;

    #[test]
    fn what_is_created_at_once_has_a_limit_that_parts_no_pair() {
        let run = |at: usize| {
            let node = |at: usize| format!("n{at:03}");
            // The first is alone, then come pairs: 1 with 2, 3 with 4.
            let partner = match at {
                0 => None,
                _ if at.is_multiple_of(2) => Some(node(at - 1)),
                _ => Some(node(at + 1)),
            };
            NewRun {
                policy: "weekly".to_owned(),
                node: node(at),
                level: Level::Full,
                name: node(at),
                reason: DueReason::New,
                is_next: false,
                partner,
            }
        };
        let runs: Vec<_> = (0..99).map(run).collect();
        assert_eq!(first(&runs).len(), WRITES + 1);
        assert_eq!(first(&runs[1..]).len(), WRITES);
        assert_eq!(first(&runs[..5]).len(), 5);
        assert!(first(&[]).is_empty());
    }
}
