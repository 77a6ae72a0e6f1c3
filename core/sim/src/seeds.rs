//! Seeds of randomised tests: a fixed set by default, one or more from the environment, always printed on failure.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::rng::Rng;

/// Runs `case` for seeds `0..count`, or for the one in `SEED` alone. A failing case prints the line that replays it.
pub fn for_each_seed(count: u64, case: impl FnMut(&mut Rng)) {
    run_seeds(count, None, case);
}

/// The same, and with `SIM_SECONDS=n` goes on with new seeds for that long; counts the runs and these seconds. For the one test of a suite
/// that draws everything at random.
pub fn explore(count: u64, case: impl FnMut(&mut Rng)) {
    let longer = number("SIM_SECONDS").map(Duration::from_secs);
    print_count("runs", run_seeds(count, longer, case));
    if let Some(longer) = longer {
        print_count("seconds", longer.as_secs());
    }
}

/// Prints how often something happened, in the form that `cargo xtask sim` adds up.
#[expect(clippy::print_stdout, reason = "the counts are the result")]
pub fn print_count(what: &str, count: u64) {
    println!("counted {count} {what}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "exploration is as long as it is told"
)]
fn run_seeds(count: u64, longer: Option<Duration>, mut case: impl FnMut(&mut Rng)) -> u64 {
    let mut run = |seed| {
        let announce = Announce { seed };
        case(&mut Rng::new(seed));
        drop(announce);
    };
    if let Some(seed) = number("SEED") {
        run(seed);
        return 1;
    }
    (0..count).for_each(&mut run);
    let Some(longer) = longer else {
        return count;
    };
    let end = Instant::now() + longer;
    // Never the same seeds again: the clock chooses where to start.
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let first = since_epoch.as_secs() << 24;
    let more = (first..)
        .take_while(|_| Instant::now() < end)
        .inspect(|&seed| run(seed))
        .count();
    count + more as u64
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests take seed and length from the environment"
)]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Prints the seed when a case panics.
struct Announce {
    seed: u64,
}

impl Drop for Announce {
    #[expect(
        clippy::print_stderr,
        reason = "the seed of a failed test has to be seen"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SEED={} replays this", self.seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_gets_its_own_stream() {
        let mut first = Vec::new();
        for_each_seed(3, |rng| first.push(rng.next_u64()));
        first.dedup();
        assert!(
            first.len() == 3 || first.len() == 1,
            "three by default, one when SEED is set"
        );
    }
}
