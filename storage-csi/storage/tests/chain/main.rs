//! Whole chains as in the tests of `craq`, over targets as they ship, on simulated disks that lose their power: the two
//! halves of a replica, and what lies between them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

#[path = "../../../../core/craq/tests/chain/clients.rs"]
mod clients;
#[path = "../../../../core/craq/tests/chain/faults.rs"]
mod faults;
#[path = "../../../../core/craq/tests/chain/history.rs"]
mod history;
#[path = "../../../../core/craq/tests/chain/runs.rs"]
mod runs;
mod store;
#[path = "../../../../core/craq/tests/chain/world.rs"]
mod world;

#[test]
fn a_chain_over_targets_is_one_register_whatever_goes_wrong() {
    runs::survive(200);
}
