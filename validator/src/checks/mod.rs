//! The checks: what each needs and measures, behind one interface. How long they may take is
//! decided by `schedule`; what their values mean, by the operator.

mod all_reduce;
mod cpu_frequency;
mod cpu_stress;
mod disk;
mod memory_bandwidth;
mod memory_pattern;
pub(crate) mod network;

use std::path::Path;
use std::time::Duration;

use contract::validation::OfferedResource;
use health::{Check, CheckResult, Outcome};
use rustix::process::{Resource, getrlimit};

use crate::results::{failed, whole};

/// No limit, as a number that any floor is below.
const UNLIMITED_GIB: f64 = 1e6;

/// What a check runs with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckContext<'a> {
    /// Time for its measurements.
    pub(crate) budget: Duration,
    /// Most memory that it may use.
    pub(crate) memory_bytes: u64,
    /// The partner node of the check Network, if there is one.
    pub(crate) pair: Option<network::Pair<'a>>,
    /// What the node offers.
    pub(crate) offers: &'a [OfferedResource],
    /// A folder on the disk that is checked.
    pub(crate) scratch: &'a Path,
    /// Where the claim of the run is mounted.
    pub(crate) claim: Option<&'a Path>,
    /// For tests: something that goes wrong.
    pub(crate) fault: Option<BitFlip>,
}

/// A bit that flips, once the check has done some of its work, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BitFlip {
    /// Where: the core, or the place in memory or file in bytes.
    pub(crate) at: u64,
    /// Which bit of a word of 64.
    pub(crate) bit: u32,
}

/// A check as this program runs it.
#[derive(Clone, Copy, Debug)]
struct Module {
    /// Why it cannot run here, if so.
    lacks: fn(&CheckContext<'_>) -> Option<&'static str>,
    /// Runs it; takes about its budget.
    run: fn(&CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>>,
}

/// Runs a check, if what it needs is there.
pub(crate) fn results(check: Check, context: &CheckContext<'_>) -> Vec<CheckResult> {
    let module = module(check);
    if let Some(detail) = (module.lacks)(context) {
        return vec![skipped(check, detail)];
    }
    (module.run)(context).unwrap_or_else(|error| vec![failed(check, format!("{error:#}"))])
}

fn module(check: Check) -> Module {
    let always = |run| Module {
        lacks: |_| None,
        run,
    };
    let never = |lacks| Module {
        lacks,
        run: |_| Ok(Vec::new()),
    };
    match check {
        Check::Offer => Module {
            lacks: |context| {
                context
                    .offers
                    .is_empty()
                    .then_some("the node offers nothing")
            },
            run: |context| Ok(offer(context)),
        },
        Check::CpuFrequency => always(cpu_frequency::run),
        Check::CpuStress => always(cpu_stress::run),
        Check::MemoryBandwidth => always(memory_bandwidth::run),
        Check::MemoryPattern => always(memory_pattern::run),
        Check::AllReduce => always(all_reduce::run),
        Check::Disk => always(disk::run),
        Check::LockedMemory => always(|_| Ok(vec![locked_memory()])),
        Check::Gpu => never(|_| Some("GPU checks come with a later release")),
        Check::Network => Module {
            lacks: |context| {
                let none = "no partner: spec.partnerNodeName names none, or a node of another class or \
                            zone, or one whose run did not start";
                context.pair.is_none().then_some(none)
            },
            run: |context| match &context.pair {
                Some(pair) => network::run(context, pair),
                None => Ok(Vec::new()),
            },
        },
    }
}

/// A value of a device. More digits would say nothing, and the report has room for few.
fn measured(check: Check, device: impl Into<String>, value: f64) -> CheckResult {
    let value = (value * 1e6).round() / 1e6;
    CheckResult {
        device: device.into(),
        ..whole(check, Outcome::Measured { value, runs: 1 })
    }
}

/// It cannot run.
fn skipped(check: Check, detail: impl Into<String>) -> CheckResult {
    let detail = detail.into();
    whole(check, Outcome::Skipped { detail })
}

/// A wrong answer of a device.
fn wrong(check: Check, device: impl Into<String>, detail: String) -> CheckResult {
    CheckResult {
        device: device.into(),
        ..whole(check, Outcome::Wrong { detail })
    }
}

fn offer(context: &CheckContext<'_>) -> Vec<CheckResult> {
    let of = |offer: &OfferedResource| measured(Check::Offer, &offer.resource, offer.offered);
    context.offers.iter().map(of).collect()
}

fn locked_memory() -> CheckResult {
    let limit = getrlimit(Resource::Memlock).current;
    let gib = limit.map_or(UNLIMITED_GIB, |bytes| bytes as f64 / f64::from(1 << 30));
    measured(Check::LockedMemory, "", gib)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run at a scale at which tests are quick.
    pub(crate) fn small(scratch: &Path) -> CheckContext<'_> {
        CheckContext {
            budget: Duration::from_millis(40),
            memory_bytes: 3 << 20,
            pair: None,
            offers: &[],
            scratch,
            claim: None,
            fault: None,
        }
    }

    /// The devices and values of a check, which all are measured.
    pub(crate) fn values(check: Check, context: &CheckContext<'_>) -> Vec<(String, f64)> {
        let of = |result: CheckResult| {
            let CheckResult {
                device, outcome, ..
            } = result;
            let Outcome::Measured { value, .. } = outcome else {
                panic!("{check} of {device}: {outcome:?}");
            };
            (device, value)
        };
        results(check, context).into_iter().map(of).collect()
    }

    /// The devices and details of a check, which all are wrong.
    pub(crate) fn wrongs(check: Check, context: &CheckContext<'_>) -> Vec<(String, String)> {
        let of = |result: CheckResult| {
            let CheckResult {
                device, outcome, ..
            } = result;
            let Outcome::Wrong { detail } = outcome else {
                panic!("{check} of {device}: {outcome:?}");
            };
            (device, detail)
        };
        results(check, context).into_iter().map(of).collect()
    }

    #[test]
    fn an_offer_is_reported_as_it_is() {
        let offers = [OfferedResource {
            resource: "nvidia.com/gpu".to_owned(),
            offered: 7.0,
            expected: 8.0,
        }];
        let context = CheckContext {
            offers: &offers,
            ..small(Path::new("/"))
        };
        let reported = values(Check::Offer, &context);
        assert_eq!(reported, [("nvidia.com/gpu".to_owned(), 7.0)]);
    }

    #[test]
    fn what_cannot_run_says_why() {
        for check in [Check::Offer, Check::Gpu, Check::Network] {
            let results = results(check, &small(Path::new("/")));
            let [CheckResult { outcome, .. }] = results.as_slice() else {
                panic!("{results:?}");
            };
            assert!(matches!(outcome, Outcome::Skipped { detail } if detail.len() > 10));
        }
    }

    #[test]
    fn the_limit_of_locked_memory_is_a_number() {
        let values = values(Check::LockedMemory, &small(Path::new("/")));
        assert!(matches!(&values[..], [(_, value)] if *value >= 0.0));
    }
}
