//! Runs the real launcher around real processes. What the rules are is tested in `gang`; this
//! shows that signals, exit codes, output and reports arrive.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod ending;
mod node;
mod stacks;
mod stopping;
