//! What the sidecar counts. Declared once here; the engine and the rendezvous add to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use collective::machine::{Buffer, Region};
use collective::{Call, OpKind};
use daemon::Registry;
use daemon::metrics::Error;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::numa::PlacementReport;

/// Sizes of operations are distinguished up to these many bytes, and beyond.
const SIZES: [(u64, &str); 6] = [
    (4 << 10, "4KiB"),
    (64 << 10, "64KiB"),
    (1 << 20, "1MiB"),
    (16 << 20, "16MiB"),
    (256 << 20, "256MiB"),
    (u64::MAX, "more"),
];
/// Bounds of an operation's time, in seconds.
const SECONDS: [f64; 17] = [
    20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5,
    1.0, 5.0, 30.0,
];
/// Memory by what lies there.
const BUFFERS: [&str; 4] = ["input", "received", "staged", "result"];

/// The sidecar's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    operations: IntCounterVec,
    /// Operations that succeeded, of all kinds.
    finished: Arc<AtomicU64>,
    operation_bytes: IntCounterVec,
    operation_seconds: HistogramVec,
    /// Those of a kind and a size, looked up once.
    by_size: Arc<Vec<OnceLock<BySize>>>,
    /// Bytes handed to peers, headers included.
    pub sent_bytes: IntCounter,
    /// Bytes received from peers, headers included.
    pub received_bytes: IntCounter,
    /// What reductions and copies read, by what lies there.
    read_bytes: [IntCounter; BUFFERS.len()],
    /// What they wrote.
    written_bytes: [IntCounter; BUFFERS.len()],
    waited_for_rank: IntCounterVec,
    waited_for_node: IntCounterVec,
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
    placement: IntGaugeVec,
    /// Collectives that local ranks made over gloo.
    pub fallbacks: IntCounter,
    /// Payloads that did not match their checksum.
    pub damaged: IntCounter,
    /// Connections to the data port that did not authenticate.
    pub refused_connections: IntCounter,
    /// Connections made to the rendezvous service.
    pub rendezvous_connections: IntCounter,
}

/// What is counted for each operation of a kind and a size that succeeds.
#[derive(Clone, Debug)]
struct BySize {
    done: IntCounter,
    bytes: IntCounter,
    seconds: Histogram,
}

impl Metrics {
    /// Declares everything.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let memory_bytes = registry.counters(
            "fireflyer_hfreduce_memory_bytes_total",
            "Bytes that reductions and copies read and wrote, by what lies there.",
            &["access", "buffer"],
        )?;
        let memory =
            |access| BUFFERS.map(|buffer| memory_bytes.with_label_values(&[access, buffer]));
        Ok(Self {
            finished: Arc::default(),
            operations: registry.counters(
                "fireflyer_hfreduce_operations_total",
                "Operations that ended, as local ranks called them.",
                &["kind", "outcome"],
            )?,
            operation_bytes: registry.counters(
                "fireflyer_hfreduce_operation_bytes_total",
                "Bytes that local ranks brought to operations that succeeded, by the largest size of a class.",
                &["kind", "size"],
            )?,
            operation_seconds: registry.histograms(
                "fireflyer_hfreduce_operation_seconds",
                "Time from a local rank's call to its outcome, for operations that succeeded.",
                &["kind", "size"],
                &SECONDS,
            )?,
            by_size: Arc::new(vec![OnceLock::new(); OpKind::NAMES.len() * SIZES.len()]),
            sent_bytes: registry.counter(
                "fireflyer_hfreduce_sent_bytes_total",
                "Bytes sent to peers, headers included.",
            )?,
            received_bytes: registry.counter(
                "fireflyer_hfreduce_received_bytes_total",
                "Bytes received from peers, headers included.",
            )?,
            read_bytes: memory("read"),
            written_bytes: memory("write"),
            waited_for_rank: registry.counters(
                "fireflyer_hfreduce_waited_for_rank_microseconds_total",
                "Time that operations waited on this node for a local rank alone: who is slow.",
                &["local_rank"],
            )?,
            waited_for_node: registry.counters(
                "fireflyer_hfreduce_waited_for_node_microseconds_total",
                "Time that operations waited on this node for a neighbour below alone, or for nodes below that.",
                &["node_rank", "node"],
            )?,
            peers: registry.gauge(
                "fireflyer_hfreduce_peers",
                "Links to tree neighbours that are up.",
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
                "1 while a tree neighbour is a suspect because it is silent.",
                &["node_rank", "node"],
            )?,
            link: registry.gauges(
                "fireflyer_hfreduce_link",
                "1 while the link to a tree neighbour is up, by transport.",
                &["node_rank", "node", "transport"],
            )?,
            placement: registry.gauges(
                "fireflyer_hfreduce_placement",
                "1, labelled with where memory and the engine lie on the machine's NUMA nodes, and whether pages are huge.",
                &["inputs", "results", "engine", "huge_pages"],
            )?,
            fallbacks: registry.counter(
                "fireflyer_hfreduce_fallbacks_total",
                "Collectives that local ranks made over gloo, because the sidecar has none for their type, operation or shape.",
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

    /// Where memory and the engine lie.
    pub fn placed(&self, report: &PlacementReport) {
        let PlacementReport {
            inputs,
            results,
            engine,
            huge_pages,
            ..
        } = report;
        self.placement
            .with_label_values(&[inputs, results, engine, huge_pages])
            .set(1);
    }

    /// Bytes were combined or copied.
    pub fn moved<'a>(&self, from: impl IntoIterator<Item = &'a Region>, into: &Region) {
        for region in from {
            self.read_bytes[class(region.buffer)].inc_by(region.bytes);
        }
        self.written_bytes[class(into.buffer)].inc_by(into.bytes);
    }

    /// Others waited for a local rank alone.
    pub fn waited_for_rank(&self, rank: usize, time: Duration) {
        let counter = &self.waited_for_rank;
        let counter = counter.with_label_values(&[&rank.to_string()]);
        counter.inc_by(microseconds(time));
    }

    /// Others waited for a neighbour alone.
    pub fn waited_for_node(&self, rank: usize, name: &str, time: Duration) {
        let counter = &self.waited_for_node;
        let counter = counter.with_label_values(&[rank.to_string().as_str(), name]);
        counter.inc_by(microseconds(time));
    }

    /// Whether a link to a neighbour stands.
    pub fn link(&self, rank: usize, name: &str, transport: &str, stands: bool) {
        self.link
            .with_label_values(&[&rank.to_string(), name, transport])
            .set(i64::from(stands));
    }

    /// Returns the number of operations that have succeeded for local ranks.
    pub fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// An operation succeeded for a local rank.
    pub fn succeeded(&self, call: &Call, took: Duration) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        let bytes = call.input_bytes();
        let size = SIZES.iter().position(|(largest, _)| bytes <= *largest);
        let at = call.kind.index() * SIZES.len() + size.unwrap_or(0);
        let Some(one) = self.by_size.get(at) else {
            return;
        };
        let one = one.get_or_init(|| {
            let (_, size) = SIZES[at % SIZES.len()];
            let labels = [call.kind.name(), size];
            let outcome = [call.kind.name(), "done"];
            BySize {
                done: self.operations.with_label_values(&outcome),
                bytes: self.operation_bytes.with_label_values(&labels),
                seconds: self.operation_seconds.with_label_values(&labels),
            }
        });
        // Ranks meet in a barrier with a name before they use gloo.
        if call.kind == OpKind::Barrier && call.tag != 0 {
            self.fallbacks.inc();
        }
        one.done.inc();
        one.bytes.inc_by(bytes);
        one.seconds.observe(took.as_secs_f64());
    }

    /// An operation failed for a local rank.
    pub fn failed(&self, call: &Call) {
        self.operations
            .with_label_values(&[call.kind.name(), "failed"])
            .inc();
    }
}

/// Which of [`BUFFERS`] it is.
const fn class(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Input { .. } => 0,
        Buffer::Receive { .. } => 1,
        Buffer::Send { .. } => 2,
        Buffer::Result { .. } | Buffer::Own { .. } => 3,
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use collective::{DType, ReduceOp};

    use super::*;

    #[test]
    fn operations_are_counted_by_size() {
        let registry = Registry::new("test").unwrap();
        let metrics = Metrics::new(&registry).unwrap();
        for count in [0, 1024, 1025, 1 << 30] {
            let call = Call::all_reduce(DType::F32, ReduceOp::Sum, count);
            metrics.succeeded(&call, Duration::from_millis(3));
        }
        let text = registry.text().unwrap();
        for (name, value) in [
            ("operations_total{kind=\"allreduce\",outcome=\"done\"}", 4),
            (
                "operation_bytes_total{kind=\"allreduce\",size=\"4KiB\"}",
                4096,
            ),
            (
                "operation_bytes_total{kind=\"allreduce\",size=\"64KiB\"}",
                4100,
            ),
            (
                "operation_bytes_total{kind=\"allreduce\",size=\"more\"}",
                4_294_967_296_u64,
            ),
            (
                "operation_seconds_bucket{kind=\"allreduce\",size=\"4KiB\",le=\"0.002\"}",
                0,
            ),
            (
                "operation_seconds_bucket{kind=\"allreduce\",size=\"4KiB\",le=\"0.005\"}",
                2,
            ),
        ] {
            let line = format!("fireflyer_hfreduce_{name} {value}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }

    #[test]
    fn barriers_with_a_name_are_collectives_over_gloo() {
        let registry = Registry::new("test").unwrap();
        let metrics = Metrics::new(&registry).unwrap();
        for tag in [0, 7, 7] {
            let call = Call {
                tag,
                ..Call::barrier()
            };
            metrics.succeeded(&call, Duration::ZERO);
        }
        assert_eq!(metrics.fallbacks.get(), 2);
    }

    #[test]
    fn the_page_of_flags_and_metrics_is_fresh() {
        let registry = Registry::new("").unwrap();
        Metrics::new(&registry).unwrap();
        daemon::reference::check::<crate::args::Cli>(env!("CARGO_MANIFEST_DIR"), &registry)
            .unwrap();
    }
}
