//! A command's output as an animated picture: each line comes when it came, long pauses cut short. What a
//! README shows is then what a run printed.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, Result};

/// A pause longer than this is shown as this long.
const LONGEST_PAUSE: Duration = Duration::from_millis(1500);
/// How long the end stays before it begins anew.
const END: Duration = Duration::from_secs(6);
/// Lines of the picture, and characters of a line.
const ROWS: usize = 30;
const COLUMNS: usize = 118;
/// Pixels of a character.
const WIDTH: usize = 8;
const HEIGHT: usize = 18;

/// A line with when it came.
#[derive(Debug)]
struct Line {
    at: Duration,
    text: String,
}

/// Runs the command, shows what it prints and, if it ends well, writes the picture of it.
pub(crate) fn record(command: &mut Command, picture: &Path) -> Result<ExitStatus> {
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start what is to be recorded")?;
    // Whose machine it was shows nobody anything.
    let home = env::var("HOME").unwrap_or_default();
    let mut lines = Vec::new();
    if let Some(output) = child.stdout.take() {
        for text in BufReader::new(output).lines() {
            let text = text.context("failed to read what was printed")?;
            println!("{text}");
            let at = began.elapsed();
            let text = match home.as_str() {
                "" | "/" => text,
                home => text.replace(home, "~"),
            };
            lines.push(Line { at, text });
        }
    }
    let status = child
        .wait()
        .context("failed to wait for what is recorded")?;
    if status.success() {
        fs::write(picture, svg(&lines))
            .with_context(|| format!("failed to write {}", picture.display()))?;
    }
    Ok(status)
}

/// All lines below each other, moved up behind a window by one as each comes.
fn svg(lines: &[Line]) -> String {
    let (width, height) = ((COLUMNS + 2) * WIDTH, (ROWS + 1) * HEIGHT);
    let mut shown = Duration::ZERO;
    let mut before = Duration::ZERO;
    let mut moves = Vec::new();
    for line in lines {
        shown += (line.at - before).min(LONGEST_PAUSE);
        before = line.at;
        moves.push(shown);
    }
    let whole = shown + END;
    let mut frames = String::from("0%{transform:translateY(0)}");
    for (index, at) in moves.iter().enumerate() {
        let percent = 100.0 * at.as_secs_f64() / whole.as_secs_f64();
        let up = (index + 1) * HEIGHT;
        // Writing to a string does not fail.
        let _ = write!(frames, "{percent:.3}%{{transform:translateY(-{up}px)}}");
    }
    let up = lines.len() * HEIGHT;
    let _ = write!(frames, "100%{{transform:translateY(-{up}px)}}");
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let y = height + index * HEIGHT;
        let cut: String = line.text.chars().take(COLUMNS).collect();
        let _ = writeln!(
            text,
            r#"<text x="{WIDTH}" y="{y}">{}</text>"#,
            escaped(&cut)
        );
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">
<style>text{{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d7dce2;white-space:pre}}
g{{animation:lines {:.2}s step-end infinite}}@keyframes lines{{{frames}}}</style>
<rect width="{width}" height="{height}" rx="8" fill="#14181d"/>
<g>
{text}</g>
</svg>
"##,
        whole.as_secs_f64()
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_their_time_and_long_pauses_are_cut() {
        let line = |at, text: &str| Line {
            at: Duration::from_millis(at),
            text: text.to_owned(),
        };
        let picture = svg(&[line(0, "a < b"), line(500, "c"), line(60_000, "d")]);
        assert!(picture.contains("a &lt; b</text>"), "{picture}");
        // 0.5 s and 1.5 s, of 2 s and the end.
        for frame in [
            "0.000%{transform:translateY(-18px)}",
            "6.250%{transform:translateY(-36px)}",
            "25.000%{transform:translateY(-54px)}",
        ] {
            assert!(picture.contains(frame), "{frame}: {picture}");
        }
        assert!(picture.contains("animation:lines 8.00s step-end infinite"));
    }
}
