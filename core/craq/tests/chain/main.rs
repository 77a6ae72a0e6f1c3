//! Whole chains in one process: the members that ship, over a simulated network and stores that lose what was not
//! flushed, under clients that send again until they are answered. `SEED=n` replays one seed; with `SIM_SECONDS=n` the
//! test that explores goes on with new ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod clients;
mod faults;
mod history;
mod runs;
mod steps;
mod store;
mod world;

use sim::is_replay;

/// CRAQ-2, CRAQ-3, CRAQ-4, CRAQ-5, CRAQ-6 and CRAQ-7: whatever goes wrong, reads and writes are those of one chunk that
/// nobody copies, each write happens once or was refused, and in the end all members have the same.
#[test]
fn a_chain_is_one_register_whatever_goes_wrong() {
    let never = runs::survive(600);
    assert!(never.is_empty() || is_replay(), "never: {never:?}");
}
