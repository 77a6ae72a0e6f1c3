//! Seeds of randomised tests: a fixed set by default, one or more from the environment, always printed on failure.

use crate::rng::Rng;

/// Runs `case` for seeds `0..count`. `SEED=n` runs that one alone, `SIM_SEEDS=n` (set by `cargo xtask sim`)
/// runs `n` times as many. A failing case prints the line that replays it.
#[expect(
    clippy::disallowed_methods,
    reason = "tests take their seed from the environment"
)]
pub fn for_each_seed(count: u64, mut case: impl FnMut(&mut Rng)) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok())
    };
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..count * number("SIM_SEEDS").unwrap_or(1),
    };
    for seed in seeds {
        let announce = Announce { seed };
        case(&mut Rng::new(seed));
        drop(announce);
    }
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
