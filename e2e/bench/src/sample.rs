//! A figure of one round, and which rounds speak for all.

use cluster::processors::NOISY;

/// A figure in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) value: f64,
    /// The share of all processors that went to others meanwhile.
    pub(crate) others: f64,
    /// Whether the machine became quiet before.
    pub(crate) quiet: bool,
}

impl Sample {
    /// Whether others may have changed it.
    pub(crate) fn is_noisy(&self) -> bool {
        !self.quiet || self.others > NOISY
    }
}

/// The quiet ones of the rounds, or all when none was quiet.
pub(crate) fn quiet<T: Clone>(samples: &[T], is_noisy: impl Fn(&T) -> bool) -> Vec<T> {
    let quiet: Vec<T> = samples
        .iter()
        .filter(|sample| !is_noisy(sample))
        .cloned()
        .collect();
    if quiet.is_empty() {
        samples.to_vec()
    } else {
        quiet
    }
}

/// The middle one of the rounds.
pub(crate) fn middle<T>(samples: &[T], by: impl Fn(&T) -> f64) -> Option<&T> {
    let mut sorted: Vec<&T> = samples.iter().collect();
    sorted.sort_by(|one, other| by(one).total_cmp(&by(other)));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::{middle, quiet};

    #[test]
    fn the_round_in_the_middle_speaks_for_all() {
        assert_eq!(middle(&[3.0, 9.0, 1.0], |value| *value), Some(&3.0));
        assert_eq!(middle(&[5.0], |value| *value), Some(&5.0));
        assert_eq!(middle(&[] as &[f64], |value| *value), None);
    }

    #[test]
    fn noisy_rounds_count_only_where_none_was_quiet() {
        assert_eq!(quiet(&[1, 20, 3], |value| *value > 10), [1, 3]);
        assert_eq!(quiet(&[10, 20], |value| *value > 5), [10, 20]);
    }
}
