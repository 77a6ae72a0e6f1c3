//! Where the times of a run are kept: all of them in `target/test-times.csv`, and with `--record` a block of bounded length
//! in `docs/measurements/times.csv`, so that a commit which makes the tests slower can be found.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::bench;
use crate::r#gen::root;

/// The table of recorded runs, from the repository's root.
const TABLE: &str = "docs/measurements/times.csv";
/// All times of the last run.
const LAST: &str = "target/test-times.csv";
const HEADER: &str = "commit,date,cpu,cores,stage,program,seconds";
/// The most programs that a recorded run adds beside its stages.
const RECORDED: usize = 60;
/// The row of a whole stage.
pub(crate) const WHOLE: &str = "all";

/// What took time: a stage, or a program in it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    stage: &'static str,
    /// None for the stage as a whole.
    program: Option<String>,
    seconds: f64,
}

impl Row {
    pub(super) fn whole(stage: &'static str, elapsed: Duration) -> Self {
        Self {
            stage,
            program: None,
            seconds: elapsed.as_secs_f64(),
        }
    }

    pub(super) fn part(stage: &'static str, program: String, seconds: f64) -> Self {
        Self {
            stage,
            program: Some(program),
            seconds,
        }
    }

    /// What a person reads: `unit: link tests/verbs/main.rs`.
    pub(super) fn name(&self) -> String {
        let program = self.program.as_deref().unwrap_or(WHOLE);
        format!("{}: {program}", self.stage)
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::MAX)
    }
}

/// The programs that took longest, the slowest first.
pub(super) fn slowest(rows: &[Row], count: usize) -> Vec<&Row> {
    let mut parts: Vec<&Row> = rows.iter().filter(|row| row.program.is_some()).collect();
    parts.sort_by(|a, b| {
        let by_time = b.seconds.partial_cmp(&a.seconds);
        by_time.unwrap_or(Ordering::Equal)
    });
    parts.truncate(count);
    parts
}

/// The seconds that each program of a stage took when it was last recorded.
pub(crate) fn recorded(stage: &str) -> Result<BTreeMap<String, f64>> {
    let text = fs::read_to_string(root().join(TABLE))
        .with_context(|| format!("failed to read {TABLE}"))?;
    Ok(read(&text, stage))
}

/// Later rows replace earlier ones; the row of the whole stage is one of them.
fn read(table: &str, stage: &str) -> BTreeMap<String, f64> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let [.., of, program, seconds] = cells[..] else {
            return None;
        };
        let seconds = seconds.parse().ok()?;
        (of == stage).then(|| (program.to_owned(), seconds))
    };
    table.lines().filter_map(row).collect()
}

/// Writes all times of this run, and adds them to the table when `record` says so.
pub(super) fn keep(rows: &[Row], record: bool) -> Result<()> {
    let run = Run::here()?;
    let last = root().join(LAST);
    fs::write(&last, format!("{HEADER}\n{}", run.lines(rows.iter())))
        .with_context(|| format!("failed to write {}", last.display()))?;
    if !record {
        return Ok(());
    }
    let stages = rows.iter().filter(|row| row.program.is_none());
    let block = run.lines(stages.chain(slowest(rows, RECORDED)));
    let table = root().join(TABLE);
    let block = if table.exists() {
        block
    } else {
        format!("{HEADER}\n{block}")
    };
    let written = OpenOptions::new().create(true).append(true).open(&table);
    written
        .and_then(|mut file| file.write_all(block.as_bytes()))
        .with_context(|| format!("failed to add to {TABLE}"))?;
    println!("added to {TABLE}");
    Ok(())
}

/// What the rows of a run have in common.
struct Run {
    commit: String,
    date: String,
    processor: String,
    cores: usize,
}

impl Run {
    fn here() -> Result<Self> {
        let commit = said("git", &["rev-parse", "--short=10", "HEAD"])?;
        let changed = !said("git", &["status", "--porcelain"])?.is_empty();
        Ok(Self {
            commit: if changed {
                format!("{commit}+")
            } else {
                commit
            },
            date: said("date", &["--utc", "+%Y-%m-%d"])?,
            processor: bench::processor()?,
            cores: thread::available_parallelism().map_or(0, usize::from),
        })
    }

    fn lines<'a>(&self, rows: impl Iterator<Item = &'a Row>) -> String {
        let mut text = String::new();
        for row in rows {
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{:.1}",
                self.commit,
                self.date,
                cell(&self.processor),
                self.cores,
                row.stage,
                cell(row.program.as_deref().unwrap_or(WHOLE)),
                row.seconds,
            );
        }
        text
    }
}

/// A cell without what separates cells.
fn cell(text: &str) -> String {
    text.replace([',', '\n', '"'], ";")
}

fn said(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(words)
        .current_dir(root())
        .output()
        .with_context(|| format!("failed to start {program}"))?;
    if !output.status.success() {
        bail!("{program} {} ended with {}", words.join(" "), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Row, Run, slowest};

    fn rows() -> Vec<Row> {
        vec![
            Row::part("unit", "link src/lib.rs".to_owned(), 2.0),
            Row::part("unit", "a, b".to_owned(), 30.04),
            Row::whole("unit", Duration::from_secs(99)),
            Row::part("cluster", "trains".to_owned(), 41.2),
        ]
    }

    #[test]
    fn the_slowest_come_first_and_a_stage_is_none_of_them() {
        let rows = rows();
        let names: Vec<_> = slowest(&rows, 2).into_iter().map(Row::name).collect();
        assert_eq!(names, ["cluster: trains", "unit: a, b"]);
    }

    #[test]
    fn the_last_time_that_was_recorded_counts() {
        let table = format!(
            "{}\na,d,c,2,unit,x,1.0\na,d,c,2,unit,all,9.0\na,d,c,2,rdma,x,7.0\nb,d,c,2,unit,x,2.5\n",
            super::HEADER
        );
        let found = super::read(&table, "unit");
        let expected = [("all".to_owned(), 9.0), ("x".to_owned(), 2.5)];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn a_row_has_a_cell_for_each_word_of_the_header() {
        let run = Run {
            commit: "0a1b2c3d4e".to_owned(),
            date: "2026-11-23".to_owned(),
            processor: "Some CPU, 2 GHz".to_owned(),
            cores: 2,
        };
        let text = run.lines(rows().iter());
        let cells = super::HEADER.split(',').count();
        assert!(text.lines().all(|line| line.split(',').count() == cells));
        let expected = "0a1b2c3d4e,2026-11-23,Some CPU; 2 GHz,2,unit,a; b,30.0";
        assert_eq!(text.lines().nth(1), Some(expected));
        let whole = "0a1b2c3d4e,2026-11-23,Some CPU; 2 GHz,2,unit,all,99.0";
        assert_eq!(text.lines().nth(2), Some(whole));
    }
}
