//! The conductor of a gang: starts a case on all ranks at once, hears what each took, and is the barrier between rounds.
//! Ranks are processes that connect to its socket and speak lines: ours (`hfreduce-sidecar bench rank`), PyTorch's
//! (`programs/gloo.py`) and MPI's (`programs/mpi.c`). Who is measured does not matter here, so all are measured alike.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::case::{Case, Load};
use super::machine::{self, Usage};

/// A gang that needs longer to come up never does: 32 times PyTorch on two cores takes a while.
const START: Duration = Duration::from_secs(180);
/// Longest silence of a rank: the slowest call, a hundred times over.
const SILENCE: Duration = Duration::from_secs(180);
/// How long a gang may take to leave.
const LEAVE: Duration = Duration::from_secs(5);
/// A case is measured for so long, in no fewer and no more rounds than this.
const MEASURED: Duration = Duration::from_millis(600);
const ROUNDS: (usize, usize) = (5, 60);
/// Where rounds are slow, three have to do.
const SLOW: (usize, Duration) = (3, Duration::from_secs(4));
/// Rounds before the first that counts.
const WARM_UP: usize = 2;

/// What a case cost.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// Of a call, by the slowest rank of each round: the median of the rounds.
    pub(super) median: Duration,
    /// The same of the best round.
    pub(super) best: Duration,
    /// Of single calls, each by its slowest rank.
    pub(super) p99: Duration,
    pub(super) rounds: usize,
    /// Processor seconds of a call, of all ranks and of all sidecars.
    pub(super) ranks: machine::Seconds,
    pub(super) sidecars: machine::Seconds,
    /// The share of all processors that went to others meanwhile.
    pub(super) others: f64,
    /// Whether the machine became quiet before.
    pub(super) quiet: bool,
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
pub(super) struct Gang {
    ranks: Vec<Rank>,
    sidecars: BTreeSet<u32>,
    processes: Vec<Process>,
    _folder: Folder,
}

#[derive(Debug)]
struct Rank {
    stream: BufReader<UnixStream>,
    process: u32,
}

/// A socket that ranks are about to connect to, and the folder that it is in.
#[derive(Debug)]
pub(super) struct Conductor {
    listener: UnixListener,
    processes: Vec<Process>,
    pub(super) folder: Folder,
}

impl Conductor {
    pub(super) fn new() -> Result<Self> {
        let folder = Folder::new()?;
        let listener =
            UnixListener::bind(folder.socket()).context("failed to make the conductor's socket")?;
        listener
            .set_nonblocking(true)
            .context("failed to set up the conductor's socket")?;
        Ok(Self {
            listener,
            processes: Vec::new(),
            folder,
        })
    }

    /// Starts a process of the gang, which ends with it.
    pub(super) fn start(&mut self, command: &Command) -> Result<u32> {
        let log = self
            .folder
            .path
            .join(format!("{}.log", self.processes.len()));
        let file = File::create(&log).context("failed to make a log")?;
        let copy = file.try_clone().context("failed to share a log")?;
        // However this program ends, the processes end with it.
        let mut bound = Command::new("setpriv");
        bound
            .args(["--pdeathsig", "KILL"])
            .arg(command.get_program());
        bound.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(name, value),
                None => bound.env_remove(name),
            };
        }
        let child = bound
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .process_group(0)
            .spawn()
            .with_context(|| format!("failed to start {}", command.get_program().display()))?;
        let id = child.id();
        self.processes.push(Process { child, log });
        Ok(id)
    }

    /// Waits until `done`, or one of the processes has ended.
    pub(super) fn wait(&mut self, what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !done() {
            for process in &mut self.processes {
                if let Ok(Some(status)) = process.child.try_wait() {
                    bail!("{what}: a process ended with {status}: {}", process.said());
                }
            }
            ensure!(start.elapsed() < START, "{what}: not after {START:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What a process has said so far; they are numbered as they were started.
    pub(super) fn log(&self, number: usize) -> Result<String> {
        let process = self.processes.get(number).context("no such process")?;
        fs::read_to_string(&process.log).context("failed to read a log")
    }

    /// Waits for all ranks. `sidecars` are those of its processes that serve them.
    pub(super) fn gather(mut self, world: usize, sidecars: BTreeSet<u32>) -> Result<Gang> {
        let mut seats: Vec<Option<Rank>> = (0..world).map(|_| None).collect();
        let listener = self
            .listener
            .try_clone()
            .context("failed to share a socket")?;
        let mut broken = None;
        self.wait("the ranks come up", || {
            while let Some(stream) = accept(&listener) {
                match greet(stream) {
                    Ok((rank, seated)) => {
                        if let Some(seat) = seats.get_mut(rank) {
                            *seat = Some(seated);
                        }
                    }
                    Err(error) => broken = Some(error),
                }
            }
            broken.is_some() || seats.iter().all(Option::is_some)
        })?;
        if let Some(error) = broken {
            return Err(error);
        }
        Ok(Gang {
            ranks: seats.into_iter().flatten().collect(),
            sidecars,
            processes: self.processes,
            _folder: self.folder,
        })
    }
}

fn accept(listener: &UnixListener) -> Option<UnixStream> {
    match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        // The next look will tell.
        Err(_) => None,
    }
}

fn greet(stream: UnixStream) -> Result<(usize, Rank)> {
    stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(SILENCE)))
        .context("failed to set up a rank's socket")?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream
        .read_line(&mut line)
        .context("failed to hear a rank")?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let (["rank", rank, process], true) = (&words[..], words.len() == 3) else {
        bail!("a rank introduced itself with {line:?}");
    };
    let process = process.parse().context("a rank is no process")?;
    Ok((
        rank.parse().context("a rank has no number")?,
        Rank { stream, process },
    ))
}

impl Gang {
    /// Prepares a case, checks its result on every rank, and measures it.
    pub(super) fn measure(&mut self, case: Case, copies: bool, gate: Duration) -> Result<Figures> {
        self.prepare(case, copies)?;
        for _ in 0..WARM_UP {
            self.round(case.load)?;
        }
        let quiet = machine::wait_until_quiet(gate);
        self.round(case.load)?;
        let ranks: BTreeSet<u32> = self.ranks.iter().map(|rank| rank.process).collect();
        let everybody = &ranks | &self.sidecars;
        let (used, served) = (
            machine::processor_seconds(&ranks),
            machine::processor_seconds(&self.sidecars),
        );
        let before = Usage::now(&everybody);
        let start = Instant::now();
        let (mut rounds, mut single) = (Vec::new(), Vec::new());
        while !enough(rounds.len(), start.elapsed()) {
            let (round, each) = self.round(case.load)?;
            rounds.push(round);
            single.extend(each);
        }
        let others = before.others_since(&everybody);
        let done = (rounds.len() * calls(case.load)) as f64;
        let since = |then: machine::Seconds, now: machine::Seconds| machine::Seconds {
            user: (now.user - then.user) / done,
            system: (now.system - then.system) / done,
        };
        let ranks = since(used, machine::processor_seconds(&ranks));
        let sidecars = since(served, machine::processor_seconds(&self.sidecars));
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

    /// The share of a core that a rank uses while it waits for the last one: the worst of them.
    pub(super) fn waiting(&mut self, case: Case, late: Duration) -> Result<f64> {
        self.prepare(case, false)?;
        self.round(case.load)?;
        let last = self.ranks.len() - 1;
        for (rank, seat) in self.ranks.iter_mut().enumerate() {
            let late = if rank == last { late } else { Duration::ZERO };
            seat.say(&format!("late {}", late.as_millis()))?;
        }
        let answers = self.hear()?;
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
    pub(super) fn idling(&self, time: Duration) -> f64 {
        let before = machine::processor_seconds(&self.sidecars).total();
        let start = Instant::now();
        thread::sleep(time);
        let used = machine::processor_seconds(&self.sidecars).total() - before;
        used / start.elapsed().as_secs_f64() / self.sidecars.len().max(1) as f64
    }

    /// What the gang's processes said last, for an error.
    pub(super) fn said(&self) -> String {
        let said = self.processes.iter().map(Process::said);
        let said: Vec<String> = said.filter(|said| !said.is_empty()).collect();
        said.join("; ")
    }

    fn prepare(&mut self, case: Case, copies: bool) -> Result<()> {
        let Load { tensors, bytes } = case.load;
        let mode = if copies { "copy" } else { "segment" };
        self.tell(&format!(
            "case {bytes} {tensors} {} {mode}",
            case.dtype.name()
        ))?;
        self.hear().map(drop)
    }

    fn release(&mut self) -> Result<()> {
        self.tell("end")?;
        self.hear().map(drop)
    }

    /// One barrier, the calls behind it: what a call took, and each of them, by the slowest rank.
    fn round(&mut self, load: Load) -> Result<(Duration, Vec<Duration>)> {
        let calls = calls(load);
        self.tell(&format!("go {calls}"))?;
        let mut slowest = vec![0; calls + 1];
        for answer in self.hear()? {
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

    fn tell(&mut self, words: &str) -> Result<()> {
        self.ranks.iter_mut().try_for_each(|rank| rank.say(words))
    }

    /// Every rank's answer, in order. An error if one failed.
    fn hear(&mut self) -> Result<Vec<String>> {
        let answers = self.ranks.iter_mut().enumerate().map(|(number, rank)| {
            let mut line = String::new();
            let read = rank.stream.read_line(&mut line);
            let heard = read.with_context(|| format!("rank {number} is silent"))?;
            ensure!(heard > 0, "rank {number} is gone");
            match line.trim().strip_prefix("failed ") {
                Some(why) => bail!("rank {number}: {why}"),
                None => Ok(line.trim().to_owned()),
            }
        });
        answers.collect()
    }
}

fn enough(rounds: usize, elapsed: Duration) -> bool {
    let (fewest, most) = ROUNDS;
    let (slowest, slow) = SLOW;
    rounds >= most
        || rounds >= fewest && elapsed >= MEASURED
        || rounds >= slowest && elapsed >= slow
}

impl Rank {
    fn say(&mut self, words: &str) -> Result<()> {
        self.stream
            .get_mut()
            .write_all(format!("{words}\n").as_bytes())
            .context("failed to reach a rank")
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        // Who cannot be told any more is killed.
        let _ = self.tell("quit");
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

/// A process and its group, which end with this value.
#[derive(Debug)]
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// The last words of its log.
    fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            // Less the frames of a backtrace without names.
            .filter(|line| !line.is_empty() && !line.ends_with("<unknown>"))
            .collect();
        let from = lines.len().saturating_sub(3);
        lines.get(from..).unwrap_or_default().join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The whole group: what it has started too. That nobody is left is as good.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("sh")
            .args(["-c", "kill -KILL -- \"$0\" 2>/dev/null", &group])
            .status();
        // A launcher may have left for a group of its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that ends with this value.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
}

impl Folder {
    fn new() -> Result<Self> {
        static GANGS: AtomicU32 = AtomicU32::new(0);
        let gang = GANGS.fetch_add(1, Ordering::Relaxed);
        let name = format!("fireflyer-bench-{}-{gang}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).with_context(|| format!("failed to make {}", path.display()))?;
        Ok(Self { path })
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path.join("conductor.sock")
    }

    /// Writes a file into it.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is only room, in a folder that the system empties.
        let _ = fs::remove_dir_all(&self.path);
    }
}
