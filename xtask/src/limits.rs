//! The page of limits: reads the rows that each package keeps in its `limits.rs`, or `limits.py`,
//! and writes `docs/limits.md`. A row is a constant. Its doc comment says what it bounds and ends
//! in a list: what happens at the limit, the metric, the test. This module takes so little of both
//! languages that it needs no parser, and refuses what it cannot read.

mod row;
mod value;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::r#gen::root;
use crate::tidy::{File, files};
use row::Row;

const PAGE: &str = "docs/limits.md";

const HEAD: &str = "\
# Limits

Made by `cargo xtask gen` from each package's `limits.rs`, or `limits.py`. Do not edit.

Every bound that a user can reach, what happens there, and the test that goes one beyond it. Times are limits, too.
A metric, where there is one, counts or shows how often the limit was reached. Storage has no rows yet.

- **waits**: whoever asks is served later; nothing fails.
- **refused**: whoever asks gets an error with these words.
- **slowed**: the work is done, less often.
- **dropped**: what is over the limit is left out or closed, as the row says.
- **ends**: what did not come in time is given up, as the row says.
";

/// Writes the page, or with `check` compares it.
pub(crate) fn page(check: bool) -> Result<()> {
    let text = render(&files()?)?;
    let path = root().join(PAGE);
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if check {
        bail!("{PAGE} is stale: run `cargo xtask gen`");
    }
    fs::write(&path, text).with_context(|| format!("failed to write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// True for a file whose constants are rows of the page.
pub(crate) fn has_rows(path: &str) -> bool {
    let is_tool = path.starts_with("xtask/") || path.starts_with("e2e/");
    !is_tool && (path.ends_with("/src/limits.rs") || path == "python/fireflyer/limits.py")
}

fn render(files: &[File]) -> Result<String> {
    let metrics = files.iter().find(|file| file.path == "docs/reference.md");
    let metrics = metrics.map_or("", |file| file.text.as_str());
    let mut text = HEAD.to_owned();
    let mut before = "";
    for file in files.iter().filter(|file| has_rows(&file.path)) {
        let package = package(&file.path);
        // The wheel's rows come from two files.
        if package != before {
            let _ = write!(
                text,
                "\n## {package}\n\n| Limit | Value | At the limit | Metric | Test |\n| --- | --- | --- | --- | --- |\n"
            );
        }
        before = package;
        let mut known = BTreeMap::new();
        for row in row::rows(file)? {
            let line = line(&row, &mut known, metrics, package, files)
                .with_context(|| format!("{}: {}", file.path, row.name))?;
            text.push_str(&line);
        }
    }
    Ok(text)
}

/// The folder of the package that a file belongs to.
fn package(path: &str) -> &str {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let folder = folder.split("/src").next().unwrap_or(folder);
    folder.strip_suffix("/fireflyer").unwrap_or(folder)
}

/// A row of the table. `known` has the values of the rows before it.
fn line(
    row: &Row,
    known: &mut BTreeMap<String, u128>,
    metrics: &str,
    package: &str,
    files: &[File],
) -> Result<String> {
    let value = value::evaluate(&row.expression, known)?;
    known.insert(row.name.clone(), value);
    let shown = value::show(value, row.unit()?);
    if let row::At::Refused { words } = &row.at {
        let is_said = |file: &File| {
            let is_code = file.path.ends_with(".rs") || file.path.ends_with(".py");
            is_code && !has_rows(&file.path) && file.text.contains(words)
        };
        if !files.iter().any(is_said) {
            bail!("no file says {words:?}");
        }
    }
    let metric = match &row.metric {
        Some(metric) if !metrics.contains(&format!("`{metric}`")) => {
            bail!("docs/reference.md has no metric {metric}")
        }
        Some(metric) => format!("`{metric}`"),
        None => String::new(),
    };
    let test = test(row, package, files)?;
    Ok(format!(
        "| `{}` {} | {shown} | {} | {metric} | {test} |\n",
        row.name, row.about, row.at_text
    ))
}

/// The test of a row as a link, with what the row says of it.
fn test(row: &Row, package: &str, files: &[File]) -> Result<String> {
    let (name, how) = row.test.split_once(", ").unwrap_or((&row.test, ""));
    let declared = ["fn", "def"].map(|word| format!("{word} {name}("));
    let has_it = |file: &&File| declared.iter().any(|text| file.text.contains(text));
    let mut with_it: Vec<_> = files.iter().filter(has_it).collect();
    with_it.sort_by_key(|file| !file.path.starts_with(package));
    let Some(file) = with_it.first() else {
        bail!("no file has the test {name}");
    };
    let how = if how.is_empty() {
        String::new()
    } else {
        format!(", {how}")
    };
    Ok(format!("[{name}](../{}){how}", file.path))
}

#[cfg(test)]
mod tests {
    use super::{File, render};

    fn page(row: &str) -> Result<String, String> {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file("docs/reference.md", "| `fireflyer_ducks_total` |"),
            file("link/src/limits.rs", row),
            file(
                "link/src/pond.rs",
                "fn the_65th_duck_is_refused() {}\n\"too many ducks\"",
            ),
        ];
        render(&files).map_err(|error| format!("{error:#}"))
    }

    const ROW: &str = "//! Ponds.\n\nuse std::time::Duration;\n\n/// Ducks in a pond.\n///\n/// - Unit: ducks\n/// \
        - At the limit: refused, \"too many ducks\"\n/// - Metric: `fireflyer_ducks_total`\n/// \
        - Test: `the_65th_duck_is_refused`\npub(crate) const DUCKS: usize = 1 << 6;\n";

    #[test]
    fn a_row_has_its_value_words_metric_and_test() {
        let row = "| `DUCKS` Ducks in a pond. | 64 ducks | refused, \"too many ducks\" | \
            `fireflyer_ducks_total` | [the_65th_duck_is_refused](../link/src/pond.rs) |\n";
        assert!(page(ROW).unwrap().contains(row), "{}", page(ROW).unwrap());
    }

    #[test]
    fn a_row_that_says_too_little_or_what_is_not_so_is_refused() {
        for (from, to) in [
            ("- Unit: ducks", "- Color: brown"),
            ("refused, \"too many ducks\"", "quacks"),
            ("\"too many ducks\"", "\"too few ducks\""),
            ("ducks_total`", "geese_total`"),
            ("the_65th_duck_is_refused`", "the_66th_duck_is_refused`"),
            ("/// - Test: `the_65th_duck_is_refused`\n", ""),
            ("1 << 6", "GEESE * 2"),
            ("1 << 6", "most()"),
            ("pub(crate) const DUCKS: usize", "fn ducks() -> usize"),
        ] {
            assert!(ROW.contains(from), "{from}");
            assert!(page(&ROW.replacen(from, to, 1)).is_err(), "{to}");
        }
    }

    #[test]
    fn times_bytes_and_pythons_rows_are_read() {
        let row = ROW.replacen("/// - Unit: ducks\n", "", 1).replacen(
            "usize = 1 << 6",
            "Duration = Duration::from_mins(90)",
            1,
        );
        assert!(page(&row).unwrap().contains("| 90 min |"));
        let row = row.replacen("DUCKS", "DUCK_BYTES", 1).replacen(
            "Duration = Duration::from_mins(90)",
            "u64 = 3 * 4096",
            1,
        );
        assert!(page(&row).unwrap().contains("| 12 KiB |"));
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file(
                "python/fireflyer/limits.py",
                "\"\"\"Ponds.\"\"\"\n\n#: Time in a pond.\n#:\n#: - At the limit: ends\n#: \
                 - Test: `test_ducks_leave`, which lowers it\nSWIM_SECONDS = 2 * 60\n",
            ),
            file("python/src/limits.rs", ROW),
            file("docs/reference.md", "`fireflyer_ducks_total`"),
            file("python/tests/test_pond.py", "def test_ducks_leave(): pass"),
            file(
                "link/src/pond.rs",
                "fn the_65th_duck_is_refused() {}\n\"too many ducks\"",
            ),
        ];
        let page = render(&files).unwrap();
        let row = "| `SWIM_SECONDS` Time in a pond. | 2 min | ends |  | \
            [test_ducks_leave](../python/tests/test_pond.py), which lowers it |";
        assert_eq!(page.matches("\n## python\n").count(), 1, "{page}");
        assert!(page.contains("| `DUCKS` Ducks in a pond. |"), "{page}");
        assert!(page.contains(row), "{page}");
    }
}
