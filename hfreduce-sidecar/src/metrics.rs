//! What the sidecar counts. Declared once here; the engine and the rendezvous add to it.

use std::time::Duration;

use daemon::Registry;
use daemon::metrics::Error;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

/// The sidecar's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    operations: IntCounterVec,
    operation_bytes: IntCounterVec,
    operation_microseconds: IntCounterVec,
    /// Bytes handed to peers, headers included.
    pub sent_bytes: IntCounter,
    /// Bytes received from peers, headers included.
    pub received_bytes: IntCounter,
    /// Bytes that reductions read and wrote.
    pub reduced_bytes: IntCounter,
    /// Links to neighbours that stand.
    pub peers: IntGauge,
    /// Attached processes.
    pub clients: IntGauge,
    /// Times that a local rank was waited for long.
    pub late: IntCounterVec,
    /// Times that a neighbour was silent for too long.
    pub suspects: IntCounter,
    suspect: IntGaugeVec,
    link: IntGaugeVec,
    /// Payloads that did not match their checksum.
    pub damaged: IntCounter,
    /// Connections to the data port that did not authenticate.
    pub refused_connections: IntCounter,
    /// Connections made to the rendezvous service.
    pub rendezvous_connections: IntCounter,
}

impl Metrics {
    /// Declares everything.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            operations: registry.counters(
                "fireflyer_hfreduce_operations_total",
                "Operations that ended, as local ranks called them.",
                &["kind", "outcome"],
            )?,
            operation_bytes: registry.counters(
                "fireflyer_hfreduce_operation_bytes_total",
                "Bytes that local ranks brought to operations that succeeded.",
                &["kind"],
            )?,
            operation_microseconds: registry.counters(
                "fireflyer_hfreduce_operation_microseconds_total",
                "Time from a local rank's call to its outcome, for operations that succeeded.",
                &["kind"],
            )?,
            sent_bytes: registry.counter(
                "fireflyer_hfreduce_sent_bytes_total",
                "Bytes sent to peers, headers included.",
            )?,
            received_bytes: registry.counter(
                "fireflyer_hfreduce_received_bytes_total",
                "Bytes received from peers, headers included.",
            )?,
            reduced_bytes: registry.counter(
                "fireflyer_hfreduce_reduced_bytes_total",
                "Bytes that reductions and copies read and wrote.",
            )?,
            peers: registry.gauge(
                "fireflyer_hfreduce_peers",
                "Links to neighbours in the trees that stand.",
            )?,
            clients: registry.gauge(
                "fireflyer_hfreduce_clients",
                "Trainer processes that are attached.",
            )?,
            late: registry.counters(
                "fireflyer_hfreduce_late_total",
                "Times that others waited long for a local rank to call an operation.",
                &["local_rank"],
            )?,
            suspects: registry.counter(
                "fireflyer_hfreduce_suspects_total",
                "Times that a neighbour was silent for too long.",
            )?,
            suspect: registry.gauges(
                "fireflyer_hfreduce_suspect",
                "1 while a neighbour in the trees is silent, so a suspect.",
                &["node_rank", "node"],
            )?,
            link: registry.gauges(
                "fireflyer_hfreduce_link",
                "1 while a link to a neighbour in the trees stands, by the transport that the two agreed on.",
                &["node_rank", "node", "transport"],
            )?,
            damaged: registry.counter(
                "fireflyer_hfreduce_damaged_payloads_total",
                "Payloads from peers that did not match their checksum; each ended its link.",
            )?,
            refused_connections: registry.counter(
                "fireflyer_hfreduce_refused_connections_total",
                "Connections to the data port that did not authenticate or were not wanted.",
            )?,
            rendezvous_connections: registry.counter(
                "fireflyer_hfreduce_rendezvous_connections_total",
                "Connections made to the rendezvous service.",
            )?,
        })
    }

    /// Whether a neighbour is a suspect. Neighbours are ten at most.
    pub fn suspect(&self, rank: usize, name: &str, is_suspect: bool) {
        self.suspect
            .with_label_values(&[&rank.to_string(), name])
            .set(i64::from(is_suspect));
    }

    /// Whether a link to a neighbour stands.
    pub fn link(&self, rank: usize, name: &str, transport: &str, stands: bool) {
        self.link
            .with_label_values(&[&rank.to_string(), name, transport])
            .set(i64::from(stands));
    }

    /// An operation succeeded for a local rank.
    pub fn succeeded(&self, call: &wire::Call, took: Duration) {
        let kind = [call.kind.name()];
        self.operations
            .with_label_values(&[call.kind.name(), "done"])
            .inc();
        let bytes = call.input_bytes().unwrap_or(0) as u64;
        self.operation_bytes.with_label_values(&kind).inc_by(bytes);
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.operation_microseconds
            .with_label_values(&kind)
            .inc_by(microseconds);
    }

    /// An operation failed for a local rank.
    pub fn failed(&self, call: &wire::Call) {
        self.operations
            .with_label_values(&[call.kind.name(), "failed"])
            .inc();
    }
}
