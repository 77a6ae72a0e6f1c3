//! The process's metrics: a registry that all modules declare into, and its text form. Names start
//! with `fireflyer_` and end in their unit; each is declared once, with its help text.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, TextEncoder,
};

/// Why a metric could not be declared.
#[derive(Debug, thiserror::Error)]
#[error("failed to declare metric `{name}`")]
pub struct Error {
    name: String,
    source: prometheus::Error,
}

/// What was declared of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its name, with its unit.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels, in the order of declaration.
    pub labels: Vec<String>,
    /// Its help text.
    pub help: String,
}

/// Where metrics are declared and read. Cheap to clone; all clones are the same registry.
#[derive(Clone, Debug)]
pub struct Registry {
    inner: prometheus::Registry,
    resident: IntGauge,
    declared: Arc<Mutex<Vec<Declared>>>,
}

impl Registry {
    /// A registry that already has the version and the memory of this process.
    pub fn new(version: &str) -> Result<Self, Error> {
        let inner = prometheus::Registry::new();
        let resident = IntGauge::new(
            "process_resident_memory_bytes",
            "Resident memory of this process.",
        )
        .map_err(|source| Error {
            name: "process_resident_memory_bytes".to_owned(),
            source,
        })?;
        let registry = Self {
            inner,
            resident: resident.clone(),
            declared: Arc::default(),
        };
        registry.register("gauge", "process_resident_memory_bytes", Ok(resident))?;
        registry
            .gauges(
                "fireflyer_build_info",
                "1, labelled with the version of this process.",
                &["version"],
            )?
            .with_label_values(&[version])
            .set(1);
        Ok(registry)
    }

    /// Declares a counter.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.register("counter", name, IntCounter::new(name, help))
    }

    /// Declares a counter with labels.
    pub fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, Error> {
        self.register(
            "counter",
            name,
            IntCounterVec::new(Opts::new(name, help), labels),
        )
    }

    /// Declares a gauge.
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.register("gauge", name, IntGauge::new(name, help))
    }

    /// Declares a gauge with labels.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.register(
            "gauge",
            name,
            IntGaugeVec::new(Opts::new(name, help), labels),
        )
    }

    /// Declares a gauge of floating-point values with labels.
    pub fn floats(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, Error> {
        self.register("gauge", name, GaugeVec::new(Opts::new(name, help), labels))
    }

    /// Declares a histogram with the given upper bounds, with labels (possibly none).
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        bounds: &[f64],
    ) -> Result<HistogramVec, Error> {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.register("histogram", name, HistogramVec::new(options, labels))
    }

    /// Everything declared, in Prometheus' text format.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        if let Some(bytes) = resident_bytes() {
            self.resident.set(bytes);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.inner.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Everything that was declared so far, in that order.
    pub fn declared(&self) -> Vec<Declared> {
        let declared = self.declared.lock();
        declared.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn register<M: Collector + Clone + 'static>(
        &self,
        kind: &'static str,
        name: &str,
        metric: prometheus::Result<M>,
    ) -> Result<M, Error> {
        let named = |source| Error {
            name: name.to_owned(),
            source,
        };
        let metric = metric.map_err(named)?;
        self.inner
            .register(Box::new(metric.clone()))
            .map_err(named)?;
        let mut declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        declared.extend(metric.desc().into_iter().map(|desc| Declared {
            name: desc.fq_name.clone(),
            kind,
            labels: desc.variable_labels.clone(),
            help: desc.help.clone(),
        }));
        Ok(metric)
    }
}

/// Resident memory as the kernel counts it; unknown where there is no /proc.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kibibytes: i64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_declared_is_in_the_text() {
        let registry = Registry::new("1.2.3").unwrap();
        let actions = registry
            .counters("fireflyer_actions_total", "Actions taken.", &["kind"])
            .unwrap();
        actions.with_label_values(&["create"]).inc_by(3);
        let text = registry.text().unwrap();
        assert!(
            text.contains("fireflyer_actions_total{kind=\"create\"} 3"),
            "{text}"
        );
        assert!(
            text.contains("fireflyer_build_info{version=\"1.2.3\"} 1"),
            "{text}"
        );
        assert!(!text.contains("process_resident_memory_bytes 0"), "{text}");
    }

    #[test]
    fn a_name_taken_twice_is_an_error_that_names_it() {
        let registry = Registry::new("1.2.3").unwrap();
        registry
            .counter("fireflyer_plans_total", "Plans made.")
            .unwrap();
        let error = registry
            .counter("fireflyer_plans_total", "Plans made.")
            .unwrap_err();
        assert!(error.to_string().contains("fireflyer_plans_total"));
    }
}
