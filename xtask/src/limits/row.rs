//! A row: a constant of a `limits.rs` or `limits.py` with its doc comment.

use anyhow::{Context as _, Result, bail};

use super::value::Unit;
use crate::tidy::File;

/// A limit as its file declares it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// The words that say what it bounds: the doc comment up to its list.
    pub(super) about: String,
    pub(super) expression: String,
    is_time: bool,
    unit: Option<String>,
    pub(super) at: At,
    /// The words of the list that `at` was read from.
    pub(super) at_text: String,
    pub(super) metric: Option<String>,
    pub(super) test: String,
}

/// Effect of a limit on whoever reaches it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum At {
    Waits,
    Refused { words: String },
    Slowed,
    Dropped,
    Ends,
}

impl At {
    /// Reads `refused, "words"`, or one of the other words, with more text behind a comma or colon.
    fn read(text: &str) -> Result<Self> {
        let word = text.split([',', ':', ' ', '.']).next().unwrap_or_default();
        Ok(match word {
            "waits" => Self::Waits,
            "slowed" => Self::Slowed,
            "dropped" => Self::Dropped,
            "ends" => Self::Ends,
            "refused" => {
                let words = text.split('"').nth(1);
                let words = words.context("`refused` needs the error's words in quotes")?;
                Self::Refused {
                    words: words.to_owned(),
                }
            }
            _ => bail!("{text:?} is none of waits, refused, slowed, dropped, ends"),
        })
    }
}

impl Row {
    pub(super) fn unit(&self) -> Result<Unit<'_>> {
        Ok(match &self.unit {
            Some(unit) => Unit::Counted(unit),
            None if self.is_time => Unit::Nanoseconds,
            None if self.name.ends_with("_SECONDS") => Unit::Seconds,
            None if self.name.ends_with("_BYTES") => Unit::Bytes,
            None => bail!("its list has no `Unit`"),
        })
    }
}

/// All rows of a file, in its order. Anything but constants is an error.
pub(super) fn rows(file: &File) -> Result<Vec<Row>> {
    let (comment, end) = if file.path.ends_with(".py") {
        ("#:", '\n')
    } else {
        ("///", ';')
    };
    let mut rows = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    let mut rest = file.text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        if let Some(text) = line.strip_prefix(comment) {
            doc.push(text.strip_prefix(' ').unwrap_or(text));
            rest = after;
        } else if is_skipped(line) {
            rest = after;
        } else {
            let Some((statement, after)) = rest.split_once(end) else {
                bail!("{}: {line:?} has no end", file.path);
            };
            let row = row(statement, &doc).with_context(|| {
                format!("{}: {line:?} is not a limit that can be read", file.path)
            })?;
            rows.push(row);
            doc.clear();
            rest = after.strip_prefix('\n').unwrap_or(after);
        }
    }
    Ok(rows)
}

fn is_skipped(line: &str) -> bool {
    let line = line.trim();
    line.is_empty()
        || ["//!", "use ", "#[", "\"\"\"", "from ", "import "]
            .iter()
            .any(|start| line.starts_with(start))
}

fn row(statement: &str, doc: &[&str]) -> Result<Row> {
    let (left, expression) = statement.split_once('=').context("it has no value")?;
    let (left, declared) = left.split_once(':').unwrap_or((left, ""));
    let name = left.split_whitespace().next_back().unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        bail!("{name:?} is no constant's name");
    }
    let list = doc.iter().position(|line| line.starts_with("- "));
    let (about, list) = doc.split_at(list.unwrap_or(doc.len()));
    let mut unit = None;
    let mut at = None;
    let mut metric = None;
    let mut test = None;
    for item in list.join(" ").split("- ").skip(1) {
        let (key, value) = item
            .trim()
            .split_once(": ")
            .context("an item has no `: `")?;
        let slot = match key {
            "Unit" => &mut unit,
            "At the limit" => &mut at,
            "Metric" => &mut metric,
            "Test" => &mut test,
            _ => bail!("{key:?} is none of Unit, At the limit, Metric, Test"),
        };
        let text = value.split_whitespace().collect::<Vec<_>>().join(" ");
        *slot = Some(text);
    }
    let plain = |text: String| text.replace('`', "");
    let at_text = at.context("its list has no `At the limit`")?;
    Ok(Row {
        name: name.to_owned(),
        about: about.join(" ").trim().replace('|', "\\|"),
        expression: expression.trim().to_owned(),
        is_time: declared.trim() == "Duration",
        unit,
        at: At::read(&at_text)?,
        at_text,
        metric: metric.map(plain),
        test: plain(test.context("its list has no `Test`")?),
    })
}
