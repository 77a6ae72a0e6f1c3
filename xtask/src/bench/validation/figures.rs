//! What the programs say of their figures, and what pairs of them say together. Pure.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// How far ours may be from the plain program's.
pub(super) const TOLERANCE: f64 = 0.1;

/// What a program says of its figures, by name.
pub(super) type Values = BTreeMap<String, f64>;

/// A figure of both.
pub(super) struct Figure {
    /// What the program calls it.
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// What the check calls it.
    pub(super) device: &'static str,
}

pub(super) const fn figure(name: &'static str, unit: &'static str, device: &'static str) -> Figure {
    Figure { name, unit, device }
}

/// What both said, one after the other.
pub(super) struct Pair {
    pub(super) ours: Values,
    pub(super) plain: Values,
    pub(super) is_quiet: bool,
}

/// The validator's lines of JSON, by device.
pub(super) fn read_ours(text: &str) -> Result<Values> {
    let read = |line: &str| {
        let result: Value = serde_json::from_str(line).context("failed to read a result")?;
        let outcome = &result["outcome"];
        let Some(value) = outcome["measured"]["value"].as_f64() else {
            bail!("the check measured nothing: {outcome}");
        };
        Ok((
            result["device"].as_str().unwrap_or_default().to_owned(),
            value,
        ))
    };
    text.lines().map(read).collect()
}

/// The plain programs' lines: a name and a number.
pub(super) fn read_plain(text: &str) -> Result<Values> {
    let read = |line: &str| {
        let (name, value) = line
            .rsplit_once(' ')
            .context("a figure has a name and a value")?;
        let value = value
            .parse()
            .with_context(|| format!("{value:?} is no number"))?;
        Ok((name.to_owned(), value))
    };
    text.lines().map(read).collect()
}

/// How many pairs nobody disturbed.
pub(super) fn quiet(pairs: &[Pair]) -> usize {
    pairs.iter().filter(|pair| pair.is_quiet).count()
}

/// A line of the table: medians of the quiet pairs, or of all where none was quiet.
pub(super) fn row(check: &str, figure: &Figure, pairs: &[Pair]) -> Result<String> {
    let count = quiet(pairs);
    let counted = || pairs.iter().filter(|pair| pair.is_quiet || count == 0);
    let (ours, plain) = (
        median(counted().filter_map(|pair| pair.ours.get(figure.device).copied())),
        median(counted().filter_map(|pair| pair.plain.get(figure.name).copied())),
    );
    let ratio = ours / plain;
    if !ratio.is_finite() {
        bail!(
            "{check}, {}: no such figure, ours {ours}, plain {plain}",
            figure.name
        );
    }
    let bar = if (ratio - 1.0).abs() <= TOLERANCE {
        "ok"
    } else {
        "missed"
    };
    let (name, unit, of) = (figure.name, figure.unit, pairs.len());
    let pairs = format!("{count} of {of}");
    Ok(format!(
        "{check:<16} {name:<10} {unit:>5} {ours:>9.3} {plain:>9.3} {ratio:>6.3}  {pairs:<12} {bar}"
    ))
}

/// The middle one, or the mean of the middle two; of nothing NaN.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let count = values.len();
    match count {
        0 => f64::NAN,
        _ => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ours: f64, plain: f64, is_quiet: bool) -> Pair {
        Pair {
            ours: Values::from([("numa 0".to_owned(), ours)]),
            plain: Values::from([("triad".to_owned(), plain)]),
            is_quiet,
        }
    }

    #[test]
    fn both_programs_figures_are_read_and_what_is_none_is_an_error() {
        let text =
            r#"{"check":"Disk","device":"write","outcome":{"measured":{"value":0.5,"runs":1}}}"#;
        assert_eq!(read_ours(text).unwrap()["write"], 0.5);
        let text = r#"{"check":"CpuFrequency","outcome":{"measured":{"value":3,"runs":1}}}"#;
        assert_eq!(read_ours(text).unwrap()[""], 3.0);
        let text = r#"{"check":"Gpu","outcome":{"skipped":{"detail":"later"}}}"#;
        assert!(read_ours(text).unwrap_err().to_string().contains("later"));
        let plain = read_plain("one core 2.5\nall cores 2.25\n").unwrap();
        assert_eq!(plain["all cores"], 2.25);
        assert!(read_plain("one core fast").is_err());
    }

    #[test]
    fn quiet_pairs_count_alone_and_the_bar_is_a_tenth_either_way() {
        let triad = figure("triad", "GB/s", "numa 0");
        let row = |pairs: &[Pair]| row("MemoryBandwidth", &triad, pairs).unwrap();
        let all = [
            pair(9.1, 10.0, true),
            pair(1.0, 10.0, false),
            pair(9.3, 10.0, true),
        ];
        assert!(
            row(&all).ends_with("0.920  2 of 3       ok"),
            "{}",
            row(&all)
        );
        assert!(row(&[pair(8.9, 10.0, false)]).ends_with("0.890  0 of 1       missed"));
        assert!(row(&[pair(11.2, 10.0, true)]).ends_with("missed"));
        assert!(super::row("Disk", &figure("read", "GB/s", "read"), &all).is_err());
    }

    #[test]
    fn the_middle_counts() {
        assert_eq!(median([3.0, 1.0, 9.0].into_iter()), 3.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
