//! `cargo xtask bench validation`: the validator's figures beside those of plain C programs that measure the same, in pairs
//! that take turns. What a program counts is said in `e2e/bench/plain`.

mod figures;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use ::cluster::processors::{NOISY, ProcessorUse, wait_until_quiet};
use ::cluster::{command, paths, prerequisites};
use anyhow::{Context as _, Result};

use super::processor;
use crate::args::{Args, Usage};
use crate::images;
use figures::{Figure, Pair, TOLERANCE, Values, figure, median, quiet, read_ours, read_plain, row};

/// A check, and the program that measures the same.
struct Comparison {
    check: &'static str,
    program: &'static str,
    /// What each of them is given.
    time: Duration,
    figures: &'static [Figure],
}

const COMPARISONS: [Comparison; 6] = [
    Comparison {
        check: "CpuFrequency",
        program: "cpu_frequency",
        time: Duration::from_secs(6),
        figures: &[
            figure("one core", "GHz", ""),
            figure("all cores", "GHz", "all cores"),
        ],
    },
    Comparison {
        check: "MemoryBandwidth",
        program: "memory_bandwidth",
        time: Duration::from_secs(4),
        figures: &[figure("triad", "GB/s", "numa 0")],
    },
    Comparison {
        check: "MemoryPattern",
        program: "memory_pattern",
        time: Duration::from_secs(4),
        figures: &[figure("covered", "GiB", "numa 0")],
    },
    Comparison {
        check: "AllReduce",
        program: "all_reduce",
        time: Duration::from_secs(6),
        figures: &[figure("sum", "GB/s", "numa 0")],
    },
    Comparison {
        check: "Disk",
        program: "disk",
        time: Duration::from_secs(6),
        figures: &[
            figure("write", "GB/s", "write"),
            figure("read", "GB/s", "read"),
        ],
    },
    Comparison {
        check: NETWORK,
        program: "network",
        time: Duration::from_secs(6),
        figures: &[
            figure("one way", "GB/s", "send"),
            figure("one way", "GB/s", "receive"),
        ],
    },
];

/// It runs in a network namespace of its own, whose loopback is a link of this speed: what is measured is the link.
const NETWORK: &str = "Network";
const LINK: &str =
    "ip link set lo up && tc qdisc add dev lo root tbf rate 2gbit burst 1mb latency 50ms";

/// Checks that no program stands beside, and why.
const WITHOUT_RATE: [(&str, &str); 4] = [
    ("Offer", "counts what the kubelet offers"),
    ("CpuStress", "a share of the node's own median core"),
    ("LockedMemory", "a limit that is read, not measured"),
    ("Gpu", "skipped so far"),
];

/// Nothing is asked of a task but that it can be read.
const TASK: &str = r#"{"version": 1, "validation": "bench", "uid": "bench", "node": "bench", "nodeClass": "",
    "deadlineSeconds": 600, "checks": [], "offers": []}"#;
/// A program that ends earlier is started again.
const LEAST: Duration = Duration::from_secs(2);
/// How many pairs are tried at most for each that has to be quiet.
const TRIES: usize = 2;

pub(super) fn run(mut args: Args) -> Result<ExitCode> {
    let rounds: usize = args.parsed("--rounds")?.unwrap_or(5);
    let gate = Duration::from_secs(args.parsed("--gate")?.unwrap_or(20));
    let folder = paths::cache()?.join("bench");
    let scratch = args.option("--scratch")?.map(PathBuf::from);
    let scratch = scratch.unwrap_or_else(|| folder.clone());
    let only = args.option("--check")?;
    args.finish()?;
    let is_chosen =
        |comparison: &&Comparison| only.as_deref().is_none_or(|only| only == comparison.check);
    let chosen: Vec<_> = COMPARISONS.iter().filter(is_chosen).collect();
    if chosen.is_empty() || rounds == 0 {
        return Err(Usage("there is nothing to compare".to_owned()).into());
    }
    if !prerequisites::found("cc") {
        println!("not run: there is no C compiler (cc)");
        return Ok(ExitCode::SUCCESS);
    }
    fs::create_dir_all(&folder).context("failed to make the cache of the bench")?;
    let task = folder.join("validation.json");
    fs::write(&task, TASK).context("failed to write the task")?;
    let validator = images::program("validator")?;
    println!("cpu: {}, load: {}", processor()?, load());
    println!(
        "{:<16} {:<10} {:>5} {:>9} {:>9} {:>6}  {:<12} within {:.0} %",
        "check",
        "figure",
        "unit",
        "ours",
        "plain",
        "ratio",
        "quiet pairs",
        TOLERANCE * 100.0
    );
    for comparison in chosen {
        let missing = ["unshare", "tc"]
            .into_iter()
            .find(|program| !prerequisites::found(program));
        if let (NETWORK, Some(missing)) = (comparison.check, missing) {
            println!("{NETWORK:<16} not run: there is no {missing}");
            continue;
        }
        let plain = compile(comparison.program, &folder)?;
        let pair = |plain_first| {
            pair(
                comparison,
                [&validator, &plain, &task, &scratch],
                gate,
                plain_first,
            )
        };
        let mut pairs: Vec<Pair> = Vec::new();
        while pairs.len() < TRIES * rounds && quiet(&pairs) < rounds {
            pairs.push(pair(pairs.len() % 2 == 1)?);
        }
        for figure in comparison.figures {
            println!("{}", row(comparison.check, figure, &pairs)?);
        }
    }
    for (check, why) in WITHOUT_RATE {
        println!("{check:<16} no rate: {why}");
    }
    println!("load at the end: {}", load());
    Ok(ExitCode::SUCCESS)
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn compile(program: &str, folder: &Path) -> Result<PathBuf> {
    let source = paths::repository().join(format!("e2e/bench/plain/{program}.c"));
    let binary = folder.join(program);
    let mut compile = Command::new("cc");
    compile.args(["-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-o"]);
    compile.arg(&binary).arg(source).arg("-lpthread");
    command::run(&mut compile).with_context(|| format!("failed to compile {program}.c"))?;
    Ok(binary)
}

/// Measures both, one after the other.
fn pair(
    comparison: &Comparison,
    [validator, plain, task, scratch]: [&PathBuf; 4],
    gate: Duration,
    plain_first: bool,
) -> Result<Pair> {
    let time = comparison.time;
    let network = comparison.check == NETWORK;
    let program = |program: &PathBuf| match network {
        true => in_namespace(program),
        false => Command::new(program),
    };
    let ours = || {
        let mut ours = program(validator);
        ours.args(["check", comparison.check])
            .arg("--task")
            .arg(task);
        ours.arg("--scratch").arg(scratch);
        ours.arg("--budget-ms").arg(time.as_millis().to_string());
        read_ours(&command::run(&mut ours)?)
    };
    let theirs = || {
        let mut theirs = program(plain);
        theirs.arg(time.as_secs().to_string()).arg(scratch);
        read_plain(&command::run(&mut theirs)?)
    };
    let early = if plain_first {
        Some(measure(gate, theirs)?)
    } else {
        None
    };
    let (ours, is_quiet) = measure(gate, ours)?;
    let (plain, too) = early.map_or_else(|| measure(gate, theirs), Ok)?;
    let is_quiet = is_quiet && too;
    Ok(Pair {
        ours,
        plain,
        is_quiet,
    })
}

/// A command that runs a program in a network namespace of its own. The check's other side runs beside it there.
fn in_namespace(program: &PathBuf) -> Command {
    let script = format!(
        "{LINK} && case $* in *Network*)
             \"$0\" \"$@\" --listen 127.0.0.1 --wait-ms 9000 >/dev/null 2>&1 &
             set -- \"$@\" --partner 127.0.0.1 --partner-run bench --wait-ms 9000;;
         esac; \"$0\" \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]).arg(program);
    command
}

/// Runs a program, if it is short several times, and says whether the machine was quiet meanwhile.
fn measure(gate: Duration, once: impl Fn() -> Result<Values>) -> Result<(Values, bool)> {
    let was_quiet = wait_until_quiet(gate);
    // Children that have ended count as this process.
    let nobody = BTreeSet::new();
    let (before, started) = (ProcessorUse::now(&nobody), Instant::now());
    let mut runs = vec![once()?];
    while started.elapsed() < LEAST {
        runs.push(once()?);
    }
    let is_quiet = was_quiet && before.others_since(&nobody) <= NOISY;
    let names = runs[0].keys();
    let middle = |name: &String| {
        (
            name.clone(),
            median(runs.iter().filter_map(|run| run.get(name).copied())),
        )
    };
    Ok((names.map(middle).collect(), is_quiet))
}
