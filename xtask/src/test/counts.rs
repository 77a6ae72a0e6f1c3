//! Adds up what the stages' runners say at their ends.

use std::ops::AddAssign;

/// Sum over the closing lines of all runners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) not_run: u64,
}

impl Counts {
    /// Adds what a runner's closing line says; any other line adds nothing.
    ///
    /// cargo test says `test result: ok. 3 passed; 0 failed; 1 ignored; …`, our runners say
    /// `3 passed, 0 failed, 1 skipped`.
    pub(super) fn read(&mut self, line: &str) {
        let text = line.strip_prefix("test result: ").map_or(line, |rest| {
            rest.split_once(". ").map_or(rest, |(_, numbers)| numbers)
        });
        let mut found = Self::default();
        let mut parts = 0;
        for part in text.split([';', ',']) {
            let Some((number, word)) = part.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match word {
                "passed" => found.passed = number,
                "failed" => found.failed = number,
                "ignored" | "skipped" => found.not_run = number,
                _ => continue,
            }
            parts += 1;
        }
        // One such word alone may stand in any line.
        if parts >= 2 {
            *self += found;
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.not_run += other.not_run;
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    fn sum(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        lines.iter().for_each(|line| counts.read(line));
        counts
    }

    #[test]
    fn closing_lines_of_cargo_and_of_our_runners_are_added_up() {
        let counts = sum(&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.2s",
            "5 passed, 1 failed, 2 skipped",
            "7 passed, 0 failed",
        ]);
        assert_eq!(
            counts,
            Counts {
                passed: 25,
                failed: 3,
                not_run: 3
            }
        );
    }

    #[test]
    fn ordinary_lines_count_nothing() {
        let counts = sum(&[
            "test a ... ok",
            "test b ... FAILED",
            "test c ... ignored, all 2^32 pairs take minutes",
            "2 passed the gate",
            "took 3 s, 4 ms",
            "",
        ]);
        assert_eq!(counts, Counts::default());
    }
}
