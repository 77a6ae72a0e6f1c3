//! Events: what the operator says to people about an object. Never read back.

use daemon::chain;
use k8s_openapi::api::events::v1::Event as ApiEvent;
use k8s_openapi::jiff;
use serde_json::{Value, json};
use tracing::warn;

use crate::training_job::write::Writer;

/// Longest note that the API server takes, in bytes.
const NOTE_BYTES: usize = 1000;
/// Where Events about objects of the cluster lie.
pub const CLUSTER_NAMESPACE: &str = "default";

/// An Event.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// Name of the object.
    pub name: &'a str,
    /// The object, as an ObjectReference.
    pub regarding: Value,
    /// Namespace of the Event.
    pub namespace: &'a str,
    /// The pod that says it.
    pub instance: &'a str,
    /// CamelCase word.
    pub reason: &'a str,
    /// What it says.
    pub note: &'a str,
    /// Whether somebody should look.
    pub warning: bool,
}

impl Event<'_> {
    /// Publishes it. It is for people: that one is lost stops nothing.
    pub async fn publish(&self, writer: &Writer) {
        let Self {
            name,
            regarding,
            namespace,
            instance,
            reason,
            note,
            warning,
        } = self;
        let now = jiff::Timestamp::now();
        let suffix = format!("{:x}", now.as_nanosecond());
        let body = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": format!("{name}.{suffix}"), "namespace": namespace},
            "eventTime": format!("{now:.6}"),
            "reportingController": "fireflyer.dev/operator",
            "reportingInstance": instance,
            "action": "Plan",
            "reason": reason,
            "note": &note[..note.floor_char_boundary(NOTE_BYTES)],
            "type": if *warning { "Warning" } else { "Normal" },
            "regarding": regarding,
        });
        if let Err(error) = writer.create::<ApiEvent>(namespace, &body).await {
            warn!(name, reason, error = chain(&error), "an Event was lost");
        }
    }
}
