//! How fast data goes to a partner node and comes from it, and whether all of it arrives as it was
//! sent. Both nodes run this check at the same time: one listens, the other dials and says when it
//! begins, and both report what they measured together.

mod dial;
mod lane;
mod listen;
mod protocol;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use health::{Check, CheckResult};

use super::{CheckContext, measured, skipped, wrong};
use protocol::Tally;

/// In sixteenths of the budget: a direction's warm-up and its window, of which the two directions
/// take all of it; when a session has to be over; and how long who listens waits for another one,
/// which comes at once if it comes.
const WARM_UP: u32 = 1;
const WINDOW: u32 = 7;
const SESSION: u32 = 30;
const AGAIN: u32 = 4;

/// The two nodes of the check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    /// Uid of the run that listens.
    pub(crate) uid: &'a str,
    /// What this side does.
    pub(crate) role: Role,
    /// How long it waits for the other.
    pub(crate) patience: Duration,
    /// How long it takes at most.
    pub(crate) limit: Duration,
}

/// What a side does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// It is dialled at this address.
    Listen(SocketAddr),
    /// It dials the other at this address.
    Dial(SocketAddr),
}

pub(super) fn run(context: &CheckContext<'_>, pair: &Pair<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let started = Instant::now();
    match pair.role {
        Role::Dial(address) => dial::run(context, pair, address, started),
        Role::Listen(address) => listen::run(context, pair, address, started),
    }
}

/// The partner is not there, and says nothing of this node.
fn absent(detail: String) -> Vec<CheckResult> {
    vec![skipped(Check::Network, detail)]
}

/// A part of the check's budget.
fn share(context: &CheckContext<'_>, sixteenths: u32) -> Duration {
    context.budget * sixteenths / 16
}

/// What a session says: of each lane what it sent and what it received.
fn figures(lanes: &[[Tally; 2]], window: Duration) -> Vec<CheckResult> {
    let direction = |name, which: usize| {
        let lanes: Vec<Tally> = lanes.iter().map(|lane| lane[which]).collect();
        settle(name, &lanes, window)
    };
    vec![direction("send", 0), direction("receive", 1)]
}

/// What the lanes of a direction say together.
fn settle(direction: &str, lanes: &[Tally], window: Duration) -> CheckResult {
    let wrong_byte = |(lane, tally): (usize, &Tally)| Some((lane, tally.wrong?));
    if let Some((lane, byte)) = lanes.iter().enumerate().find_map(wrong_byte) {
        let detail = format!(
            "connection {lane}, offset {:#x}: sent {:02x}, arrived as {:02x}",
            byte.offset, byte.expected, byte.got
        );
        return wrong(Check::Network, direction, detail);
    }
    let bytes: u64 = lanes.iter().map(|lane| lane.bytes).sum();
    let value = bytes as f64 / window.as_nanos().max(1) as f64;
    measured(Check::Network, direction, value)
}

#[cfg(test)]
mod tests;
