//! What this agent counts. Each metric is declared here once, with its help text.

use daemon::Registry;
use daemon::metrics::Error;
use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use crate::resource::{PluginDevice, Resource};

/// Upper bounds of an Allocate call's duration: it should end within 5 ms.
const ALLOCATE_SECONDS: [f64; 5] = [0.001, 0.005, 0.025, 0.1, 1.0];

/// All metrics of the agent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    allocations: IntCounterVec,
    allocate_seconds: HistogramVec,
    refused: IntCounterVec,
    registrations: IntCounterVec,
    devices: IntGaugeVec,
    discoveries: IntCounterVec,
    label_writes: IntCounterVec,
}

impl Metrics {
    /// Declares them.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            allocations: registry.counters(
                "fireflyer_device_plugin_allocations_total",
                "Containers that were given devices.",
                &["resource"],
            )?,
            allocate_seconds: registry.histograms(
                "fireflyer_device_plugin_allocate_duration_seconds",
                "How long it took to answer the kubelet's Allocate.",
                &["resource"],
                &ALLOCATE_SECONDS,
            )?,
            refused: registry.counters(
                "fireflyer_device_plugin_refused_total",
                "Calls of the kubelet that were refused.",
                &["resource", "call"],
            )?,
            registrations: registry.counters(
                "fireflyer_device_plugin_registrations_total",
                "Registrations with the kubelet that were tried.",
                &["resource", "outcome"],
            )?,
            devices: registry.gauges(
                "fireflyer_device_plugin_devices",
                "Devices of this node.",
                &["resource", "health"],
            )?,
            discoveries: registry.counters(
                "fireflyer_device_plugin_discoveries_total",
                "Times the hardware was read.",
                &["outcome"],
            )?,
            label_writes: registry.counters(
                "fireflyer_device_plugin_label_writes_total",
                "Times the labels of this node were written.",
                &["outcome"],
            )?,
        })
    }

    /// A container was given devices.
    pub fn allocated(&self, resource: Resource, seconds: f64) {
        let labels = [resource.name()];
        self.allocations.with_label_values(&labels).inc();
        self.allocate_seconds
            .with_label_values(&labels)
            .observe(seconds);
    }

    /// A call was refused.
    pub fn refused(&self, resource: Resource, call: &'static str) {
        self.refused
            .with_label_values(&[resource.name(), call])
            .inc();
    }

    /// A registration was tried.
    pub fn registered(&self, resource: Resource, succeeded: bool) {
        self.registrations
            .with_label_values(&[resource.name(), outcome(succeeded)])
            .inc();
    }

    /// These are the devices now.
    pub fn devices(&self, resource: Resource, devices: &[PluginDevice]) {
        let broken = devices.iter().filter(|device| device.fault.is_some());
        let broken = i64::try_from(broken.count()).unwrap_or(i64::MAX);
        let all = i64::try_from(devices.len()).unwrap_or(i64::MAX);
        for (health, count) in [("healthy", all - broken), ("unhealthy", broken)] {
            self.devices
                .with_label_values(&[resource.name(), health])
                .set(count);
        }
    }

    /// The hardware was read.
    pub fn discovered(&self, succeeded: bool) {
        self.discoveries
            .with_label_values(&[outcome(succeeded)])
            .inc();
    }

    /// The node's labels were written.
    pub fn labelled(&self, succeeded: bool) {
        self.label_writes
            .with_label_values(&[outcome(succeeded)])
            .inc();
    }
}

fn outcome(succeeded: bool) -> &'static str {
    if succeeded { "succeeded" } else { "failed" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_flags_and_metrics_is_fresh() {
        let registry = Registry::new("").unwrap();
        Metrics::new(&registry).unwrap();
        daemon::reference::check::<crate::args::Args>(env!("CARGO_MANIFEST_DIR"), &registry)
            .unwrap();
    }
}
