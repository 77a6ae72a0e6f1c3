//! What the engine reports about itself: metrics, suspects for the operator, the flight recorder, and snapshots on request.

use std::path::PathBuf;
use std::time::Duration;

use collective::machine::{Broken, GroupId, OpId};
use collective::membership::SuspicionReason;
use contract::run_dir;
use tracing::{error, info, warn};

use super::flight_recorder::FlightRecorder;
use super::members::Members;
use super::waits::{Waits, Who};
use crate::inspect::{Ops, Snapshots};
use crate::metrics::Metrics;
use crate::rendezvous::{NodeReport, Reporter};

/// Calls that fail one after the other are written down once in this time.
const RECORD_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Telemetry {
    metrics: Metrics,
    reporter: Reporter,
    flight_recorder: FlightRecorder,
    waits: Waits,
    snapshots: Snapshots,
    /// The file for the flight recorder.
    flight: PathBuf,
    /// When a call that failed was last written there.
    recorded: Option<Duration>,
}

impl Telemetry {
    pub(super) fn new(
        metrics: Metrics,
        reporter: Reporter,
        snapshots: Snapshots,
        flight: PathBuf,
    ) -> Self {
        Self {
            metrics,
            reporter,
            flight_recorder: FlightRecorder::default(),
            waits: Waits::default(),
            snapshots,
            flight,
            recorded: None,
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The last events.
    pub(super) fn flight_recorder(&self) -> &FlightRecorder {
        &self.flight_recorder
    }

    pub(super) fn flight_recorder_mut(&mut self) -> &mut FlightRecorder {
        &mut self.flight_recorder
    }

    /// A new epoch begins.
    pub(super) fn enter(&mut self, now: Duration, epoch: u32, members: &[u32]) {
        self.flight_recorder.enter(now, epoch, members);
        self.waits.forget();
    }

    /// Whether a snapshot is asked for.
    pub(super) fn takes_snapshot(&mut self) -> bool {
        self.snapshots.are_due()
    }

    /// Leaves it.
    pub(super) fn leave_snapshot(&mut self, ops: Ops) {
        self.snapshots.leave(ops);
    }

    /// Ranks have called what cannot be, and all of them learn it, one after the other: whether that is to be recorded.
    pub(super) fn records_verdict(&mut self, now: Duration) -> bool {
        let is_due = self.recorded.is_none_or(|last| last + RECORD_PAUSE <= now);
        if is_due {
            self.recorded = Some(now);
        }
        is_due
    }

    /// Something has failed: keeps what led to it, and says what was in flight.
    pub(super) fn write_recording(&self, ops: &Ops) {
        for one in &ops.operations {
            let call = one.call.as_deref().unwrap_or("not called here");
            info!(
                group = one.group,
                operation = one.operation,
                call,
                joined = ?one.joined,
                missing = ?one.missing,
                waits_for = ?one.waits_for,
                settled = one.settled,
                chunks = one.chunks,
                "was in flight"
            );
        }
        let write = || {
            let text = serde_json::to_vec_pretty(ops)?;
            run_dir::put(&self.flight, &text, run_dir::READABLE)
        };
        match write() {
            Ok(()) => info!(file = %self.flight.display(), "wrote the flight recorder"),
            Err(error) => {
                let file = self.flight.display();
                warn!(%error, %file, "failed to write the flight recorder");
            }
        }
    }

    /// Somebody has brought its part of an operation, of `expected`: the last one kept the others waiting.
    pub(super) fn came(
        &mut self,
        who: Who,
        (op, expected): (OpId, usize),
        now: Duration,
        members: &Members,
    ) {
        let Some(kept) = self.waits.came(op, expected, now) else {
            return;
        };
        match who {
            Who::Rank(rank) => self.metrics.waited_for_rank(rank, kept),
            Who::Node(peer) => {
                let (rank, name) = (members.rank_of(peer), members.name(peer));
                self.metrics.waited_for_node(rank, name, kept);
            }
        }
    }

    pub(super) fn suspect(&self, peer: usize, silent: Duration, members: &Members) {
        let (rank, name) = (members.rank_of(peer), members.name(peer));
        self.metrics.suspects.inc();
        self.metrics.suspect(rank, name, true);
        warn!(node = rank, name, ?silent, "suspect: it sends nothing");
        let detail = format!("node {rank} ({name}) has been silent for {silent:?}");
        self.report(peer, SuspicionReason::Frozen, detail, members);
    }

    pub(super) fn recovered(&self, peer: usize, members: &Members) {
        let (rank, name) = (members.rank_of(peer), members.name(peer));
        info!(node = rank, name, "a suspect sends again");
        self.metrics.suspect(rank, name, false);
        self.reporter
            .send(NodeReport::Recovered { node: rank as u32 });
    }

    /// Others wait for a local rank to call; `global` is its rank in the attempt.
    pub(super) fn late(&self, (group, op): (GroupId, OpId), rank: usize, global: u32) {
        warn!(
            group,
            operation = op,
            rank = global,
            "others wait for this rank to call"
        );
        let late = &self.metrics.late;
        late.with_label_values(&[&rank.to_string()]).inc();
    }

    /// The epoch is over on node `own`, as `ops` shows it.
    pub(super) fn broken(&self, broken: Broken, own: usize, ops: &Ops, members: &Members) {
        let detail = members.text(&broken.into());
        error!(cause = detail, "the epoch is over");
        self.write_recording(ops);
        let reason = match broken {
            Broken::NodeLost { .. } => SuspicionReason::Dead,
            Broken::NodeSilent { .. } => SuspicionReason::Silent,
            // The operator learns of these from the pods themselves.
            Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Protocol { .. }
            | Broken::Revoked => return,
        };
        if let Some(node) = broken.node().filter(|node| *node != own) {
            self.report(node, reason, detail, members);
        }
    }

    fn report(&self, node: usize, reason: SuspicionReason, detail: String, members: &Members) {
        let node = members.rank_of(node) as u32;
        self.reporter.send(NodeReport::Suspect {
            node,
            reason,
            detail,
        });
    }
}
