//! The bars: what has to hold against the rivals and the machine's limits, as ratios within one run. A bar whose two
//! sides were not both measured is neither held nor missed.

mod stable;

use std::fmt;
use std::time::Duration;

use crate::bar::{Bar, Unit, Want};
use crate::hfreduce::case::{
    Case, Contender, DType, Exchange, GLOO, INTEL_MPI_SHM, INTEL_MPI_TCP, LAYERS, Load, POOL_CASE,
    POOLS, STEP_SHAPE, Shape, TCP, TCP_BITWISE, TCP_COPIES, TCP_UNCHECKED, kib, mib, shape, step,
};
use crate::hfreduce::limits::{self, Limit};
use crate::hfreduce::results::{Results, is_noisy};
use crate::machine;
use crate::sample::Sample;
pub(crate) use stable::costs;

/// The floor of 2 x 1 over TCP: the processor-seconds per GB of the leanest program that does as much. Where others use
/// the machine too, or nodes share it, that says more than a time.
pub(crate) fn floor(results: &Results) -> Result<Sample, String> {
    let mut least: Option<Sample> = None;
    for kib in limits::LEAN_PIECES {
        let one = measured(results, Limit::Lean(kib))?;
        if least.is_none_or(|least| one.value < least.value) {
            least = Some(one);
        }
    }
    least.ok_or_else(|| "it was not measured".to_owned())
}

fn measured(results: &Results, limit: Limit) -> Result<Sample, String> {
    let sample = results.limit(limit);
    sample.ok_or_else(|| format!("{limit} was not measured"))
}

/// Every bar.
pub(crate) fn all(results: &Results) -> Vec<Bar> {
    let (one, four, thirty_two) = (shape(2, 1), shape(2, 4), shape(4, 8));
    let large = mib(186);
    let against =
        |shape, load, ours, theirs, bar| faster(results, (shape, load), (ours, theirs), bar);
    let mut bars = vec![
        against(one, large, TCP, GLOO, 1.8),
        only_on_intel(against(one, large, TCP, INTEL_MPI_TCP, 1.5)),
        of_floor(results, one, large),
        against(four, large, TCP, GLOO, 5.0),
        against(four, large, TCP_COPIES, GLOO, 2.2),
        against(thirty_two, mib(64), TCP, GLOO, 8.0),
        against(thirty_two, mib(64), TCP, INTEL_MPI_SHM, 1.8),
        against(one, kib(4), TCP, GLOO, 5.0),
    ];
    for shape in [one, four] {
        for dtype in [DType::F16, DType::Bf16] {
            bars.push(per_byte(results, shape, dtype));
        }
    }
    for shape in [one, four] {
        for dtype in [DType::F32, DType::Bf16] {
            bars.push(of_fast(results, shape, dtype));
        }
    }
    for exchange in [Exchange::Backend, Exchange::Hook, Exchange::Arena] {
        bars.push(exposed(results, exchange));
    }
    let waiting = || {
        let waiting = results.waiting();
        waiting.ok_or_else(|| "not in this run".to_owned())
    };
    bars.push(Bar {
        about: "a client that waits for another rank, of a core".to_owned(),
        want: Want::AtMost(0.02),
        unit: Unit::Percent,
        value: waiting().map(|waiting| waiting.client),
        unjudged: None,
        sides: String::new(),
        noisy: false,
    });
    bars.push(Bar {
        about: "a sidecar to which nobody speaks, of a core".to_owned(),
        // The kernel counts in hundredths of a second: less than this is nothing.
        want: Want::AtMost(0.005),
        unit: Unit::Percent,
        value: waiting().map(|waiting| waiting.sidecar),
        unjudged: None,
        sides: String::new(),
        noisy: false,
    });
    bars.push(p99(results, thirty_two, kib(4)));
    bars.extend(second_thread(results));
    bars
}

fn case(shape: Shape, load: Load) -> Case {
    let dtype = DType::F32;
    Case { shape, dtype, load }
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) time: Duration,
    noisy: bool,
}

fn side(results: &Results, case: Case, contender: Contender) -> Result<Side, String> {
    match results.figures(case, contender) {
        Some(figures) => Ok(Side {
            time: figures.median,
            noisy: is_noisy(&figures),
        }),
        None => Err(format!("{contender}: {}", results.why_not(case, contender))),
    }
}

impl Bar {
    /// Two times, of which `ratio` makes the value.
    fn compare(
        about: String,
        (want, unit): (Want, Unit),
        own: Result<Side, String>,
        other: Result<Side, String>,
        ratio: impl Fn(f64, f64) -> f64,
    ) -> Self {
        let (value, sides, noisy) = match own.and_then(|own| Ok((own, other?))) {
            Ok((own, other)) => (
                Ok(ratio(own.time.as_secs_f64(), other.time.as_secs_f64())),
                format!("{} : {}", Short(own.time), Short(other.time)),
                own.noisy || other.noisy,
            ),
            Err(why) => (Err(why), String::new(), false),
        };
        Self {
            about,
            want,
            unit,
            value,
            unjudged: None,
            sides,
            noisy,
        }
    }
}

/// How often one contender is done in the other's time.
fn faster(
    results: &Results,
    (shape, load): (Shape, Load),
    (ours, theirs): (Contender, Contender),
    bar: f64,
) -> Bar {
    let case = case(shape, load);
    let [own, other] = [ours, theirs].map(|contender| side(results, case, contender));
    let mut bar = Bar::compare(
        format!("{shape}, {load}: {ours} against {theirs}"),
        (Want::AtLeast(bar), Unit::Times),
        own,
        other.clone(),
        |own, other| other / own,
    );
    // A rival's ranks have results of their own.
    if ours == TCP
        && let (Ok(copies), Ok(other)) = (side(results, case, TCP_COPIES), other)
    {
        let ratio = other.time.as_secs_f64() / copies.time.as_secs_f64();
        bar.sides += &format!("; with copies {ratio:.2} x, {}", Short(copies.time));
    }
    bar
}

/// Elsewhere Intel's library is not at its best.
fn only_on_intel(mut bar: Bar) -> Bar {
    if !machine::is_intel() {
        bar.unjudged = Some("the bar is for Intel's processors".to_owned());
    }
    bar
}

/// Processor-seconds per GB of the leanest program, of ours.
fn of_floor(results: &Results, shape: Shape, load: Load) -> Bar {
    let used = |contender| {
        let case = case(shape, load);
        let Some(figures) = results.figures(case, contender) else {
            return Err(format!("{contender}: {}", results.why_not(case, contender)));
        };
        let seconds = figures.ranks.total() + figures.sidecars.total();
        let each = seconds / (load.total() as f64 / 1e9);
        Ok((each, is_noisy(&figures)))
    };
    let both = || Ok((used(TCP)?, floor(results)?));
    let (value, mut sides, noisy) = match both() {
        Ok(((own, own_noisy), floor)) => (
            Ok(floor.value / own),
            format!("{:.2} : {own:.2} s/GB", floor.value),
            own_noisy || floor.is_noisy(),
        ),
        Err(why) => (Err(why), String::new(), false),
    };
    if let (Ok((unchecked, _)), Ok(floor)) = (used(TCP_UNCHECKED), floor(results)) {
        let share = floor.value / unchecked * 100.0;
        sides += &format!("; {TCP_UNCHECKED} {share:.0} %, {unchecked:.2} s/GB");
    }
    Bar {
        about: format!("{shape}, {load}: {TCP} against the leanest program, processor time a GB"),
        want: Want::AtLeast(0.85),
        unit: Unit::Percent,
        value,
        unjudged: None,
        sides,
        noisy,
    }
}

/// The rate of a smaller type against single precision, as many bytes each.
fn per_byte(results: &Results, shape: Shape, dtype: DType) -> Bar {
    let load = mib(186);
    let small = Case { shape, dtype, load };
    Bar::compare(
        format!(
            "{shape}, {load}: {TCP}, {} a byte against f32",
            dtype.name()
        ),
        (Want::AtLeast(0.95), Unit::Times),
        side(results, small, TCP),
        side(results, case(shape, load), TCP),
        |small, f32| f32 / small,
    )
}

/// What it costs that a sum does not depend on how tensors are cut.
fn of_fast(results: &Results, shape: Shape, dtype: DType) -> Bar {
    let load = mib(186);
    let case = Case { shape, dtype, load };
    Bar::compare(
        format!("{case}: {TCP_BITWISE} against {TCP}"),
        (Want::AtMost(2.2), Unit::Times),
        side(results, case, TCP_BITWISE),
        side(results, case, TCP),
        |bitwise, fast| bitwise / fast,
    )
}

/// What Gloo has to add to a step, of one alone, so that a ratio to it says something: less is within what a step differs by.
const EXPOSED: f64 = 0.1;

/// What communication adds to a training step, against what Gloo's adds.
fn exposed(results: &Results, exchange: Exchange) -> Bar {
    let case = case(STEP_SHAPE, LAYERS);
    let added = |exchange| {
        let (with, alone) = (
            side(results, case, step(exchange))?,
            side(results, case, step(Exchange::Alone))?,
        );
        Ok(Side {
            time: with.time.saturating_sub(alone.time),
            noisy: with.noisy || alone.noisy,
        })
    };
    let gloos = || {
        let gloos = added(Exchange::Gloo)?;
        let alone = side(results, case, step(Exchange::Alone))?;
        let share = gloos.time.as_secs_f64() / alone.time.as_secs_f64();
        if share < EXPOSED {
            let percent = share * 100.0;
            return Err(format!(
                "gloo adds {percent:.0} % to a step: too little to compare with"
            ));
        }
        Ok(gloos)
    };
    let mut bar = Bar::compare(
        format!("{case}: exposed by {}, against gloo's", step(exchange)),
        (Want::AtMost(0.45), Unit::Times),
        added(exchange),
        gloos(),
        |own, other| own / other,
    );
    if exchange == Exchange::Backend {
        let why = "the PyTorch of the trainer's root makes DDP's buckets itself, which costs two copies of a gradient";
        bar.unjudged = Some(why.to_owned());
    }
    bar
}

fn p99(results: &Results, shape: Shape, load: Load) -> Bar {
    let case = case(shape, load);
    let figures = results.figures(case, TCP);
    Bar {
        about: format!("{shape}, {load}: {TCP}, 99 of 100 calls"),
        want: Want::AtMost(5.0),
        unit: Unit::Milliseconds,
        noisy: figures.as_ref().is_some_and(is_noisy),
        value: figures.map_or_else(
            || Err(results.why_not(case, TCP).to_owned()),
            |figures| Ok(figures.p99.as_secs_f64() * 1e3),
        ),
        unjudged: None,
        sides: String::new(),
    }
}

/// What a second thread gains and costs where there is nothing but sums: as much as it gains and costs memcpy in this run.
/// Two threads that wait for the same memory both use their processors meanwhile, whatever they do with it.
fn second_thread(results: &Results) -> [Bar; 2] {
    let [one, two] = POOLS;
    let about = |what| format!("{POOL_CASE}: {two} against {one}, {what}");
    let sides = [one, two].map(|contender| side(results, POOL_CASE, contender));
    let memcpy = [1, 2].map(|threads| measured(results, Limit::Memcpy(threads)));
    let gain = match memcpy {
        [Ok(one), Ok(two)] => Ok(two.value / one.value),
        [Err(why), _] | [_, Err(why)] => Err(why),
    };
    let of_memcpy = |mut bar: Bar, memcpys: Result<f64, String>| {
        if let (Ok(own), Ok(memcpys)) = (&bar.value, &memcpys) {
            bar.sides += &format!(", {own:.2} x, memcpy {memcpys:.2} x");
        }
        bar.value = bar.value.and_then(|own| Ok(own / memcpys?));
        bar
    };
    let [first, second] = sides;
    let gains = Bar::compare(
        about("of what memcpy gains"),
        (Want::AtLeast(0.9), Unit::Times),
        second,
        first,
        |two, one| one / two,
    );
    let used = |contender| {
        let mut side = side(results, POOL_CASE, contender)?;
        let figures = results.figures(POOL_CASE, contender);
        side.time = Duration::from_secs_f64(figures.map_or(0.0, |one| one.sidecars.total()));
        Ok(side)
    };
    let costs = Bar::compare(
        about("processor time of the sidecar, of what it costs memcpy"),
        (Want::AtMost(1.05), Unit::Times),
        used(two),
        used(one),
        |two, one| two / one,
    );
    let memcpys_costs = gain.clone().map(|gain| 2.0 / gain);
    [of_memcpy(gains, gain), of_memcpy(costs, memcpys_costs)]
}

/// A time with three digits that count.
pub(crate) struct Short(pub(crate) Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_secs_f64() * 1e3;
        if milliseconds < 1.0 {
            f.pad(&format!("{:.1} us", milliseconds * 1e3))
        } else if milliseconds < 100.0 {
            f.pad(&format!("{milliseconds:.2} ms"))
        } else {
            f.pad(&format!("{milliseconds:.0} ms"))
        }
    }
}

#[cfg(test)]
mod tests;
