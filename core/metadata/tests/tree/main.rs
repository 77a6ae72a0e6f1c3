//! The operations over a store in memory that keeps snapshots and compares as the real ones do: each by itself, and many
//! at once under conflicts, unknown commits and mounts that die, judged by a simple tree. `SEED=n` replays one seed; with
//! `SIM_SECONDS=n` the test that explores goes on with new ones.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "test harness"
)]

mod actors;
mod drawn;
mod endings;
mod fixture;
mod handles;
mod kept;
mod names;
mod once;
mod oracle;
mod physical;
mod renames;
mod runs;
mod store;
mod volumes;
mod world;

use sim::is_replay;

/// META-1 to META-8: whatever goes wrong, what is answered is what a tree that nobody shares would have answered in the
/// order of the commits, and when all is over nothing is left that nobody can reach.
#[test]
fn a_shared_tree_is_one_tree_whatever_goes_wrong() {
    let never = runs::survive(400);
    assert!(never.is_empty() || is_replay(), "never: {never:?}");
}
