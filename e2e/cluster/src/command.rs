//! Running other programs: to their end with their error text kept, or in the background with a log
//! file.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use crate::error::{Error, ErrorContext, Result};

/// Runs a program to its end and returns what it wrote to stdout; its stderr becomes part of the
/// error.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .context(|| format!("failed to start {}", line(command)))?;
    finished(command, &output)
}

/// Like [`run`], and calls `each` with each line that the program writes to stderr, when it does: one that ends with a
/// carriage return, too, as those that progress is printed on.
pub fn watch(command: &mut Command, mut each: impl FnMut(&str)) -> Result<String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .context(|| format!("failed to start {}", line(command)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = thread::scope(|scope| {
        let stdout = scope.spawn(|| {
            let mut bytes = Vec::new();
            let read = stdout.map(|mut stdout| stdout.read_to_end(&mut bytes));
            read.transpose().map(|_| bytes)
        });
        let stderr = stderr.map_or(Ok(Vec::new()), |stderr| lines(stderr, &mut each));
        (stdout.join(), stderr)
    });
    let failed = || format!("failed to read what {} printed", line(command));
    let stdout = stdout
        .unwrap_or_else(|panic| resume_unwind(panic))
        .context(failed)?;
    let stderr = stderr.context(failed)?;
    let status = child
        .wait()
        .context(|| format!("failed to run {}", line(command)))?;
    let output = Output {
        status,
        stdout,
        stderr,
    };
    finished(command, &output)
}

/// Reads to the end and shows each line; returns those that ended as lines do.
fn lines(from: impl Read, each: &mut impl FnMut(&str)) -> io::Result<Vec<u8>> {
    let (mut kept, mut current) = (Vec::new(), Vec::new());
    for byte in BufReader::new(from).bytes() {
        let byte = byte?;
        if byte != b'\n' && byte != b'\r' {
            current.push(byte);
            continue;
        }
        each(&String::from_utf8_lossy(&current));
        if byte == b'\n' {
            kept.append(&mut current);
            kept.push(b'\n');
        }
        current.clear();
    }
    kept.append(&mut current);
    Ok(kept)
}

/// Like [`run`], with `input` on the program's stdin.
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .context(|| format!("failed to start {}", line(command)))?;
    // Programs given input here read all of it before they write more than a pipe holds.
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(input),
        None => Ok(()),
    };
    let output = child
        .wait_with_output()
        .context(|| format!("failed to run {}", line(command)))?;
    let text = finished(command, &output)?;
    written.context(|| format!("failed to write to {}", line(command)))?;
    Ok(text)
}

/// Starts a program that outlives us: a session of its own, no stdin, its output appended to `log`.
/// Returns its pid.
///
/// `setsid` runs the program in its own place, so the pid stays the one that was started.
pub(crate) fn start(command: &Command, log: &Path, stdin: Stdio) -> Result<u32> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(log)
        .context(|| format!("failed to open the log {}", log.display()))?;
    let copy = file
        .try_clone()
        .context(|| format!("failed to share the log {}", log.display()))?;
    let mut session = Command::new("setsid");
    session.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => session.env(name, value),
            None => session.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        session.current_dir(folder);
    }
    let child = session
        .stdin(stdin)
        .stdout(file)
        .stderr(copy)
        .spawn()
        .context(|| format!("failed to start {}", line(command)))?;
    Ok(child.id())
}

/// A command as one would type it, for messages.
fn line(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn finished(command: &Command, output: &Output) -> Result<String> {
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = format!("{}: {}: {}", line(command), output.status, stderr.trim());
        return Err(Error::new(message));
    }
    String::from_utf8(output.stdout.clone())
        .context(|| format!("{} did not print text", line(command)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{run, run_with_input, watch};

    #[test]
    fn a_failure_carries_the_command_its_status_and_its_words() {
        let error =
            run(Command::new("sh").args(["-c", "echo no such luck >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sh -c"), "{text}");
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.ends_with("no such luck"), "{text}");
    }

    #[test]
    fn each_line_is_seen_and_progress_is_no_part_of_the_error() {
        let script = "echo out; printf '1/2\\r2/2\\rno such luck\\n' >&2; exit 3";
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        let ended = watch(command.args(["-c", script]), |line| {
            seen.push(line.to_owned());
        });
        let text = ended.unwrap_err().to_string();
        assert_eq!(seen, ["1/2", "2/2", "no such luck"]);
        assert!(text.ends_with("exit status: 3: no such luck"), "{text}");
    }

    #[test]
    fn input_reaches_the_program() {
        assert_eq!(
            run_with_input(&mut Command::new("cat"), b"hello").unwrap(),
            "hello"
        );
    }
}
