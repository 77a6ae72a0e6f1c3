//! What stable results cost: a job that goes on after losses hands a result over only when no loss can take it back. No bar:
//! the job chooses it with `onPeerLoss`, and this is what it pays.

use super::{Results, Short, case, side};
use crate::hfreduce::case::{STABLE_LOADS, STABLE_SHAPE, TCP, TCP_STABLE};

/// A time against that of a contender who pays for less.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) about: String,
    /// The ratio, or why there is none.
    pub(crate) value: Result<f64, String>,
    /// What was compared.
    pub(crate) sides: String,
    /// Whether others may have changed it.
    pub(crate) noisy: bool,
}

/// Of every load.
pub(crate) fn costs(results: &Results) -> Vec<Cost> {
    let each = STABLE_LOADS.map(|load| {
        let case = case(STABLE_SHAPE, load);
        let about = format!("{case}: {TCP_STABLE} against {TCP}");
        let both = || Ok((side(results, case, TCP_STABLE)?, side(results, case, TCP)?));
        match both() {
            Ok((stable, plain)) => Cost {
                about,
                value: Ok(stable.time.as_secs_f64() / plain.time.as_secs_f64()),
                sides: format!("{} : {}", Short(stable.time), Short(plain.time)),
                noisy: stable.noisy || plain.noisy,
            },
            Err(why) => Cost {
                about,
                value: Err(why),
                sides: String::new(),
                noisy: false,
            },
        }
    });
    each.into()
}
