//! Several groups at once in one gang: opened, used and closed in a different order on every rank, with nodes that are
//! lost or lose their memory meanwhile. Who is a member is decided by the test; that leaders agree on it is simulated in
//! `recovery`. `SEED=n` replays one seed; with `SIM_SECONDS=n` the test in `anything` goes on with new ones.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test harness: what happened is shown when it fails"
)]

mod anything;
#[path = "../fixture/draw.rs"]
#[expect(
    dead_code,
    reason = "calls are other ones here: integers, and parts of each rank's own"
)]
mod draw;
mod epochs;
mod exchange;
#[path = "../fixture/integers.rs"]
mod integers;
#[path = "../fixture/memory.rs"]
mod memory;
mod messages;
mod opening;
mod oracle;
mod priority;
#[path = "../fixture/refusal.rs"]
mod refusal;
mod shell;
mod trainer;
mod world;
