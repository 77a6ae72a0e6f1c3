//! The conductor of a gang: starts a case on all ranks at once, reads what each took, and is the barrier between rounds.
//! Ranks are processes that connect to its socket and speak lines: ours (`hfreduce-sidecar bench rank`), PyTorch's
//! (`programs/gloo.py`) and MPI's (`programs/mpi.c`). Who is measured does not matter here, so all are measured alike.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::hfreduce::case::{Case, Load, Way};
use crate::hfreduce::conductor::Rank;
use crate::process::{Folder, Process};
use cluster::processors::{self, ProcessorUse};

/// How long a gang may take to leave.
const LEAVE: Duration = Duration::from_secs(5);
/// A case is measured for so long, in no fewer and no more rounds than this.
const MEASURED: Duration = Duration::from_millis(600);
const ROUNDS: (usize, usize) = (5, 60);
/// Where rounds are slow, three have to do.
const SLOW: (usize, Duration) = (3, Duration::from_secs(4));
/// Rounds before the first that counts.
const WARM_UP: usize = 2;
/// Rounds of a trial.
const TRIAL_ROUNDS: usize = 4;

/// What a case cost.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Of a call, by the slowest rank of each round: the median of the rounds.
    pub(crate) median: Duration,
    /// The same of the best round.
    pub(crate) best: Duration,
    /// Of single calls, each by its slowest rank.
    pub(crate) p99: Duration,
    pub(crate) rounds: usize,
    /// Processor seconds of a call, of all ranks and of all sidecars.
    pub(crate) ranks: processors::Seconds,
    pub(crate) sidecars: processors::Seconds,
    /// The share of all processors that went to others meanwhile.
    pub(crate) others: f64,
    /// Whether the machine became quiet before.
    pub(crate) quiet: bool,
}

/// Calls in a row between two barriers: so many that waking up from the barrier does not count, the same for all.
fn calls(load: Load) -> usize {
    match load.total() {
        small if small <= 64 << 10 => 50,
        medium if medium <= 1 << 20 => 10,
        _ => 1,
    }
}

/// A gang that is there.
#[derive(Debug)]
pub(crate) struct Gang {
    ranks: Vec<Rank>,
    sidecars: BTreeSet<u32>,
    processes: Vec<Process>,
    _folder: Folder,
}

impl Gang {
    pub(crate) fn new(
        ranks: Vec<Rank>,
        sidecars: BTreeSet<u32>,
        processes: Vec<Process>,
        folder: Folder,
    ) -> Self {
        Self {
            ranks,
            sidecars,
            processes,
            _folder: folder,
        }
    }

    /// Prepares a case, checks its result on every rank, and measures it.
    pub(crate) fn measure(&mut self, case: Case, way: Way, gate: Duration) -> Result<Figures> {
        self.prepare(case, way)?;
        for _ in 0..WARM_UP {
            self.round(case.load)?;
        }
        let quiet = processors::wait_until_quiet(gate);
        self.round(case.load)?;
        let ranks: BTreeSet<u32> = self.ranks.iter().map(|rank| rank.process).collect();
        let everybody = &ranks | &self.sidecars;
        let (used, served) = (
            processors::processor_seconds(&ranks),
            processors::processor_seconds(&self.sidecars),
        );
        let before = ProcessorUse::now(&everybody);
        let start = Instant::now();
        let (mut rounds, mut single) = (Vec::new(), Vec::new());
        while !enough(rounds.len(), start.elapsed()) {
            let (round, each) = self.round(case.load)?;
            rounds.push(round);
            single.extend(each);
        }
        let others = before.others_since(&everybody);
        let done = (rounds.len() * calls(case.load)) as f64;
        let since = |then: processors::Seconds, now: processors::Seconds| processors::Seconds {
            user: (now.user - then.user) / done,
            system: (now.system - then.system) / done,
        };
        let ranks = since(used, processors::processor_seconds(&ranks));
        let sidecars = since(served, processors::processor_seconds(&self.sidecars));
        self.release()?;
        rounds.sort_unstable();
        single.sort_unstable();
        let at = |times: &[Duration], share: f64| {
            let last = times.len().saturating_sub(1) as f64;
            times.get((last * share).round() as usize).copied()
        };
        Ok(Figures {
            median: at(&rounds, 0.5).context("no rounds")?,
            best: at(&rounds, 0.0).context("no rounds")?,
            p99: at(&single, 0.99).context("no calls")?,
            rounds: rounds.len(),
            ranks,
            sidecars,
            others,
            quiet,
        })
    }

    /// What a call takes, roughly and soon. Nobody may be silent for longer than this.
    pub(crate) fn trial(&mut self, case: Case, silence: Duration) -> Result<Duration> {
        for rank in &self.ranks {
            let stream = rank.stream.get_ref();
            let limited = stream.set_read_timeout(Some(silence));
            limited.context("failed to set up a rank's socket")?;
        }
        self.prepare(case, Way::Plain)?;
        let rounds = (0..TRIAL_ROUNDS).map(|_| Ok(self.round(case.load)?.0));
        let rounds = rounds.collect::<Result<Vec<_>>>()?;
        // The least disturbed one.
        rounds.into_iter().min().context("no rounds")
    }

    /// The share of a core that a rank uses while it waits for the last one: the worst of them.
    pub(crate) fn waiting(&mut self, case: Case, late: Duration) -> Result<f64> {
        self.prepare(case, Way::Plain)?;
        self.round(case.load)?;
        let last = self.ranks.len() - 1;
        for (rank, seat) in self.ranks.iter_mut().enumerate() {
            let late = if rank == last { late } else { Duration::ZERO };
            seat.say(&format!("late {}", late.as_millis()))?;
        }
        let answers = self.answers()?;
        self.release()?;
        let shares = answers.iter().take(last).map(|answer| {
            let mut numbers = answer
                .split(' ')
                .filter_map(|word| word.parse::<f64>().ok());
            let (took, used) = (numbers.next().unwrap_or(1.0), numbers.next().unwrap_or(0.0));
            used / took
        });
        Ok(shares.fold(0.0, f64::max))
    }

    /// The share of a core that a sidecar uses while nobody calls: the mean of them.
    pub(crate) fn idling(&self, time: Duration) -> f64 {
        let before = processors::processor_seconds(&self.sidecars).total();
        let start = Instant::now();
        thread::sleep(time);
        let used = processors::processor_seconds(&self.sidecars).total() - before;
        used / start.elapsed().as_secs_f64() / self.sidecars.len().max(1) as f64
    }

    fn prepare(&mut self, case: Case, way: Way) -> Result<()> {
        let Load { tensors, bytes } = case.load;
        let mode = way.word();
        self.command(&format!(
            "case {bytes} {tensors} {} {mode}",
            case.dtype.name()
        ))?;
        self.answers().map(drop)
    }

    fn release(&mut self) -> Result<()> {
        self.command("end")?;
        self.answers().map(drop)
    }

    /// One barrier, the calls behind it: what a call took, and each of them, by the slowest rank.
    fn round(&mut self, load: Load) -> Result<(Duration, Vec<Duration>)> {
        let calls = calls(load);
        self.command(&format!("go {calls}"))?;
        let mut slowest = vec![0; calls + 1];
        for answer in self.answers()? {
            let numbers: Vec<u64> = answer
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            ensure!(
                numbers.len() == slowest.len(),
                "a rank answered {} numbers for {calls} calls",
                numbers.len()
            );
            for (slowest, number) in slowest.iter_mut().zip(numbers) {
                *slowest = number.max(*slowest);
            }
        }
        let mut times = slowest.into_iter().map(Duration::from_nanos);
        let all = times.next().unwrap_or_default();
        Ok((all / calls as u32, times.collect()))
    }

    fn command(&mut self, words: &str) -> Result<()> {
        self.ranks.iter_mut().try_for_each(|rank| rank.say(words))
    }

    /// Every rank's answer, in order. An error if one failed.
    fn answers(&mut self) -> Result<Vec<String>> {
        let processes = &self.processes;
        let answers = self.ranks.iter_mut().enumerate().map(|(number, rank)| {
            let mut line = String::new();
            let read = rank.stream.read_line(&mut line);
            let length = read.with_context(|| format!("rank {number} is silent"))?;
            ensure!(length > 0, "rank {number} is gone: {}", said(processes));
            match line.trim().strip_prefix("failed ") {
                Some(why) => bail!("rank {number}: {why}"),
                None => Ok(line.trim().to_owned()),
            }
        });
        answers.collect()
    }
}

/// What the gang's processes said last.
fn said(processes: &[Process]) -> String {
    let said = processes.iter().map(Process::said);
    let said: Vec<String> = said.filter(|said| !said.is_empty()).collect();
    said.join("; ")
}

fn enough(rounds: usize, elapsed: Duration) -> bool {
    let (fewest, most) = ROUNDS;
    let (slowest, slow) = SLOW;
    rounds >= most
        || rounds >= fewest && elapsed >= MEASURED
        || rounds >= slowest && elapsed >= slow
}

impl Drop for Gang {
    fn drop(&mut self) {
        // Who cannot be asked any more is killed.
        let _ = self.command("quit");
        let start = Instant::now();
        let serves = |process: &Process| self.sidecars.contains(&process.child.id());
        for process in self.processes.iter_mut() {
            while !serves(process)
                && start.elapsed() < LEAVE
                && matches!(process.child.try_wait(), Ok(None))
            {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
