//! One stage of the tests: a command in a process group of its own, whose output is shown and counted.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ::cluster::{Cluster, Name};
use anyhow::{Context as _, Result, bail};

use super::counts::Counts;
use super::watchdog::Watchdog;
use crate::child;

pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) command: Vec<String>,
    /// The cluster that it brings up, whose processes are not its own.
    pub(super) cluster: Option<&'static str>,
    /// It needs nothing of the stages before it and begins with the first of them.
    pub(super) early: bool,
}

/// What came of a stage.
pub(super) struct Ended {
    pub(super) result: Result<()>,
    pub(super) counts: Counts,
    pub(super) elapsed: Duration,
}

impl Stage {
    /// Runs to the end, or until the watchdog ends it.
    pub(super) fn run(&self, watchdog: &Watchdog) -> Ended {
        let started = Instant::now();
        let mut counts = Counts::default();
        let result = self.show(watchdog, &mut counts);
        Ended {
            result,
            counts,
            elapsed: started.elapsed(),
        }
    }

    fn show(&self, watchdog: &Watchdog, counts: &mut Counts) -> Result<()> {
        let command = self.command.join(" ");
        let mut child = child::command(&self.command[0])
            .args(&self.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("failed to start {command}"))?;
        let watched = watchdog.watch(child.id());
        if let Some(output) = child.stdout.take() {
            // A line that is no text must not end the reading while the stage runs on.
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                counts.read(&line);
                println!("{line}");
            }
        }
        let status = child.wait().context("failed to wait for the stage")?;
        watched?;
        watchdog.ended(child.id())?;
        if !status.success() {
            bail!("{command} ended with {status}");
        }
        Ok(())
    }

    /// The processes of a cluster outlive whoever started them, so a stage that was ended leaves it up.
    pub(super) fn remove_cluster(&self) {
        let Some(cluster) = self.cluster else { return };
        let removed = Name::new(cluster).and_then(|name| Cluster::down(&name));
        match removed {
            Ok(_) => println!("xtask test: the cluster {cluster} is removed"),
            Err(error) => println!("xtask test: the cluster {cluster} is not removed: {error}"),
        }
    }
}
