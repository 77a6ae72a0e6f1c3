//! Crash points: count the steps of a run once, then repeat the run and stop at each of them.

/// Counts steps and says at which one to crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashPoint {
    passed: u64,
    at: Option<u64>,
}

impl CrashPoint {
    /// Never crashes: a run to count the steps.
    #[must_use]
    pub fn never() -> Self {
        Self::default()
    }

    /// Crashes at the step with this number, counted from 0.
    #[must_use]
    pub fn at(step: u64) -> Self {
        Self {
            passed: 0,
            at: Some(step),
        }
    }

    /// Passes one step; true when the crash is now. Once only.
    #[must_use]
    pub fn hit(&mut self) -> bool {
        let hit = self.at == Some(self.passed);
        self.passed += 1;
        hit
    }

    /// Steps passed so far: after a run that never crashes, the number of crash points to try.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_a_counted_run_can_be_hit_exactly_once() {
        let run = |mut crash: CrashPoint| {
            let hits = (0..5).filter(|_| crash.hit()).count();
            (hits, crash.passed())
        };
        let (hits, steps) = run(CrashPoint::never());
        assert_eq!((hits, steps), (0, 5));
        for step in 0..steps {
            assert_eq!(run(CrashPoint::at(step)).0, 1);
        }
    }
}
