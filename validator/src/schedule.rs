//! How the time of a run is shared: how long each check measures, and when it is given up. Pure.

use std::time::Duration;

use contract::validation::PARTNER_SECONDS;
use health::{Check, Level};

use crate::limits::{PATIENCE, SHARE_PERCENT, START};
use crate::results::REPEATS;

/// The time of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSlot {
    /// For its measurements.
    pub(crate) budget: Duration,
    /// For the partner node, before it can measure.
    pub(crate) wait: Duration,
    /// Until it is given up.
    pub(crate) limit: Duration,
}

impl TimeSlot {
    /// When a check should be over, a moment before it is given up.
    pub(crate) fn inside(self) -> Duration {
        self.limit.saturating_sub(START.min(self.limit / 8))
    }

    /// The slot of the check's next measurement: nobody has to be waited for any more.
    pub(crate) fn repeat(self) -> Self {
        let wait = self.wait.min(START);
        Self {
            wait,
            limit: self.limit - self.wait + wait,
            ..self
        }
    }

    /// Long enough for all measurements of the other side.
    pub(crate) fn with_repeats(self) -> Self {
        Self {
            limit: self.limit + self.repeat().limit * REPEATS,
            ..self
        }
    }

    /// No longer than this.
    pub(crate) fn up_to(self, left: Duration) -> Self {
        Self {
            limit: self.limit.min(left),
            ..self
        }
    }
}

/// The slots of the checks that are asked for, in their order. All limits together end before the
/// deadline.
pub(crate) fn slots(asked: &[Check], deadline: Duration) -> Vec<TimeSlot> {
    let level = asked.iter().map(|check| check.level()).max();
    let wanted: Vec<_> = asked
        .iter()
        .map(|&check| (budget(check, level.unwrap_or(Level::Quick)), wait(check)))
        .map(|(budget, wait)| TimeSlot {
            budget,
            wait,
            limit: budget * PATIENCE + START + wait,
        })
        .collect();
    let total: Duration = wanted.iter().map(|slot| slot.limit).sum();
    let share = share(deadline);
    let scale = match total > share {
        true => share.as_secs_f64() / total.as_secs_f64(),
        false => 1.0,
    };
    wanted
        .into_iter()
        .map(|slot| TimeSlot {
            budget: slot.budget.mul_f64(scale),
            wait: slot.wait.mul_f64(scale),
            limit: slot.limit.mul_f64(scale),
        })
        .collect()
}

/// How long all checks together may take, repeats included.
pub(crate) fn share(deadline: Duration) -> Duration {
    deadline * SHARE_PERCENT / 100
}

/// How long a check measures if there is time. Quick is 6 s in all: an idle node has its verdict
/// within 20 s of `kubectl apply`.
fn budget(check: Check, level: Level) -> Duration {
    let quick = level == Level::Quick;
    Duration::from_millis(match check {
        Check::Offer | Check::LockedMemory | Check::Gpu => 50,
        Check::CpuFrequency if quick => 2_000,
        Check::CpuFrequency => 4_000,
        Check::CpuStress if quick => 4_000,
        Check::CpuStress => 20_000,
        Check::MemoryBandwidth => 16_000,
        Check::MemoryPattern => 30_000,
        Check::AllReduce => 8_000,
        Check::Disk | Check::Network => 16_000,
    })
}

/// How long a check waits for another node at most.
fn wait(check: Check) -> Duration {
    match check.is_shared() {
        true => Duration::from_secs(PARTNER_SECONDS.into()),
        false => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(asked: &[Check], deadline_seconds: u64) -> (Duration, Duration) {
        let slots = slots(asked, Duration::from_secs(deadline_seconds));
        assert_eq!(slots.len(), asked.len());
        (
            slots.iter().map(|slot| slot.budget).sum(),
            slots.iter().map(|slot| slot.limit).sum(),
        )
    }

    #[test]
    fn quick_measures_for_less_than_seven_seconds() {
        let quick: Vec<_> = Level::Quick.checks().collect();
        assert!(total(&quick, 600).0 < Duration::from_secs(7));
    }

    #[test]
    fn no_run_goes_past_its_deadline() {
        for deadline in [1, 5, 30, 600, 86_400] {
            let (budget, limit) = total(&Check::ALL, deadline);
            assert!(budget < limit && limit < Duration::from_secs(deadline));
        }
    }
}
