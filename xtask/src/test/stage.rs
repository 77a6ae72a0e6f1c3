//! One stage of the tests: a command in a process group of its own, whose output is shown and counted.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ::cluster::{Cluster, Name};
use anyhow::{Context as _, Result, bail};

use super::counts::{Counter, Counts};
use super::made::Made;
use super::times::Times;
use super::watchdog::Watchdog;
use crate::child;

pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) command: Vec<String>,
    /// The clusters that it brings up, whose processes are not its own.
    pub(super) clusters: &'static [&'static str],
    /// It needs nothing of the stages before it and begins beside the first of them.
    pub(super) early: bool,
}

/// Of a stage that failed, so many lines are shown again at the end: what is printed meanwhile may be long.
const LAST_LINES: usize = 25;

/// What came of a stage.
pub(super) struct Ended {
    pub(super) result: Result<()>,
    /// The last lines that it printed.
    pub(super) last: VecDeque<String>,
    pub(super) counts: Counts,
    pub(super) made: Made,
    pub(super) elapsed: Duration,
    /// What in it took how many seconds.
    pub(super) times: Vec<(String, f64)>,
}

impl Stage {
    /// Runs to the end, or until the watchdog ends it.
    pub(super) fn run(&self, watchdog: &Watchdog) -> Ended {
        let started = Instant::now();
        let (mut counter, mut made) = (Counter::default(), Made::default());
        let mut times = Times::default();
        let mut last = VecDeque::new();
        let result = self.show(watchdog, |line| {
            counter.read(line);
            made.read(line);
            times.read(line);
            println!("{line}");
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(line.to_owned());
        });
        Ended {
            result,
            last,
            counts: counter.counts(),
            made,
            elapsed: started.elapsed(),
            times: times.rows(),
        }
    }

    fn show(&self, watchdog: &Watchdog, mut line: impl FnMut(&str)) -> Result<()> {
        let words = self.command.join(" ");
        // Both streams, in the order in which they come: cargo says on stderr what it builds.
        let (output, input) = io::pipe().context("failed to make a pipe")?;
        let mut command = child::command(&self.command[0]);
        command
            .args(&self.command[1..])
            .env("CARGO_TERM_COLOR", "never")
            .stdin(Stdio::null())
            .stdout(input.try_clone().context("failed to share a pipe")?)
            .stderr(input)
            .process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("failed to start {words}"))?;
        // Its ends of the pipe are ours, too; the output would never end.
        drop(command);
        let watched = watchdog.watch(child.id());
        // A line that is no text must not end the reading while the stage runs on.
        for bytes in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            line(&String::from_utf8_lossy(&bytes));
        }
        let status = child.wait().context("failed to wait for the stage")?;
        watched?;
        watchdog.ended(child.id())?;
        if !status.success() {
            bail!("{words} ended with {status}");
        }
        Ok(())
    }

    /// The processes of a cluster outlive whoever started them, so a stage that was ended leaves it up. The
    /// logs stay: what was printed about failures leads there.
    pub(super) fn remove_clusters(&self) {
        for cluster in self.clusters {
            let removed = Name::new(cluster).and_then(|name| Cluster::down_but_logs(&name));
            match removed {
                Ok(Some(logs)) => println!(
                    "xtask test: the cluster {cluster} is removed, its logs are now in {}",
                    logs.display()
                ),
                Ok(None) => {}
                Err(error) => println!("xtask test: the cluster {cluster} is not removed: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::process;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::super::watchdog::Watchdog;
    use super::{Made, Stage};

    const LONG: Duration = Duration::from_secs(3600);

    fn shell(script: &str) -> Stage {
        Stage {
            name: "shell",
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            clusters: &[],
            early: false,
        }
    }

    #[test]
    fn a_stage_that_is_ended_has_reported_its_tests() {
        let (sender, orders) = channel();
        let watchdog = Watchdog::obeying(LONG, orders);
        let done = env::temp_dir().join(format!("fireflyer-stage-{}", process::id()));
        let stage = shell(&format!(
            "echo 'test a ... ok'; echo 'test b ... FAILED'; mkdir {}; sleep 600",
            done.display()
        ));
        let ended = thread::scope(|scope| {
            let stage = scope.spawn(|| stage.run(&watchdog));
            let limit = Duration::from_secs(60);
            ::cluster::until("two tests", limit, || Ok(done.exists().then_some(()))).unwrap();
            sender.send("SIGTERM").unwrap();
            stage.join().unwrap()
        });
        fs::remove_dir(&done).unwrap();
        assert!(ended.result.is_err());
        assert_eq!((ended.counts.passed, ended.counts.failed), (1, 1));
        assert_eq!(ended.last, ["test a ... ok", "test b ... FAILED"]);
    }

    #[test]
    fn what_comes_on_stderr_is_read_as_well() {
        let (_sender, orders) = channel();
        let watchdog = Watchdog::obeying(LONG, orders);
        let ended = shell("echo '   Compiling link v0.1.0' >&2").run(&watchdog);
        ended.result.unwrap();
        assert_eq!(ended.made, Made::Built);
    }
}
