//! Runs the ranks of this node: reads who the gang is, starts the processes, then turns signals and
//! ended children into inputs of [`Gang`] and carries out what it says.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use contract::CheckpointRef;
use contract::run_dir::{self, Roster, StatedCause};
use rustix::process::{Pid, Signal};

use crate::args::Args;
use crate::environment::{self, GangPlace};
use crate::gang::{Effect, Ending, Gang, GangOutcome, Input};
use crate::limits::{DRAIN, ROSTER_PATIENCE};
use crate::output::{self, Shared, Tail};
use crate::processes;
use crate::report;
use crate::signals::{self, Notice};

/// Signals that wait for their turn; they coalesce, so a few are enough.
const NOTICES: usize = 64;
/// The time between looks at the world while the ranks end: for the acknowledgement, and for
/// process groups, whose end nobody signals.
const ENDING_TICK: Duration = Duration::from_millis(200);
/// The time between checks of whether the ranks may run on.
const VOID_TICK: Duration = Duration::from_secs(1);
/// Time between two looks for the roster.
const ROSTER_TICK: Duration = Duration::from_millis(50);
/// Has a process that catches it print its stacks: Python's `faulthandler` does, and so the wheel.
const SIGUSR1: i32 = 10;
const SIGTERM: i32 = 15;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to listen for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Environment(#[from] environment::Error),
    #[error(transparent)]
    RunDir(#[from] run_dir::Error),
    #[error("failed to find {path} within {} s: the sidecar writes it once the gang has joined", ROSTER_PATIENCE.as_secs())]
    NoRoster { path: PathBuf },
    #[error("failed to adopt orphaned processes")]
    Orphans(#[source] io::Error),
}

/// Runs the ranks to their end; the exit code says how they ended.
pub(crate) fn run(args: &Args) -> ExitCode {
    let code = match supervise(args) {
        Ok(code) => code,
        Err(error) => {
            let message = report::unable(&error);
            report::say(message.log.as_deref().unwrap_or_default());
            report::write(&message, &args.termination_log);
            1
        }
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn supervise(args: &Args) -> Result<i32, Error> {
    let (sender, notices) = sync_channel(NOTICES);
    signals::listen(sender).map_err(Error::Signals)?;
    processes::adopt_orphans().map_err(Error::Orphans)?;
    let place = GangPlace::read(|name| std::env::var(name).ok())?;
    let Some(roster) = roster(args, &notices, ROSTER_PATIENCE)? else {
        let message = report::message(GangOutcome::Interrupted(None), &place, &[], None, None);
        report::write(&message, &args.termination_log);
        return Ok(GangOutcome::Interrupted(None).exit_code());
    };
    let mut ranks = Ranks::start(args, place, &roster)?;
    let verdict = ranks.wait(&notices);
    ranks.leave(verdict);
    Ok(verdict.exit_code())
}

/// The gang's roster; none when the pod was asked to stop before there was one.
fn roster(
    args: &Args,
    notices: &Receiver<Notice>,
    patience: Duration,
) -> Result<Option<Roster>, Error> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(roster) = Roster::read(&args.run_dir)? {
            return Ok(Some(roster));
        }
        if Instant::now() >= deadline {
            return Err(Error::NoRoster {
                path: args.run_dir.join(run_dir::ROSTER),
            });
        }
        if let Ok(Notice::Stop) = notices.recv_timeout(ROSTER_TICK) {
            return Ok(None);
        }
    }
}

/// The ranks of this node and all that is known of them.
struct Ranks<'a> {
    args: &'a Args,
    place: GangPlace,
    started: Instant,
    gang: Gang,
    /// The first process of each rank; none where it could not be started.
    pids: Vec<Option<Pid>>,
    running: Vec<bool>,
    tails: Vec<Tail>,
    copies: Vec<JoinHandle<()>>,
    ack: Option<CheckpointRef>,
    /// Whether nothing of this pod may run on.
    void: bool,
    /// When it was asked for stacks last.
    stacks_asked: Option<SystemTime>,
}

impl<'a> Ranks<'a> {
    fn start(args: &'a Args, place: GangPlace, roster: &Roster) -> Result<Self, Error> {
        let count = place.procs_per_node as usize;
        let mut ranks = Self {
            args,
            place,
            started: Instant::now(),
            gang: Gang::new(count, place.exit),
            pids: vec![None; count],
            running: vec![false; count],
            // Not `vec![…; count]`: clones would share one tail.
            tails: (0..count).map(|_| Tail::default()).collect(),
            copies: Vec::with_capacity(2 * count),
            ack: None,
            void: false,
            stacks_asked: None,
        };
        let share_cores = count > 1 && std::env::var_os("OMP_NUM_THREADS").is_none();
        let streams = (Shared::new(io::stdout()), Shared::new(io::stderr()));
        let mut refused = None;
        for rank in 0..count {
            let mut environment = place.environment(roster, &args.run_dir, rank)?;
            if share_cores {
                // Otherwise each of the node's processes would start a thread on every core.
                environment.push(("OMP_NUM_THREADS", "1".to_owned()));
            }
            if let Err(error) = ranks.start_one(rank, &environment, &streams) {
                let program = args.program.display();
                let line = format!("launcher: failed to start `{program}`: {error}\n");
                report::say(line.trim_end());
                ranks.tails[rank].push(line.as_bytes());
                // The codes that shells use for "not found" and "found, but not executable".
                let code = if error.kind() == io::ErrorKind::NotFound {
                    127
                } else {
                    126
                };
                refused = Some((rank, code));
                break;
            }
        }
        if let Some((refused, code)) = refused {
            // Those after it never ran; for the rules they ended well.
            for rank in refused + 1..count {
                ranks.step(Input::Ended {
                    rank,
                    ending: Ending::Code(0),
                    left_behind: false,
                });
            }
            let ending = Ending::Code(code);
            ranks.step(Input::Ended {
                rank: refused,
                ending,
                left_behind: false,
            });
        }
        Ok(ranks)
    }

    fn start_one(
        &mut self,
        rank: usize,
        environment: &[(&'static str, String)],
        (stdout, stderr): &(Shared<io::Stdout>, Shared<io::Stderr>),
    ) -> io::Result<()> {
        let started = processes::start(&self.args.program, &self.args.arguments, environment)?;
        self.pids[rank] = Some(started.pid);
        self.running[rank] = true;
        let tail = &self.tails[rank];
        let prefix = self.place.line_prefix(rank);
        self.copies.push(output::pass_through(
            started.stdout,
            stdout.of(rank, &prefix),
            tail.clone(),
        )?);
        self.copies.push(output::pass_through(
            started.stderr,
            stderr.of(rank, &prefix),
            tail.clone(),
        )?);
        Ok(())
    }

    fn wait(&mut self, notices: &Receiver<Notice>) -> GangOutcome {
        loop {
            self.reap();
            self.end_if_void();
            self.ask_for_stacks();
            self.step(Input::Tick);
            if self.gang.is_ending() {
                self.look();
            }
            if let Some(verdict) = self.gang.verdict() {
                return verdict;
            }
            match self.next(notices) {
                Some(Notice::Stop) => self.step(Input::Stop),
                Some(Notice::PassOn(signal)) => {
                    for pid in self.living() {
                        processes::signal(pid, signal);
                    }
                }
                Some(Notice::Child) | None => {}
            }
        }
    }

    /// Ends the ranks once the sidecar says that nothing of this pod may run on.
    fn end_if_void(&mut self) {
        if self.void {
            return;
        }
        let reason = fs::read_to_string(self.args.run_dir.join(run_dir::VOID));
        if let Ok(reason) = reason {
            self.void = true;
            report::say(&format!("launcher: the ranks have to end: {reason}"));
            self.step(Input::Void);
        }
    }

    /// Has the ranks print their stacks, each time that the sidecar asks for it. A process that
    /// does not catch the signal would die of it.
    fn ask_for_stacks(&mut self) {
        let file = self.args.run_dir.join(run_dir::STACKS);
        let asked = fs::metadata(&file).and_then(|metadata| metadata.modified());
        let Some(asked) = asked.ok().filter(|asked| Some(*asked) != self.stacks_asked) else {
            return;
        };
        self.stacks_asked = Some(asked);
        let reason = fs::read_to_string(&file).unwrap_or_default();
        let leaders: Vec<Pid> = self.living().collect();
        if leaders.is_empty() {
            return;
        }
        let processes = processes::that_catch(SIGUSR1, &leaders);
        report::say(&match processes.len() {
            0 => format!(
                "launcher: {reason}; no process catches SIGUSR1, so none is asked for its stack"
            ),
            count => {
                format!("launcher: {reason}; asking {count} processes for their stacks by SIGUSR1")
            }
        });
        for pid in processes {
            processes::signal(pid, SIGUSR1);
        }
    }

    /// The next signal, or none when something else is due.
    fn next(&self, notices: &Receiver<Notice>) -> Option<Notice> {
        let until_kill = self
            .gang
            .wake_at()
            .map(|at| at.saturating_sub(self.started.elapsed()));
        let until_look = if self.gang.is_ending() {
            Some(ENDING_TICK)
        } else {
            Some(VOID_TICK)
        };
        match [until_kill, until_look].into_iter().flatten().min() {
            Some(timeout) => notices.recv_timeout(timeout).ok(),
            None => notices.recv().ok(),
        }
    }

    fn reap(&mut self) {
        while let Some((pid, ending)) = processes::reap() {
            let Some(rank) = self.pids.iter().position(|&known| known == Some(pid)) else {
                continue; // An orphan: nobody waits for it.
            };
            if self.running[rank] {
                self.running[rank] = false;
                let left_behind = processes::group_exists(pid);
                self.step(Input::Ended {
                    rank,
                    ending,
                    left_behind,
                });
            }
        }
    }

    /// Looks at what nobody signals: process groups that ended, and the acknowledgement. The
    /// latter is reported at once, so that it survives a rank that hangs until it is killed.
    fn look(&mut self) {
        let gone: Vec<usize> = self
            .gang
            .leaving()
            .filter(|&rank| !self.pids[rank].is_some_and(processes::group_exists))
            .collect();
        for rank in gone {
            self.step(Input::GroupGone { rank });
        }
        if self.gang.is_stopping() && self.ack.is_none() {
            self.ack = run_dir::read_ack(&self.args.run_dir).ok().flatten();
            if self.ack.is_some() {
                self.write(GangOutcome::Interrupted(None));
            }
        }
    }

    fn step(&mut self, input: Input) {
        for effect in self.gang.step(self.started.elapsed(), input) {
            match effect {
                Effect::AnnounceStop => {
                    let path = self.args.run_dir.join(run_dir::STOP);
                    if let Err(error) = fs::write(&path, b"") {
                        let path = path.display();
                        report::say(&format!("launcher: failed to create {path}: {error}"));
                    }
                }
                Effect::Terminate { rank } => {
                    if let Some(pid) = self.pids[rank] {
                        processes::signal(pid, SIGTERM);
                    }
                }
                Effect::TerminateGroup { rank } => self.signal_group(rank, Signal::TERM),
                Effect::KillGroup { rank } => self.signal_group(rank, Signal::KILL),
            }
        }
    }

    fn signal_group(&self, rank: usize, signal: Signal) {
        if let Some(pid) = self.pids[rank] {
            processes::signal_group(pid, signal);
        }
    }

    fn living(&self) -> impl Iterator<Item = Pid> {
        self.pids
            .iter()
            .zip(&self.running)
            .filter(|(_, running)| **running)
            .filter_map(|(pid, _)| *pid)
    }

    fn write(&self, verdict: GangOutcome) {
        // Unreadable, it says no more than none at all.
        let cause = StatedCause::read(&self.args.run_dir).ok().flatten();
        let message = report::message(verdict, &self.place, &self.tails, self.ack.clone(), cause);
        report::write(&message, &self.args.termination_log);
    }

    /// Collects the last output, ends what the ranks left behind, and reports.
    fn leave(mut self, verdict: GangOutcome) {
        let deadline = Instant::now() + DRAIN;
        while self.copies.iter().any(|copy| !copy.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        for rank in 0..self.pids.len() {
            self.signal_group(rank, Signal::KILL);
        }
        if self.gang.is_stopping() && self.ack.is_none() {
            self.ack = run_dir::read_ack(&self.args.run_dir).ok().flatten();
        }
        self.write(verdict);
        if let GangOutcome::Failed(failure) = verdict {
            let rank = self.place.rank(failure.rank);
            report::say(&format!("launcher: rank {rank} failed: {}", failure.ending));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roster_that_does_not_come_in_time_is_missed_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args {
            run_dir: dir.path().to_owned(),
            termination_log: PathBuf::new(),
            program: "true".into(),
            arguments: Vec::new(),
        };
        let (_sender, notices) = sync_channel(1);
        let error = roster(&args, &notices, Duration::ZERO).unwrap_err();
        let message = report::unable(&error).log.unwrap();
        assert!(message.contains("roster.json within 10 s"), "{message}");
    }
}
