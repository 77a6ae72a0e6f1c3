//! The file system on three nodes next to what this machine's disk, links and FUSE can do at best, in interleaved rounds. Here
//! is the order of things; the command line is `args`'s, what is measured `quantity`'s, what has to hold `bars`'.

mod args;
mod bars;
mod field;
mod idle;
mod mounted;
mod part;
mod quantity;
mod relays;
mod results;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::statfs;
use serde_json::{Value, json};

use crate::{bar, machine};
pub(crate) use args::Args;
use field::Field;
use idle::Idle;
pub(crate) use part::Part;
use results::Results;

/// Of a file system in memory, as Linux has it.
const TMPFS: i64 = 0x0102_1994;

/// What the figures are.
const LEGEND: &str = "
A rate is of a whole file, opened and closed, in MB/s of 10^6 bytes; blocks of 1 MiB with O_DIRECT, as many on their way as the
depth says, over a file and on blocks of the disk that were written before, again and again for 0.6 s. Bars are medians of the
rounds' own ratios. ! = noisy: the machine did not become quiet, or others used more than 8 % of it. Disk: the same program over
a file on the same disk. Loop: the same program over the least file system, whose writes go over three relays to three files on
that disk and whose reads come from the first: no checksums, no flush, no recovery. cp and torch.save write new files, from
memory. All replicas and all floors lie on one disk, and the nodes share this machine's cores: ratios hold, rates do not travel.";

/// Measures, in namespaces of its own: cables and mounts end with it.
pub(crate) fn start(args: &Args) -> Result<()> {
    args.groups()?;
    if args.inside {
        return run(args);
    }
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let mut inside = Command::new("unshare");
    inside
        .args(["--net", "--mount", "--propagation", "private"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .arg("--inside");
    Err(inside.exec()).context("failed to start unshare")
}

fn run(args: &Args) -> Result<()> {
    fs::create_dir_all(&args.scratch)
        .with_context(|| format!("failed to make {}", args.scratch.display()))?;
    let disk = disk(&args.scratch)?;
    let facts = machine::facts();
    println!("machine: {facts}");
    println!(
        "disk: {disk}: all three targets and all floors lie on it, so each byte of a volume is written to it three times"
    );
    for warning in machine::warnings() {
        println!("warning: {warning}");
    }
    let field = Field::new(args)?;
    let mut results = Results::default();
    let write = |results: &Results, idle: Option<&Idle>| match &args.json {
        Some(file) => write(
            file,
            &json!({
                "machine": facts,
                "disk": disk,
                "fileBytes": args.file_bytes(),
                "results": results.json(),
                "idle": idle.map(Idle::json),
                "bars": bar::json(&bars::all(results, idle)),
            }),
        ),
        None => Ok(()),
    };
    let rounds = args.rounds();
    for round in 1..=rounds {
        println!("== round {round} of {rounds}");
        field.round(&mut results);
        // After every round: who ends a long run early keeps what there is.
        write(&results, None)?;
    }
    let idle = field.idle()?;
    results.print();
    bar::print(&bars::all(&results, idle.as_ref()));
    println!("{LEGEND}");
    write(&results, idle.as_ref())?;
    let failed = results.failed();
    ensure!(failed.is_empty(), "failed to measure {}", failed.join(", "));
    Ok(())
}

/// What the scratch folder lies on. Memory is no disk.
fn disk(scratch: &Path) -> Result<String> {
    let found =
        statfs(scratch).with_context(|| format!("failed to look at {}", scratch.display()))?;
    ensure!(
        found.f_type != TMPFS,
        "{} lies in memory: give --scratch a folder on a disk",
        scratch.display()
    );
    let mut findmnt = Command::new("findmnt");
    findmnt.args(["--noheadings", "--output", "SOURCE,FSTYPE", "--target"]);
    let said = cluster::command::run(findmnt.arg(scratch))?;
    Ok(said.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn write(file: &Path, all: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(all).context("failed to write the results")?;
    fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}
