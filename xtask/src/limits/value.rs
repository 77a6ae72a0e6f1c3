//! Values of constants: evaluates the few forms that limits are written in, and shows the result
//! in the unit that a person would use.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

/// Unit of a limit's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit<'a> {
    Bytes,
    Seconds,
    Nanoseconds,
    Counted(&'a str),
}

/// Evaluates numbers, `<<`, `*`, `+`, `-`, `as TYPE`, `Duration::from_...` and names of `known`,
/// from left to right. A `Duration` is in nanoseconds.
pub(super) fn evaluate(expression: &str, known: &BTreeMap<String, u128>) -> Result<u128> {
    let mut words = expression.split_whitespace();
    let first = words.next().context("it has no value")?;
    let mut value = term(first, known)?;
    while let Some(operator) = words.next() {
        let word = words.next().context("its value ends early")?;
        if operator == "as" {
            continue;
        }
        let right = term(word, known)?;
        value = match operator {
            "<<" => u32::try_from(right)
                .ok()
                .and_then(|bits| value.checked_shl(bits)),
            "*" => value.checked_mul(right),
            "+" => value.checked_add(right),
            "-" => value.checked_sub(right),
            _ => None,
        }
        .with_context(|| format!("cannot read {expression:?}"))?;
    }
    Ok(value)
}

fn term(word: &str, known: &BTreeMap<String, u128>) -> Result<u128> {
    let nanoseconds = |argument: &str, factor: u128| {
        let count = evaluate(argument.trim_end_matches(')'), known)?;
        Ok(count * factor)
    };
    if let Some(call) = word.strip_prefix("Duration::from_") {
        let (unit, argument) = call.split_once('(').context("a Duration without a value")?;
        return match unit {
            "millis" => nanoseconds(argument, 1_000_000),
            "secs" => nanoseconds(argument, 1_000_000_000),
            "mins" => nanoseconds(argument, 60_000_000_000),
            "hours" => nanoseconds(argument, 3_600_000_000_000),
            _ => bail!("cannot read {word:?}"),
        };
    }
    let number = word.replace('_', "");
    match number.parse() {
        Ok(number) => Ok(number),
        Err(_) => known
            .get(word)
            .copied()
            .with_context(|| format!("{word:?} is neither a number nor a limit above it")),
    }
}

pub(super) fn show(value: u128, unit: Unit<'_>) -> String {
    const BYTES: &[(u128, &str)] = &[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    const TIMES: &[(u128, &str)] = &[
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
    ];
    match unit {
        Unit::Bytes => in_units(value, BYTES, "bytes"),
        Unit::Seconds => in_units(value * 1_000_000_000, TIMES, "ns"),
        Unit::Nanoseconds if value < 1_000_000_000 => format!("{} ms", value / 1_000_000),
        Unit::Nanoseconds => in_units(value, TIMES, "ns"),
        Unit::Counted(what) => format!("{} {what}", in_thousands(value)),
    }
}

/// The value in the largest unit that divides it.
fn in_units(value: u128, units: &[(u128, &str)], least: &str) -> String {
    let unit = units
        .iter()
        .find(|(size, _)| value >= *size && value.is_multiple_of(*size));
    match unit {
        Some((size, unit)) => format!("{} {unit}", in_thousands(value / size)),
        None => format!("{} {least}", in_thousands(value)),
    }
}

fn in_thousands(value: u128) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
