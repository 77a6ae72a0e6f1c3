//! Seeds of randomised tests: some fixed, some drawn from the commit that is tested, one or more from the environment,
//! always printed on failure.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::rng::Rng;

/// The most seeds of [`explore`] that are the same in every run.
const FIXED: u64 = 200;

/// Runs `case` for seeds `0..count`, or for the one in `SEED` alone. A failing case prints the line that replays it.
pub fn for_each_seed(count: u64, case: impl FnMut(&mut Rng)) {
    run_seeds(0..count, None, case);
}

/// Runs `case` for `count` seeds: 200 fixed ones, those that once failed, and the rest drawn from the commit whose hash
/// begins with `SIM_COMMIT`. With `SIM_SECONDS=n` it goes on with new seeds for that long; counts the runs and these
/// seconds. For the tests of a suite that draw everything at random.
pub fn explore(count: u64, failed: &[u64], case: impl FnMut(&mut Rng)) {
    let longer = number("SIM_SECONDS").map(Duration::from_secs);
    let commit = text("SIM_COMMIT");
    let seeds = seeds(count, failed, commit.as_deref());
    print_count("runs", run_seeds(seeds, longer, case));
    if let Some(longer) = longer {
        print_count("seconds", longer.as_secs());
    }
}

/// Whether one seed is replayed: what all together have to show, one need not.
pub fn is_replay() -> bool {
    number("SEED").is_some()
}

/// Prints how often something happened, in the form that `cargo xtask sim` adds up.
#[expect(clippy::print_stdout, reason = "the counts are the result")]
pub fn print_count(what: &str, count: u64) {
    println!("counted {count} {what}");
}

/// The seeds of an exploration. Without a commit the drawn ones are those that follow the fixed.
fn seeds(count: u64, failed: &[u64], commit: Option<&str>) -> impl Iterator<Item = u64> {
    let fixed = count.min(FIXED);
    let drawn = count - fixed;
    let hash = commit.and_then(|hash| u64::from_str_radix(hash.get(..10)?, 16).ok());
    let first = hash.map_or(fixed, |hash| hash << 24);
    (0..fixed)
        .chain(failed.iter().copied())
        .chain(first..first + drawn)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a variable says how long exploration takes"
)]
fn run_seeds(
    seeds: impl Iterator<Item = u64>,
    longer: Option<Duration>,
    mut case: impl FnMut(&mut Rng),
) -> u64 {
    let mut run = |seed| {
        let announce = Announce { seed };
        case(&mut Rng::new(seed));
        drop(announce);
    };
    if let Some(seed) = number("SEED") {
        run(seed);
        return 1;
    }
    let count = seeds.inspect(|&seed| run(seed)).count() as u64;
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
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str) -> Option<u64> {
    text(name)?.trim().parse().ok()
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
    fn two_hundred_seeds_are_fixed_and_the_commit_draws_the_rest() {
        let of = |commit| seeds(1000, &[7777], commit).collect::<Vec<_>>();
        let (one, other) = (of(Some("0a1b2c3d4e5f")), of(Some("ffffffffff")));
        assert_eq!((one.len(), other.len()), (1001, 1001));
        assert!((0..200).chain([7777]).eq(one[..201].iter().copied()));
        assert_eq!(one[..201], other[..201]);
        assert!(one[201..].iter().all(|seed| !other.contains(seed)));
        assert_eq!(of(Some("0a1b2c3d4e")), one);
    }

    #[test]
    fn without_a_commit_all_seeds_are_fixed() {
        assert!(seeds(1000, &[], None).eq(0..1000));
        assert!(seeds(1000, &[], Some("not a hash")).eq(0..1000));
        assert!(seeds(60, &[], Some("0a1b2c3d4e")).eq(0..60));
    }

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
