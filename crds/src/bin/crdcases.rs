//! Runs every case of `crds/cases` against a real API server: `crdcases [KUBECTL [ARGUMENT ...]]`,
//! for example `crdcases kubectl --namespace default`. It stores nothing that it does not remove.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use crds::cases::{self, KubectlAnswer};
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        words.push("kubectl".to_owned());
    }
    let cases = match cases::cases() {
        Ok(cases) => cases,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0_usize;
    for case in &cases {
        if let Err(difference) =
            cases::run(case, |arguments, object| kubectl(&words, arguments, object))
        {
            failed += 1;
            eprintln!("{difference}");
        }
    }
    println!("{} cases, {failed} failed", cases.len());
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn kubectl(words: &[String], arguments: &[&str], object: &str) -> std::io::Result<KubectlAnswer> {
    let mut words = words.iter();
    let mut child = Command::new(words.next().map_or("kubectl", String::as_str))
        .args(words)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(object.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(KubectlAnswer {
        accepted: output.status.success(),
        text,
    })
}
