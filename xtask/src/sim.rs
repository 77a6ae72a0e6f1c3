//! `cargo xtask sim`: the seeded simulations for longer than the tests run them, or one seed again.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::args::{Args, Usage};
use crate::{Verb, child, counts, faults, mutants};

pub(crate) const VERB: Verb = Verb {
    name: "sim",
    about: "Run a simulation with new seeds, or with one seed again",
    usage: "
Usage: cargo xtask sim SUITE [--minutes M] [--seed SEED]
       cargo xtask sim mutants [--only WORDS]

Suites:
  scheduler   the operator's decisions over a simulated API, killed after each write
  nodes       healthy gangs on nodes that blink, die, are cordoned or deleted, under leaders that see it late
  collective  the rank machine over a simulated network with crashes and silence
  groups      several groups at once in one gang, with messages, over losses of nodes and of their memory
  recovery    going on after a loss: machines, rendezvous, leaders, each fault in each phase
  validation  validations beside jobs on nodes that die and are cordoned, under leaders that are killed
  chunk-store a target's disk that loses its power after any step
  craq        a chain's members over stores that lose their power, links, full disks, flipped bits
  storage     the same over stores as they ship, on disks that lose their power
  metadata    a file system's names over a store with conflicts, unknown commits, mounts that die
  chain-table managers of one table that interleave, are cut off and repeated, with disks that move and are lost
  kv          transactions that interleave, conflict, and whose outcome is unknown, against one map
  quarantine  nodes that fail, are repaired, replaced and let out, under leaders that see it late

  --minutes M  keep drawing new seeds for M minutes (default 1), and add what was counted to
               docs/measurements/runs.csv and its page, docs/protocol/faults.md
  --seed SEED  run this seed alone, as a failing run printed it
  mutants      put each bug of core/*/mutants.txt into a copy of the tree: the tests of its crate must notice,
               and pass without one
  --only WORDS only the mutants whose package or first line contains WORDS",
    run,
};

/// Each suite, its package and test program, and the test in it that goes on with new seeds.
const SUITES: &[(&str, &str, &str, &str)] = &[
    (
        "scheduler",
        "scheduler",
        "planner",
        "crowd::all_jobs_end_whatever_goes_wrong",
    ),
    (
        "nodes",
        "scheduler",
        "planner",
        "whatever_happens_to_nodes_no_healthy_gang_is_ended",
    ),
    ("collective", "collective", "gang", "misfortune::"),
    (
        "groups",
        "collective",
        "gang",
        "any_groups_end_alike_whatever_is_lost",
    ),
    ("recovery", "collective", "gang", "losses::"),
    (
        "validation",
        "scheduler",
        "planner",
        "validation::no_node_stays_reserved",
    ),
    (
        "quarantine",
        "health",
        "lives",
        "nobody_leaves_quarantine_but_by_a_run_that_passes",
    ),
    (
        "chunk-store",
        "chunk-store",
        "store",
        "a_power_cut_after_any_step_takes_nothing_that_was_acknowledged",
    ),
    (
        "chain-table",
        "chain-table",
        "random",
        "managers_that_interleave_are_cut_off_and_repeat_keep_the_table",
    ),
    (
        "kv",
        "kv",
        "serializable",
        "transactions_are_serializable_under_conflicts_and_unknown_commits",
    ),
    (
        "storage",
        "storage",
        "chain",
        "a_chain_over_targets_is_one_register_whatever_goes_wrong",
    ),
    (
        "metadata",
        "metadata",
        "tree",
        "a_shared_tree_is_one_tree_whatever_goes_wrong",
    ),
    (
        "craq",
        "craq",
        "chain",
        "a_chain_is_one_register_whatever_goes_wrong",
    ),
];

fn run(mut args: Args) -> Result<ExitCode> {
    let minutes: u64 = args.parsed("--minutes")?.unwrap_or(1);
    let seed: Option<u64> = args.parsed("--seed")?;
    let only = args.option("--only")?;
    let suite = args.positional();
    args.finish()?;
    if suite.as_deref() == Some("mutants") {
        return mutants::run(only.as_deref());
    }
    let known = SUITES
        .iter()
        .find(|(name, ..)| suite.as_deref() == Some(name));
    let Some((name, package, program, test)) = known else {
        let names: Vec<_> = SUITES.iter().map(|(name, ..)| *name).collect();
        return Err(Usage(format!("SUITE is one of {}", names.join(", "))).into());
    };
    let mut command = child::command("cargo");
    command.args([
        "test",
        "--package",
        package,
        "--test",
        program,
        "--",
        test,
        "--nocapture",
    ]);
    let succeeded = match seed {
        Some(seed) => {
            command.env("SEED", seed.to_string());
            command.status().context("failed to start cargo")?.success()
        }
        None => {
            command.env("SIM_SECONDS", (minutes * 60).to_string());
            let succeeded = counts::run_and_add(&mut command, name, &["core"])?;
            faults::page(false)?;
            succeeded
        }
    };
    Ok(if succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
