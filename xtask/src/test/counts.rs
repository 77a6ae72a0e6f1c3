//! Adds up what the stages' runners say: their closing lines, and while one is under way its tests one by
//! one, so that a runner that is ended has still printed what it had done.

use std::ops::AddAssign;

use super::plan::LEFT_OUT;

/// Sum over all runners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) not_run: u64,
    /// Units that the plan does not run.
    pub(super) left_out: u64,
}

/// Counts what a stage prints, line by line.
#[derive(Debug, Default)]
pub(super) struct Counter {
    /// Of runners that have ended.
    ended: Counts,
    /// Tests of a runner whose closing line has not come.
    under_way: Counts,
}

impl Counter {
    pub(super) fn read(&mut self, line: &str) {
        if line.starts_with(LEFT_OUT) {
            self.ended.left_out += 1;
        } else if let Some(sum) = closing(line) {
            self.ended += sum;
            self.under_way = Counts::default();
        } else if is_opening(line) {
            // The one before broke off.
            self.ended = self.counts();
            self.under_way = Counts::default();
        } else {
            self.under_way += test(line);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut sum = self.ended;
        sum += self.under_way;
        sum
    }
}

/// What a runner's closing line says.
///
/// cargo test says `test result: ok. 3 passed; 0 failed; 1 ignored; …`, our runners say
/// `3 passed, 0 failed, 1 skipped`.
fn closing(line: &str) -> Option<Counts> {
    let text = line.strip_prefix("test result: ").map_or(line, |rest| {
        rest.split_once(". ").map_or(rest, |(_, numbers)| numbers)
    });
    let mut found = Counts::default();
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
    (parts >= 2).then_some(found)
}

/// cargo test's `running 3 tests`.
fn is_opening(line: &str) -> bool {
    line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test"))
}

/// One test in the words of cargo test, of unittest or of the scenarios: `test a ... ok`.
fn test(line: &str) -> Counts {
    let mut one = Counts::default();
    let Some((_, how)) = line.rsplit_once(" ... ") else {
        return one;
    };
    match how.split([' ', ',', ':']).next().unwrap_or_default() {
        "ok" => one.passed = 1,
        "FAILED" | "FAIL" | "ERROR" => one.failed = 1,
        "ignored" | "skipped" => one.not_run = 1,
        "not" if how.starts_with("not run") => one.not_run = 1,
        _ => {}
    }
    one
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.not_run += other.not_run;
        self.left_out += other.left_out;
    }
}

#[cfg(test)]
mod tests {
    use super::{Counter, Counts};

    fn check(lines: &[&str], passed: u64, failed: u64, not_run: u64) {
        let mut counter = Counter::default();
        lines.iter().for_each(|line| counter.read(line));
        let expected = Counts {
            passed,
            failed,
            not_run,
            left_out: 0,
        };
        assert_eq!(counter.counts(), expected);
    }

    #[test]
    fn closing_lines_of_cargo_and_of_our_runners_are_added_up() {
        let lines = [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.2s",
            "5 passed, 1 failed, 2 skipped",
            "7 passed, 0 failed",
        ];
        check(&lines, 25, 3, 3);
    }

    #[test]
    fn tests_are_not_counted_again_by_their_closing_line() {
        let lines = [
            "running 2 tests",
            "test a ... ok",
            "test b ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ];
        check(&lines, 1, 1, 0);
    }

    #[test]
    fn a_runner_that_is_ended_counts_what_it_had_done() {
        let lines = [
            "running 9 tests",
            "test a ... ok",
            "test b - should panic ... ok",
            "test c ... ignored, all 2^32 pairs take minutes",
            // It broke off; here begins the next.
            "running 9 tests",
            "test d ... FAILED",
            "test slow has been running for over 60 seconds",
        ];
        check(&lines, 2, 1, 1);
        let scenarios = [
            "test trains_to_accuracy ... ok (41.2 s)",
            "test survives ... FAILED (90.0 s)",
            "test trains_to_accuracy ... not run: needs Docker and kind",
        ];
        check(&scenarios, 1, 1, 1);
        let unittest = [
            "test_a (test_gang.Gang.test_a) ... ok",
            "test_b (test_gang.Gang.test_b) ... FAIL",
            "test_c (test_gang.Gang.test_c) ... ERROR",
            "test_d (test_gang.Gang.test_d) ... skipped 'no image'",
        ];
        check(&unittest, 1, 2, 1);
    }

    #[test]
    fn units_that_are_left_out_are_counted_and_are_no_tests() {
        let mut counter = Counter::default();
        counter.read("left out: link tests/fuzz/main.rs: its turn is in 2 commits");
        counter.read("test a ... ok");
        let counts = counter.counts();
        assert_eq!((counts.left_out, counts.passed, counts.not_run), (1, 1, 0));
    }

    #[test]
    fn ordinary_lines_count_nothing() {
        let lines = [
            "2 passed the gate",
            "took 3 s, 4 ms",
            "waiting ... not yet",
            "running 3 nodes",
            "",
        ];
        check(&lines, 0, 0, 0);
    }
}
