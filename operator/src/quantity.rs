//! Kubernetes quantities as numbers, to compare them: what nodes offer with what classes ask for.

/// What decimal and binary suffixes stand for: a factor, as numerator and denominator.
const SUFFIXES: [(&str, u128, u128); 16] = [
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1000),
    ("k", 1000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
    ("", 1, 1),
];

/// A quantity in thousandths, rounded down; none if it is negative, too large or none at all.
pub fn milli(text: &str) -> Option<u128> {
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (factor, divisor) = factor(suffix)?;
    let places = u32::try_from(fraction.len()).ok()?;
    let all: u128 = format!("{whole}{fraction}").parse().ok()?;
    let parts = 10_u128.checked_pow(places)?.checked_mul(divisor)?;
    Some(all.checked_mul(factor)?.checked_mul(1000)? / parts)
}

fn factor(suffix: &str) -> Option<(u128, u128)> {
    let known = SUFFIXES.iter().find(|(known, ..)| *known == suffix);
    if let Some((_, factor, divisor)) = known {
        return Some((*factor, *divisor));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    Some(match exponent {
        ..0 => (1, power),
        0.. => (power, 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_every_form_are_read() {
        for (text, expected) in [
            ("8", 8000),
            ("0", 0),
            ("500m", 500),
            ("1.5", 1500),
            (".5", 500),
            ("2k", 2_000_000),
            ("1Ki", 1_024_000),
            ("400Gi", 400 * (1 << 30) * 1000),
            ("0.5Mi", (1 << 19) * 1000),
            ("1e3", 1_000_000),
            ("12E2", 1_200_000),
            ("5e-1", 500),
            ("1E", 1_000_000_000_000_000_000_000),
            ("100u", 0),
            ("1500000n", 1),
        ] {
            assert_eq!(milli(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_not_read() {
        for text in [
            "", ".", "-1", "1 Gi", "1gi", "Gi", "1.2.3", "1e", "1e99", "9e40",
        ] {
            assert_eq!(milli(text), None, "{text}");
        }
    }
}
