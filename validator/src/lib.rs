//! The validator: checks the node that it runs on, once, and reports what it measured. It judges
//! nothing: floors, medians and remedies are the operator's, by `core/health`. Each check runs in
//! a process of its own, so that one that crashes or hangs is an error and the others go on.

pub mod args;
pub mod child;
pub mod run;

mod checks;
mod limits;
mod machine;
mod process;
mod results;
mod schedule;

use std::io::Write as _;

/// One line for whoever reads the container's log.
fn log(line: &str) {
    let _nobody_reads = writeln!(std::io::stderr(), "validator: {line}");
}
