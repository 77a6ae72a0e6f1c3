//! Everybody who is measured, side by side, and how each figure is taken.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::command;
use cluster::processors::{ProcessorUse, wait_until_quiet};
use serde_json::Value;

use super::args::Args;
use super::idle::Idle;
use super::mounted::{Ours, TARGET_BYTES};
use super::quantity::{Access, Group, Quantity, Way, of_round};
use super::relays::{Relays, part_on};
use super::results::{Results, line};
use crate::network::Network;
use crate::sample::{Sample, middle};
use crate::trainer;

/// Three storage nodes and one of a client.
const NODES: usize = 4;
/// Small operations of a round; with `--quick` fewer.
const SMALL_COUNT: usize = 200;
const SMALL_COUNT_QUICK: usize = 50;
/// A file is written or read again until this has passed; the median counts.
const MEASURED: Duration = Duration::from_millis(600);
/// The file that is written and read in blocks.
const BLOCKS_FILE: &str = "blocks";
const COPY_FILE: &str = "copy";
const TORCH_FILE: &str = "tensors";
const CREATE_FOLDER: &str = "created";
/// Tensors of 4 MiB that are there before the clock starts.
const TORCH_SAVE: &str = r#"
import sys, time, torch
path, count = sys.argv[1], int(sys.argv[2])
tensors = {f"layer.{number}": torch.rand(1 << 20) for number in range(count)}
start = time.monotonic()
with open(path, "wb") as file:
    torch.save(tensors, file)
print(time.monotonic() - start)
"#;
const TENSOR_BYTES: u64 = 4 << 20;

/// A folder on the disk that is measured, which nobody else uses and which ends with this value.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    fn new(below: &Path) -> Result<Self> {
        let lock = File::create(below.join("storage.lock")).context("failed to make a lock")?;
        lock.try_lock()
            .with_context(|| format!("another bench uses {}: wait for it", below.display()))?;
        let path = below.join("storage");
        // One that was killed has left its files.
        if path.exists() {
            fs::remove_dir_all(&path)
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
        fs::create_dir(&path).with_context(|| format!("failed to make {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next bench removes what is left.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Everybody. Mounts end before processes, processes before their cables, and the folder last.
#[derive(Debug)]
pub(super) struct Field<'a> {
    args: &'a Args,
    groups: BTreeSet<Group>,
    ours: Ours,
    relays: Relays,
    network: Network,
    scratch: Scratch,
}

impl<'a> Field<'a> {
    /// Starts everybody, and writes the files that are written again and read.
    pub(super) fn new(args: &'a Args) -> Result<Self> {
        let scratch = Scratch::new(&args.scratch)?;
        let network = Network::star_here(NODES)?;
        let relays = Relays::start(&network, &scratch.path, args.file_bytes())?;
        let ours = Ours::start(args, &network, &scratch.path)?;
        let field = Self {
            args,
            groups: args.groups()?,
            ours,
            relays,
            network,
            scratch,
        };
        if !of_round(&field.groups).is_empty() {
            field.prepare()?;
        }
        Ok(field)
    }

    /// Writes all files once, and compares what is read. A disk takes longer for blocks that were never written, so whatever
    /// is measured finds written ones: ours never writes where the bytes of before are, and goes once round its targets.
    fn prepare(&self) -> Result<()> {
        for way in [Way::Disk, Way::Loop, Way::Ours] {
            let times = match way {
                Way::Disk | Way::Loop => 1,
                Way::Ours => TARGET_BYTES.div_ceil(self.args.file_bytes()),
            };
            for _ in 0..times {
                self.blocks(Access::Write, 1, way, &[])?;
            }
            self.blocks(Access::Read, 1, way, &["--check"])?;
        }
        Ok(())
    }

    /// Measures everything once.
    pub(super) fn round(&self, results: &mut Results) {
        results.begin_round();
        let mut gate = self.args.gate();
        for quantity in of_round(&self.groups) {
            if quantity == Quantity::TorchSave
                && let Err(why) = self.args.trainer()
            {
                println!("  {quantity}: not run: {why}");
                results.leave_out(quantity, why);
                continue;
            }
            let waited = Instant::now();
            let quiet = wait_until_quiet(gate);
            gate = gate.saturating_sub(waited.elapsed());
            let processes = &self.ours.processes() | &self.relays.processes();
            let before = ProcessorUse::now(&processes);
            match self.measure(quantity) {
                Ok(value) => {
                    let others = before.others_since(&processes);
                    let sample = Sample {
                        value,
                        others,
                        quiet,
                    };
                    let mark = if sample.is_noisy() { "noisy" } else { "" };
                    let others = others * 100.0;
                    println!(
                        "  {} others {others:>3.0} % {mark}",
                        line(quantity, value, "")
                    );
                    results.add(quantity, sample);
                }
                Err(error) => {
                    println!("  {quantity}: failed: {error:#}");
                    results.fail(quantity, format!("{error:#}"));
                }
            }
        }
    }

    pub(super) fn idle(&self) -> Result<Option<Idle>> {
        if !self.groups.contains(&Group::Idle) {
            return Ok(None);
        }
        let folder = tempfile::TempDir::new_in(&self.scratch.path);
        let folder = folder.context("failed to make a folder for etcd")?;
        Idle::measure(self.args, &self.ours, &self.network, folder).map(Some)
    }

    fn measure(&self, quantity: Quantity) -> Result<f64> {
        match quantity {
            Quantity::Sequential(access, depth, way) => {
                let mut runs = Vec::new();
                while runs.iter().sum::<f64>() < MEASURED.as_secs_f64() {
                    runs.push(self.blocks(access, depth, way, &[])?);
                }
                let median = middle(&runs, |seconds| *seconds).context("no runs")?;
                Ok(self.rate(*median))
            }
            Quantity::Copy => self.copy(),
            Quantity::TorchSave => self.torch_save(),
            Quantity::Cat => {
                let mut cat = Command::new("cat");
                // Opening it drops what is cached.
                let took = time(cat.arg(self.ours.path(BLOCKS_FILE)).stdout(Stdio::null()))?;
                Ok(self.rate(took.as_secs_f64()))
            }
            Quantity::Hops => {
                let client = self.network.nodes.last().context("there are no nodes")?;
                let mut hops = part_on(client, &["hops"])?;
                hops.args(["--to", &self.relays.first.to_string()]);
                self.median(&mut hops)
            }
            Quantity::Commit => {
                let mut commits = self.part("commits")?;
                for number in 0..3 {
                    let journal = self.scratch.path.join(format!("journal-{number}"));
                    commits.arg("--file").arg(journal);
                }
                self.median(&mut commits)
            }
            Quantity::Sync => {
                let mut sync = self.part("sync")?;
                self.median(sync.arg(self.ours.path(BLOCKS_FILE)))
            }
            Quantity::Create => {
                let folder = self.ours.path(CREATE_FOLDER);
                let mut create = self.part("create")?;
                let micros = self.median(create.arg(&folder))?;
                fs::remove_dir_all(&folder)
                    .with_context(|| format!("failed to remove {}", folder.display()))?;
                Ok(1e6 / micros)
            }
        }
    }

    /// The file of blocks.
    fn file(&self, way: Way) -> PathBuf {
        match way {
            Way::Disk => self.scratch.path.join(BLOCKS_FILE),
            Way::Loop => self.relays.file(),
            Way::Ours => self.ours.path(BLOCKS_FILE),
        }
    }

    fn part(&self, word: &str) -> Result<Command> {
        let hub = &self.network.hub;
        part_on(hub, &[word])
    }

    /// Writes or reads the whole file; the seconds that it took.
    fn blocks(&self, access: Access, depth: usize, way: Way, more: &[&str]) -> Result<f64> {
        let mut part = self.part(match access {
            Access::Write => "write",
            Access::Read => "read",
        })?;
        part.arg(self.file(way)).args(more);
        let blocks = self.args.file_blocks().to_string();
        part.args(["--blocks", &blocks, "--depth", &depth.to_string()]);
        let said = json(&mut part)?;
        said["seconds"]
            .as_f64()
            .context("a program said no seconds")
    }

    /// `cp` from the page cache: closing makes the copy durable.
    fn copy(&self) -> Result<f64> {
        let (from, to) = (self.file(Way::Disk), self.ours.path(COPY_FILE));
        time(Command::new("cat").arg(&from).stdout(Stdio::null()))?;
        let took = time(Command::new("cp").arg(&from).arg(&to))?;
        fs::remove_file(&to).context("failed to remove the copy")?;
        Ok(self.rate(took.as_secs_f64()))
    }

    fn torch_save(&self) -> Result<f64> {
        let root = self.args.trainer().map_err(anyhow::Error::msg)?;
        let mut save = trainer::python(&root, None, self.ours.cell.folder());
        let inside = Path::new(trainer::FOLDER).join(self.ours.mount_name()?);
        save.args(["-c", TORCH_SAVE]).arg(inside.join(TORCH_FILE));
        save.arg((self.args.file_bytes() / TENSOR_BYTES).to_string());
        let said = command::run(&mut save)?;
        let seconds: f64 = said.trim().parse().context("PyTorch said no seconds")?;
        fs::remove_file(self.ours.path(TORCH_FILE)).context("failed to remove the tensors")?;
        Ok(self.rate(seconds))
    }

    /// MB/s of the whole file.
    fn rate(&self, seconds: f64) -> f64 {
        self.args.file_bytes() as f64 / seconds / 1e6
    }

    /// The median of what a program repeats, in microseconds.
    fn median(&self, part: &mut Command) -> Result<f64> {
        let count = match self.args.quick {
            true => SMALL_COUNT_QUICK,
            false => SMALL_COUNT,
        };
        let said = json(part.args(["--count", &count.to_string()]))?;
        let micros = said["micros"].as_array().into_iter().flatten();
        let micros: Vec<f64> = micros.filter_map(Value::as_f64).collect();
        let median = middle(&micros, |micros| *micros).copied();
        median.context("a program said no microseconds")
    }
}

/// What a part says.
fn json(part: &mut Command) -> Result<Value> {
    let said = command::run(part)?;
    serde_json::from_str(&said).with_context(|| format!("a program said {said:?}"))
}

/// How long a program runs.
fn time(program: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    command::run(program)?;
    Ok(started.elapsed())
}
