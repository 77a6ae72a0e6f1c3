//! Bars: what has to hold, and how it is shown. What is compared with what is each bench's own.

use serde_json::{Value, json};

/// What is wanted of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Want {
    AtLeast(f64),
    AtMost(f64),
}

impl Want {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

/// How its values are written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Times,
    Percent,
    Milliseconds,
}

impl Unit {
    fn write(self, value: f64) -> String {
        match self {
            Self::Times => format!("{value:.2} x"),
            Self::Percent => format!("{:.1} %", value * 100.0),
            Self::Milliseconds => format!("{value:.2} ms"),
        }
    }
}

/// One bar and what became of it.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) about: String,
    pub(crate) want: Want,
    pub(crate) unit: Unit,
    /// The value, or why there is none.
    pub(crate) value: Result<f64, String>,
    /// Why it is measured here and not judged.
    pub(crate) unjudged: Option<String>,
    /// What was compared.
    pub(crate) sides: String,
    /// Whether others may have changed it.
    pub(crate) noisy: bool,
}

impl Bar {
    pub(crate) fn holds(&self) -> Option<bool> {
        let value = self.value.as_ref().ok();
        let judged = value.filter(|_| self.unjudged.is_none());
        judged.map(|value| self.want.holds(*value))
    }

    pub(crate) fn wanted(&self) -> String {
        let (sign, bar) = match self.want {
            Want::AtLeast(bar) => (">=", bar),
            Want::AtMost(bar) => ("<=", bar),
        };
        format!("{sign} {}", self.unit.write(bar))
    }

    pub(crate) fn seen(&self) -> String {
        match &self.value {
            Ok(value) => self.unit.write(*value),
            Err(_) => "-".to_owned(),
        }
    }
}

/// Prints them as a table.
pub(crate) fn print(bars: &[Bar]) {
    println!(
        "\nbars\n  {:<72} {:>10} {:>10}  {:<8} sides",
        "what", "wanted", "seen", "holds"
    );
    for bar in bars {
        let holds = match (bar.holds(), bar.noisy) {
            (Some(true), false) => "yes",
            (Some(true), true) => "yes !",
            (Some(false), false) => "NO",
            (Some(false), true) => "NO !",
            (None, _) if bar.value.is_ok() => "-",
            (None, _) => "not run",
        };
        let mut sides = bar.value.as_ref().err().unwrap_or(&bar.sides).clone();
        if let (Ok(_), Some(why)) = (&bar.value, &bar.unjudged) {
            sides += &format!("; not judged: {why}");
        }
        println!(
            "  {:<72} {:>10} {:>10}  {holds:<8} {sides}",
            bar.about,
            bar.wanted(),
            bar.seen()
        );
    }
}

/// The bars, for a file.
pub(crate) fn json(bars: &[Bar]) -> Value {
    let bars = bars.iter().map(|bar| {
        json!({
            "about": bar.about,
            "wanted": bar.wanted(),
            "value": bar.value.as_ref().ok(),
            "holds": bar.holds(),
            "noisy": bar.noisy,
            "sides": bar.sides,
            "notJudged": bar.unjudged,
            "notRun": bar.value.as_ref().err(),
        })
    });
    bars.collect()
}
