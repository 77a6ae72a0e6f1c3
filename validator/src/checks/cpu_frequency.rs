//! How fast cores are clocked: cycles of a chain of instructions that wait for each other, against
//! the clock. One core after the other, then all at once, as limits of power, of heat and of the
//! container show only then.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use health::{Check, CheckResult, median};

use super::{CheckContext, measured};
use crate::{log, machine};

/// Most cores that are measured one by one, spread over all.
const MAX_CORES: usize = 16;
/// Links of a chain between two looks at the clock: some 30 us.
const LINKS: u64 = 50_000;
/// Each link is an exclusive or, then an addition: a cycle each on every core that we know.
const CYCLES_PER_LINK: u64 = 2;
/// Part of a core's time in which it comes to speed.
const WARM_UP: u32 = 5;

pub(super) fn run(context: &CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let cores = machine::cores()?;
    let some = spread(&cores, MAX_CORES);
    // All at once is one more part.
    let each = context.budget / u32::try_from(some.len() + 1).unwrap_or(u32::MAX);
    let mut alone = Vec::with_capacity(some.len());
    for core in some {
        alone.extend(machine::on_each(&[core], |core| report(core, each))?);
    }
    let together = machine::on_each(&cores, |_| gigahertz(each))?;
    Ok(vec![
        measured(Check::CpuFrequency, "", median(&alone)),
        measured(Check::CpuFrequency, "all cores", median(&together)),
    ])
}

/// Measures a core, with what the kernel says beside it in the log.
fn report(core: usize, window: Duration) -> f64 {
    let value = gigahertz(window);
    let path = format!("cpu/cpu{core}/cpufreq/scaling_cur_freq");
    match machine::text(Path::new(machine::SYSTEM).join(path)).parse::<f64>() {
        Ok(khz) => log(&format!(
            "core {core}: {value:.3} GHz, the kernel says {:.3}",
            khz / 1e6
        )),
        Err(_) => log(&format!("core {core}: {value:.3} GHz")),
    }
    value
}

/// The clock of this thread's core.
fn gigahertz(window: Duration) -> f64 {
    cycles(window / WARM_UP);
    let started = Instant::now();
    let cycles = cycles(window - window / WARM_UP);
    // All of the time counts, also that in which the kernel let it wait.
    cycles as f64 / started.elapsed().as_nanos() as f64
}

fn cycles(window: Duration) -> u64 {
    // Values that the compiler does not know, so that it cannot shorten the chain.
    let (mask, step) = (
        black_box(0x5555_5555_5555_5555),
        black_box(0x9e37_79b9_7f4a_7c15),
    );
    let started = Instant::now();
    let (mut value, mut links) = (black_box(1_u64), 0);
    loop {
        for _ in 0..LINKS {
            value = (value ^ mask).wrapping_add(step);
        }
        value = black_box(value);
        links += LINKS;
        if started.elapsed() >= window {
            return links * CYCLES_PER_LINK;
        }
    }
}

/// At most so many, spread over all.
fn spread(cores: &[usize], most: usize) -> Vec<usize> {
    let count = cores.len().min(most);
    (0..count)
        .map(|one| cores[one * cores.len() / count])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{small, values};
    use super::*;

    #[test]
    fn a_clock_is_between_that_of_old_and_of_impossible_cores() {
        let values = values(Check::CpuFrequency, &small(Path::new("/")));
        assert_eq!(values.len(), 2);
        // Somebody else may have most of this machine.
        for (device, ghz) in values {
            assert!((0.001..8.0).contains(&ghz), "{device}: {ghz} GHz");
        }
    }

    #[test]
    fn few_cores_stand_for_all() {
        assert_eq!(spread(&[4, 5, 6], 16), [4, 5, 6]);
        let all: Vec<_> = (0..128).collect();
        let some = spread(&all, 16);
        assert_eq!((some.len(), some[0], some[1], some[15]), (16, 0, 8, 120));
    }
}
