//! Entry of every process of the file system: parse, run, report why it ended.

use clap::Parser;
use storage_csi::args::Cli;

fn main() -> anyhow::Result<()> {
    // One process has the mounts of all tenants of a node.
    daemon::panics::end_process_unless(fuse::serve::is_answering);
    storage_csi::run::run(Cli::parse())
}
