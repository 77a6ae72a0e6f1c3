//! Puts nodes into quarantine and lets them out: the one thing that the operator writes to a Node.
//! Which nodes, is decided by `health`.

use std::collections::BTreeMap;

use crds::{NodeValidation, names};
use health::{Quarantine, QuarantinePlan, QuarantineSummary};
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::jiff;
use kube::ResourceExt as _;
use kube::api::Patch;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::observed::Observed;
use super::{PolicyKeeper, WRITES};
use crate::cluster::{key_of, version_of};
use crate::event::{CLUSTER_NAMESPACE, Event};
use crate::fabric::NodesSeen;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate;
use crate::training_job::write;
use crate::views::NodeView;
use crate::workload::Workload;

/// What a taint keeps away: new pods, and none that runs.
const EFFECT: &str = "NoSchedule";

/// Into quarantine or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

impl PolicyKeeper {
    /// Brings the taints in line with what the validations found. Gives what each policy has then.
    pub(super) async fn quarantine(&self, seen: &NodesSeen) -> BTreeMap<String, QuarantineSummary> {
        let observed = Observed::new(&self.cluster.mirrors(), seen);
        let Some(observed) = observed else {
            return BTreeMap::new();
        };
        let QuarantinePlan {
            begin,
            end,
            answered,
            policies,
        } = health::quarantine(&observed.policies, &observed.nodes, &observed.views());
        for (way, changes) in [(Way::Out, end), (Way::In, begin)] {
            for change in changes.iter().take(WRITES) {
                if let Err(error) = self.change(change, way).await {
                    let Quarantine { node, run, .. } = change;
                    warn!(node, run, ?way, %error, "failed to change a quarantine, trying again");
                }
            }
        }
        for run in answered.iter().take(WRITES) {
            if let Err(error) = self.note(run).await {
                warn!(run, %error, "failed to note a quarantine, trying again");
            }
        }
        self.metrics.quarantined.reset();
        for (policy, summary) in &policies {
            let QuarantineSummary { quarantined, held } = summary;
            for (state, nodes) in [("in", quarantined), ("held", held)] {
                let gauge = self.metrics.quarantined.with_label_values(&[policy, state]);
                gauge.set(i64::try_from(nodes.len()).unwrap_or(i64::MAX));
            }
        }
        policies
    }

    /// Changes a node's taint, if the node is still as it was when that was decided.
    async fn change(&self, change: &Quarantine, way: Way) -> Result<(), write::Error> {
        let name = &change.node;
        let node = match self.writer.get::<Node>("", name).await {
            Err(write::Error::Missing { .. }) => return Ok(()),
            node => node?,
        };
        let Some(patch) = patch(&node, change, way) else {
            return Ok(()); // The watch will show it.
        };
        let patch: Patch<Value> = match serde_json::from_value(patch) {
            Ok(operations) => Patch::Json(operations),
            Err(_) => return Ok(()), // Never: `patch` makes operations.
        };
        let changed: NodeView = self
            .writer
            .patch::<NodeView>("", name, None, &patch)
            .await?;
        let (key, version) = (key_of(&changed), version_of(&changed));
        if let Some(mirrored) = translate::node(changed, &self.taints, &self.cluster.labels) {
            self.cluster.mirrors().nodes.changed(key, version, mirrored);
            self.cluster.notify();
        }
        let run = &change.run;
        let (reason, note) = match way {
            Way::In => (
                "Quarantined",
                format!(
                    "Jobs do not get the node until it passes what NodeValidation {run} failed"
                ),
            ),
            Way::Out => (
                "QuarantineEnded",
                format!("The node passes what NodeValidation {run} failed; jobs get it again"),
            ),
        };
        info!(node = name, run, reason, "changed a quarantine");
        let event = Event {
            name,
            // Events about a node are found by its name: the kubelet's own say so, too.
            regarding: json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}),
            namespace: CLUSTER_NAMESPACE,
            instance: &self.instance,
            reason,
            note: &note,
            warning: way == Way::In,
        };
        event.publish(&self.writer).await;
        Ok(())
    }

    /// Notes on a failed run that its node was seen in quarantine.
    async fn note(&self, run: &str) -> Result<(), write::Error> {
        let now = format!("{:.0}", jiff::Timestamp::now());
        let patch = Patch::Merge(json!({"status": {"quarantineTime": now}}));
        let writer = &self.writer;
        let noted = writer.patch::<NodeValidation>("", run, Some("status"), &patch);
        let noted = match noted.await {
            Err(write::Error::Missing { .. }) => return Ok(()),
            noted => noted?,
        };
        let (key, version) = (key_of(&noted), version_of(&noted));
        let mirrored = MirroredJob::new(Workload::from(noted).slim());
        self.cluster
            .mirrors()
            .validations
            .changed(key, version, mirrored);
        Ok(())
    }
}

/// The operations that change the taint; none if the node is not as it was when that was decided.
fn patch(node: &Node, change: &Quarantine, way: Way) -> Option<Value> {
    let info = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    let boot = info.map_or("", |info| &info.boot_id);
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let is_ours = |taint: &Taint| taint.key == names::TAINT_QUARANTINE;
    let at = taints.unwrap_or_default().iter().position(is_ours);
    let by = at.and_then(|at| taints?[at].value.as_deref());
    let taint = json!({"key": names::TAINT_QUARANTINE, "value": change.run, "effect": EFFECT});
    let operation = match (way, at, taints) {
        _ if boot != change.boot => return None,
        (Way::In, None, None) => json!({"op": "add", "path": "/spec/taints", "value": [taint]}),
        (Way::In, None, Some(_)) => json!({"op": "add", "path": "/spec/taints/-", "value": taint}),
        (Way::Out, Some(at), Some(_)) if by == Some(&change.run) => {
            json!({"op": "remove", "path": format!("/spec/taints/{at}")})
        }
        (Way::In | Way::Out, _, _) => return None,
    };
    let version = node.resource_version();
    let unchanged = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
    Some(json!([unchanged, operation]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(taints: &Value) -> Node {
        let node = json!({
            "metadata": {"name": "n1", "resourceVersion": "7"},
            "spec": {"taints": taints},
            "status": {"nodeInfo": {"bootID": "boot", "architecture": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                "operatingSystem": "", "osImage": "", "systemUUID": ""}},
        });
        serde_json::from_value(node).unwrap()
    }

    fn change(boot: &str) -> Quarantine {
        Quarantine {
            node: "n1".to_owned(),
            run: "weekly-1".to_owned(),
            boot: boot.to_owned(),
        }
    }

    /// NODE-1.
    #[test]
    fn only_our_taint_of_a_node_that_is_as_decided_is_changed() {
        let ours =
            json!({"key": "fireflyer.dev/quarantine", "value": "weekly-1", "effect": "NoSchedule"});
        let other = json!({"key": "team/a", "effect": "NoSchedule"});
        let by_hand = json!({"key": "fireflyer.dev/quarantine", "effect": "NoSchedule"});
        let operation = |taints: Value, way| {
            let patch = patch(&node(&taints), &change("boot"), way)?;
            assert_eq!(
                patch[0],
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"})
            );
            Some(patch[1].clone())
        };
        let all = json!({"op": "add", "path": "/spec/taints", "value": [ours]});
        assert_eq!(operation(Value::Null, Way::In), Some(all));
        let one_more = json!({"op": "add", "path": "/spec/taints/-", "value": ours});
        assert_eq!(operation(json!([other]), Way::In), Some(one_more));
        let second = json!({"op": "remove", "path": "/spec/taints/1"});
        assert_eq!(operation(json!([other, ours]), Way::Out), Some(second));
        for (taints, way) in [
            (json!([ours]), Way::In),
            (json!([by_hand]), Way::In),
            (json!([by_hand]), Way::Out),
            (json!([other]), Way::Out),
            (Value::Null, Way::Out),
        ] {
            assert_eq!(operation(taints.clone(), way), None, "{taints} {way:?}");
        }
        assert_eq!(
            patch(&node(&json!([ours])), &change("another"), Way::Out),
            None
        );
    }
}
