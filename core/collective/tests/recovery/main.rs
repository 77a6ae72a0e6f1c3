//! Going on after a loss, with everything that takes part: machines, rendezvous, store, leaders, sidecars that crash
//! and come back, trainers and nodes that die, partitions, frozen peers, groups of some ranks beside the world. `SEED=n` replays one seed; with
//! `SIM_SECONDS=n` the test in `anything` goes on with new ones and prints how often each fault met each phase.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test harness: what happened is shown when it fails"
)]

mod anything;
mod bars;
mod effects;
mod exchange;
mod faults;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../fixture/integers.rs"]
mod integers;
mod join;
mod lanes;
mod links;
mod opening;
mod operator;
mod oracle;
mod ranks;
#[path = "../fixture/refusal.rs"]
mod refusal;
mod sidecar;
mod stop;
mod world;
