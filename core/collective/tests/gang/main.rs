//! A whole gang in one process: machines and what drives them, over a simulated network, under faults of every kind. In the
//! modules without a leader the epoch is the test's; `losses` and `bars` have everything that takes part: rendezvous,
//! store, leaders, sidecars that crash and come back. `SEED=n` replays one seed; with `SIM_SECONDS=n` the tests that
//! explore go on with new ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod bars;
mod calls;
mod failure;
mod faults;
mod fixture;
mod groups;
mod losses;
mod messages;
mod misfortune;
mod numerics;
mod opening;
mod parts;
mod priority;
mod results;
mod world;
