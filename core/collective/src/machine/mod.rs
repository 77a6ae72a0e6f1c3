//! The collective protocol of one node in one epoch, as a step function: inputs in, effects out. Owns order,
//! agreement, flow control and failure. Leaves bytes, sockets, threads and clocks to the shell.
//!
//! # What the shell does
//! - One machine per group and epoch; a new epoch gets a new machine. `now` is any monotonic time that never
//!   goes back, the same origin for all calls of one machine.
//! - Links: one ordered, reliable link to each of [`Machine::peers`]. Frames to one peer leave in the order of
//!   their effects (control frames may overtake payload frames, payload frames of one tree may not overtake
//!   each other).
//! - Memory: `slots` receive slots of `chunk_bytes` for each of [`Machine::receives`], `slots` send slots for
//!   each of [`Machine::sends`], one input per rank and one result per operation.
//! - Incoming `Up` and `Down`: after the header ask [`Machine::place`], read the payload there, then hand in
//!   [`Input::Frame`]. Every other frame is handed in at once.
//! - Each [`Ticket`] is reported once with [`Input::Done`], also after the operation failed.
//! - The k-th `Submit` of a local rank is operation k: the shell counts along.
//! - After each `handle`, carry out the effects, then sleep until the next input or [`Machine::wake_at`],
//!   whichever comes first, and hand in [`Input::Tick`] then.

mod cause;
mod io;

use std::time::Duration;

pub use cause::{Broken, Cause, Claim, Mismatch, Violation};
pub use io::{Buffer, Effect, Fence, Frame, Input, OpId, Placement, Region, Ticket};

use crate::layout::Layout;
use crate::tree::DoubleTree;

/// Bytes of a chunk when nothing else is asked for: the best of 64 KiB to 1 MiB where it was measured.
pub const DEFAULT_CHUNK_BYTES: u32 = 512 * 1024;
/// Slots of a tree edge when nothing else is asked for: one filling, one reduced, two on the way.
pub const DEFAULT_SLOTS: u8 = 4;
/// Operations a rank may have in flight; a further `Submit` must wait (see [`Machine::may_submit`]).
pub const MAX_IN_FLIGHT: u64 = 64;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A neighbour hears from us at least this often.
    pub heartbeat: Duration,
    /// Silence after which a neighbour is a suspect. A peer that froze right after a heartbeat is named
    /// this long after it, so within 2 s with room for the way and the wake-up.
    pub suspect: Duration,
    /// Silence after which a neighbour is given up and the epoch ends.
    pub lost: Duration,
    /// Waiting after which missing local ranks are named.
    pub late: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            suspect: Duration::from_millis(1750),
            lost: Duration::from_secs(10),
            late: Duration::from_secs(1),
        }
    }
}

/// What one node needs to know to take part in an epoch.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's rank.
    pub node: usize,
    /// All ranks of the group.
    pub layout: Layout,
    /// The trees over the nodes; the same value on every node.
    pub trees: DoubleTree,
    /// Attempt and epoch.
    pub fence: Fence,
    /// Bytes of a chunk: a multiple of 64, the same on every node.
    pub chunk_bytes: u32,
    /// Slots of a tree edge, 1 to 64, the same on every node.
    pub slots: u8,
    /// Time limits.
    pub timing: Timing,
}

/// One node's part in the collectives of one epoch.
#[derive(Debug)]
pub struct Machine {
    config: Config,
}

impl Machine {
    /// A machine that has started no operation. `now` starts the silence timers.
    #[must_use]
    pub fn new(config: Config, _now: Duration) -> Self {
        Self { config }
    }

    /// The nodes it needs a link to.
    #[must_use]
    pub fn peers(&self) -> Vec<usize> {
        self.config.trees.neighbours(self.config.node)
    }

    /// `(peer, tree)` of every child that needs receive slots.
    #[must_use]
    pub fn receives(&self) -> Vec<(usize, u8)> {
        Vec::new()
    }

    /// The trees in which it has a parent, hence send slots.
    #[must_use]
    pub fn sends(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Whether a local rank may call its next operation now, or has to wait for earlier ones to be released.
    #[must_use]
    pub fn may_submit(&self, _rank: usize) -> bool {
        true
    }

    /// Where the payload of an `Up` or `Down` goes. Only looks; the frame itself comes with [`Input::Frame`].
    #[must_use]
    pub fn place(&self, _peer: usize, _fence: Fence, _frame: &Frame) -> Placement {
        Placement::Discard
    }

    /// Takes one input and appends what has to be done.
    pub fn handle(&mut self, _now: Duration, _input: Input, _effects: &mut Vec<Effect>) {}

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        Duration::MAX
    }
}
