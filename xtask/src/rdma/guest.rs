//! The guest's life: one virtual machine of two emulated processors, what it says, and when it has taken too long. What
//! runs inside is init.sh's business.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// An emulated machine boots in 15 s here, and in a minute beside compilers.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// One test has 120 s, given in init.sh; this is for all that comes after the boot.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Of the kernel's words, those that are shown when the guest breaks down.
const CONSOLE_LINES: usize = 15;

/// What came of the tests.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) passed: u64,
    pub(super) failed: u64,
    /// What the guest did instead of ending well.
    pub(super) broken: Option<String>,
    /// The kernel's last words, if it did not.
    pub(super) console: Vec<String>,
}

/// How far a guest got.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Well,
    /// It never was ready.
    Boot(String),
    Run(String),
}

/// Boots and runs the tests. An emulated boot fails once in a while on a busy machine, so it is tried again,
/// once.
pub(super) fn run(kernel: &Path, initramfs: &Path, folder: &Path) -> Result<Verdict> {
    let console = folder.join("console");
    let mut verdict = Verdict::default();
    let mut end = one(kernel, initramfs, &console, &mut verdict)?;
    if let End::Boot(why) = &end {
        println!("  the guest {why}; booting again");
        end = one(kernel, initramfs, &console, &mut verdict)?;
    }
    verdict.broken = match end {
        End::Well => None,
        End::Boot(why) | End::Run(why) => Some(why),
    };
    if verdict.broken.is_some() {
        let said = fs::read(&console).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<_> = said.lines().map(|line| line.trim().to_owned()).collect();
        verdict.console = lines[lines.len().saturating_sub(CONSOLE_LINES)..].to_vec();
    }
    Ok(verdict)
}

fn one(kernel: &Path, initramfs: &Path, console: &Path, verdict: &mut Verdict) -> Result<End> {
    let mut child = machine(kernel, initramfs, console)
        .spawn()
        .context("failed to start qemu-system-x86_64")?;
    let lines = lines_of(&mut child);
    let end = listen(&lines, BOOT_LIMIT, RUN_LIMIT, verdict);
    // It powers itself off in the end, and must not outlive us in any case.
    child.kill().context("failed to stop the guest")?;
    child.wait().context("failed to wait for the guest")?;
    Ok(end)
}

fn machine(kernel: &Path, initramfs: &Path, console: &Path) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max"])
        .args(["-smp", "2", "-m", "1024"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        // The timer check is a race that an emulator on a busy machine loses, and panics.
        .args([
            "-append",
            "console=ttyS0 quiet no_timer_check tsc=reliable panic=-1",
        ])
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-serial", "stdio"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    qemu
}

/// What the guest prints, line by line, until it ends.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    lines
}

/// Shows and counts what the guest says until it has said all.
fn listen(lines: &Receiver<String>, boot: Duration, run: Duration, verdict: &mut Verdict) -> End {
    let mut deadline = Instant::now() + boot;
    let mut ready = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match lines.recv_timeout(left) {
            Ok(line) => line,
            Err(error) => {
                let why = match error {
                    RecvTimeoutError::Timeout => "took too long",
                    RecvTimeoutError::Disconnected => "ended early",
                };
                return if ready {
                    End::Run(format!("{why} after its boot"))
                } else {
                    End::Boot(format!("{why} while booting"))
                };
            }
        };
        match line.strip_prefix("guest: ") {
            Some("ready") => {
                ready = true;
                deadline = Instant::now() + run;
            }
            Some("end") => return End::Well,
            Some(failed) => return End::Boot(failed.to_owned()),
            None => {
                println!("{line}");
                verdict.read(&line);
            }
        }
    }
}

impl Verdict {
    /// Counts a line like `test a ... ok (3 s)`.
    fn read(&mut self, line: &str) {
        let Some((_, how)) = line
            .strip_prefix("test ")
            .and_then(|test| test.split_once(" ... "))
        else {
            return;
        };
        if how.starts_with("ok") {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::{End, Verdict, listen, machine};

    const LONG: Duration = Duration::from_secs(60);

    fn said(lines: &[&str]) -> (End, Verdict) {
        let (sender, receiver) = channel();
        for line in lines {
            sender.send((*line).to_owned()).unwrap();
        }
        drop(sender);
        let mut verdict = Verdict::default();
        (listen(&receiver, LONG, LONG, &mut verdict), verdict)
    }

    // Trap T9.
    #[test]
    fn the_kernel_of_a_guest_does_not_check_its_timer() {
        let path = Path::new("some");
        let qemu = machine(path, path, path);
        let mut words = qemu.get_args().skip_while(|word| *word != "-append");
        let line = words.nth(1).unwrap().to_str().unwrap();
        assert!(line.split(' ').any(|word| word == "no_timer_check"));
    }

    #[test]
    fn tests_are_counted_until_the_end() {
        let (end, verdict) = said(&[
            "guest: ready",
            "test a ... ok (3 s)",
            "  | test b ... ok",
            "test b ... FAILED (status 101, 1 s)",
            "guest: end",
        ]);
        assert_eq!(end, End::Well);
        assert_eq!((verdict.passed, verdict.failed), (1, 1));
    }

    #[test]
    fn a_guest_that_ends_early_has_failed_in_the_boot_or_after_it() {
        assert!(matches!(said(&[]).0, End::Boot(_)));
        assert!(matches!(said(&["guest: ready"]).0, End::Run(_)));
        let (end, _) = said(&["guest: failed to make rxe0"]);
        assert_eq!(end, End::Boot("failed to make rxe0".to_owned()));
    }

    #[test]
    fn a_guest_that_says_nothing_is_given_up() {
        let (_sender, receiver) = channel();
        let end = listen(&receiver, Duration::ZERO, LONG, &mut Verdict::default());
        assert_eq!(end, End::Boot("took too long while booting".to_owned()));
    }
}
