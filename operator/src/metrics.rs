//! Every metric of the operator, declared once.

use daemon::{Registry, metrics::Error};
use prometheus::{GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

/// Upper bounds for the planner's time: its goal is 10 ms at 1,250 nodes.
const PLAN_SECONDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0];
/// Upper bounds for writing a job's plan: one write is some milliseconds, 1,250 pods ten seconds.
const APPLY_SECONDS: [f64; 9] = [0.005, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];

/// The operator's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Time to make and check a plan.
    pub plan_seconds: HistogramVec,
    /// Time to write a job's plan.
    pub apply_seconds: HistogramVec,
    /// Planned actions by kind.
    pub actions: IntCounterVec,
    /// Plans that broke an invariant.
    pub violations: IntCounterVec,
    /// Jobs whose actions stopped early, by reason.
    pub stopped: IntCounterVec,
    /// Jobs by phase.
    pub jobs: IntGaugeVec,
    /// Nodes by state.
    pub nodes: IntGaugeVec,
    /// Nodes by the verdict of their newest validation.
    pub validated: IntGaugeVec,
    /// Nodes in quarantine, and those that limits keep out of it, by policy.
    pub quarantined: IntGaugeVec,
    /// How long ago each mirror was known to be complete.
    pub watch_age: GaugeVec,
    /// Nodes that all jobs avoid.
    pub avoided: IntGaugeVec,
    /// Nodes that are not Ready, where many stopped being so at once.
    pub storms: IntGaugeVec,
    /// Writes to the API server.
    pub writes: IntCounterVec,
    /// Whether this replica leads.
    pub leader: IntGauge,
    /// Sidecars connected to the rendezvous service.
    pub connections: IntGauge,
    /// Handshakes that failed.
    pub refused: IntCounter,
    /// Messages of sidecars of a kind that this release does not know.
    pub skipped: IntCounter,
    /// Nodes that gangs have gone on without.
    pub nodes_lost: IntCounter,
    /// Training step of each running job.
    pub job_step: IntGaugeVec,
    /// Loss of each running job.
    pub job_loss: GaugeVec,
}

impl Metrics {
    /// Declares them all.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            plan_seconds: registry.histograms(
                "fireflyer_plan_seconds",
                "Time to make and check a plan.",
                &[],
                &PLAN_SECONDS,
            )?,
            apply_seconds: registry.histograms(
                "fireflyer_apply_seconds",
                "Time to write the plan of one job.",
                &[],
                &APPLY_SECONDS,
            )?,
            actions: registry.counters(
                "fireflyer_plan_actions_total",
                "Planned actions by kind.",
                &["kind"],
            )?,
            violations: registry.counters(
                "fireflyer_plan_violations_total",
                "Plans that were discarded because they broke an invariant. Always a bug.",
                &["invariant"],
            )?,
            stopped: registry.counters(
                "fireflyer_apply_stopped_total",
                "Jobs whose actions stopped early: stale (somebody else wrote), refused or failed.",
                &["reason"],
            )?,
            jobs: registry.gauges("fireflyer_jobs", "TrainingJobs by phase.", &["phase"])?,
            nodes: registry.gauges(
                "fireflyer_nodes",
                "Nodes with a class by state: usable, no-new-work, leaving, suspect, short, lost.",
                &["class", "state"],
            )?,
            validated: registry.gauges(
                "fireflyer_validated_nodes",
                "Nodes by the verdict of their newest finished validation: Pass, Warn, Fail, Error, Skipped.",
                &["verdict"],
            )?,
            quarantined: registry.gauges(
                "fireflyer_quarantined_nodes",
                "Nodes that failed a validation, by policy. in: they are in quarantine. held: they stay open to jobs, because a limit of the policy leaves no room.",
                &["policy", "state"],
            )?,
            watch_age: registry.floats(
                "fireflyer_watch_age_seconds",
                "How long ago the copy of a kind was known to be complete. Above 60 this replica yields the Lease to another.",
                &["kind"],
            )?,
            avoided: registry.gauges(
                "fireflyer_nodes_avoided",
                "Nodes that all jobs keep away from, because attempts of two namespaces ended there. At most 5 % of a class, and one.",
                &["class"],
            )?,
            storms: registry.gauges(
                "fireflyer_node_storm",
                "Nodes that are not Ready where many stopped being so at once; absent otherwise.",
                &["class", "zone"],
            )?,
            writes: registry.counters(
                "fireflyer_api_writes_total",
                "Writes to the API server; dry runs of pods, which store nothing, have the verb dry_run.",
                &["verb", "kind", "outcome"],
            )?,
            leader: registry.gauge("fireflyer_leader", "1 while this replica leads.")?,
            connections: registry.gauge(
                "fireflyer_rendezvous_connections",
                "Sidecars connected to this replica's rendezvous service.",
            )?,
            refused: registry.counter(
                "fireflyer_rendezvous_refused_total",
                "Connections to the rendezvous service that did not authenticate.",
            )?,
            skipped: registry.counter(
                "fireflyer_rendezvous_skipped_total",
                "Messages of sidecars that this release does not know.",
            )?,
            nodes_lost: registry.counter(
                "fireflyer_nodes_lost_total",
                "Nodes that gangs have gone on without (failurePolicy.onPeerLoss: Shrink).",
            )?,
            job_step: registry.gauges(
                "fireflyer_job_step",
                "Last training step that a running job reported.",
                &["namespace", "job"],
            )?,
            job_loss: registry.floats(
                "fireflyer_job_loss",
                "Last loss that a running job reported.",
                &["namespace", "job"],
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_flags_and_metrics_is_fresh() {
        let registry = Registry::new("").unwrap();
        Metrics::new(&registry).unwrap();
        daemon::reference::check::<crate::args::Cli>(env!("CARGO_MANIFEST_DIR"), &registry)
            .unwrap();
    }
}
