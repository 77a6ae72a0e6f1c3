//! The store of a target on a simulated disk: random use beside a model, power cuts after any step, rot, a full disk, and
//! a journal that goes round many times. `shell` carries out the store's plans, `edits` draws some, `world` uses
//! a store at random.

#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::panic,
    reason = "test harness"
)]

mod contents;
mod damage;
mod edits;
mod full;
mod kept;
mod power;
mod rot;
mod rounds;
mod shell;

mod world;
