//! What a storage service shows of its disks. Each metric is declared here once, with its help text.

use daemon::Registry;
use daemon::metrics::Error;
use prometheus::IntGaugeVec;
use storage::TargetStatus;

/// Metrics of a storage service. Other processes declare them and show nothing.
pub(crate) struct ServiceMetrics {
    capacity_bytes: IntGaugeVec,
    used_bytes: IntGaugeVec,
    failed: IntGaugeVec,
    chunks: IntGaugeVec,
    chains: IntGaugeVec,
}

impl ServiceMetrics {
    /// Declares them.
    pub(crate) fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            capacity_bytes: registry.gauges(
                "fireflyer_storage_target_capacity_bytes",
                "Bytes that chunks may take on a target.",
                &["target"],
            )?,
            used_bytes: registry.gauges(
                "fireflyer_storage_target_used_bytes",
                "Bytes that chunks take on a target.",
                &["target"],
            )?,
            failed: registry.gauges(
                "fireflyer_storage_target_failed",
                "1 when a target's disk has failed: it is out of service until its process restarts.",
                &["target"],
            )?,
            chunks: registry.gauges(
                "fireflyer_storage_target_chunks",
                "Chunks of a target that are being written (`dirty`), or whose bytes are damaged and being repaired (`damaged`).",
                &["target", "state"],
            )?,
            chains: registry.gauges(
                "fireflyer_storage_target_chains",
                "Chains of a target in which it answers (`complete`), and in which it does not yet (`incomplete`).",
                &["target", "state"],
            )?,
        })
    }

    /// Shows how a target is.
    pub(crate) fn show(&self, of: &TargetStatus) {
        let target = format!("{:032x}", of.target.0);
        let set = |gauge: &IntGaugeVec, labels: &[&str], value: u64| {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            gauge.with_label_values(labels).set(value);
        };
        set(&self.capacity_bytes, &[&target], of.capacity_bytes);
        set(&self.used_bytes, &[&target], of.used_bytes);
        set(&self.failed, &[&target], of.failed.is_some().into());
        for (state, chunks) in [("dirty", of.dirty_chunks), ("damaged", of.damaged_chunks)] {
            set(&self.chunks, &[&target, state], chunks as u64);
        }
        let incomplete = of.chains - of.complete_chains;
        for (state, chains) in [("complete", of.complete_chains), ("incomplete", incomplete)] {
            set(&self.chains, &[&target, state], chains as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_flags_and_metrics_is_fresh() {
        let registry = Registry::new("").unwrap();
        ServiceMetrics::new(&registry).unwrap();
        daemon::reference::check::<crate::args::Cli>(env!("CARGO_MANIFEST_DIR"), &registry)
            .unwrap();
    }
}
