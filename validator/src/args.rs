//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

use contract::validation::PORT;
use health::Check;

/// Checks the node that it runs on, and writes a report.
#[derive(Clone, Debug, clap::Parser)]
#[command(version)]
pub struct Args {
    /// What to check, as the operator wrote it.
    #[arg(
        long,
        global = true,
        default_value = "/etc/fireflyer/attempt/validation.json"
    )]
    pub task: PathBuf,
    /// Where the report goes.
    #[arg(long, default_value = "/dev/termination-log")]
    pub report: PathBuf,
    /// Folder whose disk is checked.
    #[arg(long, global = true, default_value = "/scratch")]
    pub scratch: PathBuf,
    /// Folder of a claim that is checked beside that disk.
    #[arg(long, global = true)]
    pub claim: Option<PathBuf>,
    /// Address of this node at which the validator of the partner node dials it for the check
    /// Network. With neither this nor a partner that check is skipped.
    #[arg(long, global = true, value_name = "IP", conflicts_with = "partner")]
    pub listen: Option<IpAddr>,
    /// Address of the partner node's validator, which listens.
    #[arg(long, global = true, value_name = "IP", requires = "partner_run")]
    pub partner: Option<IpAddr>,
    /// Uid of the partner's run.
    #[arg(long, global = true, value_name = "UID")]
    pub partner_run: Option<String>,
    /// Port of whoever listens.
    #[arg(long, global = true, default_value_t = PORT)]
    pub port: u16,
    /// Program that is started for each check, instead of this one.
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// Nothing: all checks of the task.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What else the program does.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Run one check and print its results, a line of JSON each.
    Check(CheckArgs),
}

/// Which check, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// The check.
    pub name: Check,
    /// Time for its measurements, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    pub budget_ms: u64,
    /// Time that it may wait for the partner node besides, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub wait_ms: u64,
    /// Time that it may take in all, in milliseconds.
    #[arg(long, default_value_t = 60_000)]
    pub limit_ms: u64,
}
