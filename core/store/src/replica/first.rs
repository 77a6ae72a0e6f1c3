//! What the first member of an epoch does beside keeping a copy: it learns what the epoch begins with, gives each call its
//! place, and sends the others what they lack.

use super::{Effect, Message, Phase, Replica, Version};
use crate::call::{COMMAND_LIMIT_BYTES, Call};
use crate::keys::{Keys, Progress};

/// Keys and contents in one message of calls, if it is more than one call.
const BATCH_BYTES: usize = COMMAND_LIMIT_BYTES;
/// Calls in one message.
const BATCH_CALLS: usize = 1 << 12;

/// What the first member knows of another.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// How far it is; none until the epoch has begun there.
    pub(super) has: Option<u64>,
    /// Up to where calls were sent to it.
    pub(super) sent: u64,
    /// What it was told to be stable.
    pub(super) told: u64,
    /// The number of the last question.
    pub(super) asked: u64,
}

impl Replica {
    /// The first member hears how far another is.
    pub(super) fn hear_version(&mut self, from: u32, version: Option<Version>) {
        let position = self.position();
        match &mut self.phase {
            Phase::Gathering(versions) => {
                versions.insert(from, version);
                self.gather();
            }
            Phase::Lost => self.send(from, Message::Lost),
            Phase::Running => match version {
                Some(version) if version.epoch == self.epoch => {
                    let Some(follower) = self.followers.get_mut(&from) else {
                        return;
                    };
                    let has = version.position.min(position);
                    if follower.has.is_none() {
                        follower.sent = has;
                    }
                    follower.has = follower.has.max(Some(has));
                }
                version => self.offer(from, version),
            },
            Phase::Waiting => {}
        }
    }

    /// Goes on when all have said how far they are.
    pub(super) fn gather(&mut self) {
        let Phase::Gathering(versions) = &self.phase else {
            return;
        };
        if versions.len() < self.members.len() {
            return;
        }
        let furthest = versions.iter().max_by_key(|(_, version)| **version);
        let Some((&holder, &furthest)) = furthest else {
            return;
        };
        match furthest {
            None => self.lose(),
            _ if furthest == self.version => self.lead(),
            // Again if the connection broke: it says how far it is on the next.
            Some(_) => self.send(holder, Message::Fetch),
        }
    }

    /// The first member has been given what the epoch begins with.
    pub(super) fn adopt(&mut self, version: Version, keys: Keys) {
        let Phase::Gathering(versions) = &self.phase else {
            return;
        };
        if versions.values().max() == Some(&Some(version)) {
            self.keys = keys;
            self.version = Some(version);
            self.lead();
        }
    }

    /// The first member holds what the epoch begins with, and all others have said what they hold.
    pub(super) fn lead(&mut self) {
        let Phase::Gathering(versions) = std::mem::replace(&mut self.phase, Phase::Waiting) else {
            return;
        };
        let Some(origin) = self.version else {
            return;
        };
        self.origin = origin;
        self.begin(origin);
        for (member, version) in versions {
            if member != self.node {
                self.offer(member, version);
            }
        }
    }

    /// Lets the epoch begin at a member: with what it holds, if that is what the epoch began with here, else with what
    /// there is now.
    pub(super) fn offer(&mut self, to: u32, version: Option<Version>) {
        let message = match self.version {
            Some(now) if version != Some(self.origin) => {
                Message::Begin(now, Some(Box::new(self.keys.clone())))
            }
            Some(_) | None => Message::Begin(self.origin, None),
        };
        self.send(to, message);
    }

    /// The first member is asked to do something.
    pub(super) fn asked(&mut self, from: u32, number: u64, call: Call) {
        let Some(follower) = self.followers.get_mut(&from) else {
            return;
        };
        if number <= follower.asked || call.client.node != from {
            return;
        }
        follower.asked = number;
        if matches!(self.phase, Phase::Running) {
            self.order(call);
        }
    }

    /// Gives a call its place.
    pub(super) fn order(&mut self, call: Call) {
        let progress = self
            .keys
            .progress(call.client, call.sequence, &call.command);
        if progress != Progress::Undone {
            return; // Who asks has it, or is about to.
        }
        self.apply(&call);
        self.log.push_back(call);
    }

    /// The first member sends what others lack.
    pub(super) fn spread(&mut self) {
        let position = self.position();
        let slowest = self.followers.values().map(|follower| follower.has);
        self.stable = match slowest.min() {
            None => position,
            Some(None) => self.stable,
            Some(Some(slowest)) => self.stable.max(slowest.min(position)),
        };
        let oldest = position - self.log.len() as u64;
        let stable = self.stable;
        let mut sends = Vec::new();
        for (&to, follower) in &mut self.followers {
            let lacks = follower.sent < position || follower.told < stable;
            if follower.has.is_none() || !lacks {
                continue;
            }
            let mut after = follower.sent.max(oldest);
            (follower.sent, follower.told) = (position, stable);
            loop {
                let calls = batch(self.log.range((after - oldest) as usize..));
                let until = after + calls.len() as u64;
                let message = Message::Calls {
                    after,
                    calls,
                    stable,
                };
                sends.push(Effect::Send { to, message });
                if until == position {
                    break;
                }
                after = until;
            }
        }
        self.effects.append(&mut sends);
        let known = stable.saturating_sub(oldest) as usize;
        self.log.drain(..known.min(self.log.len()));
    }
}

/// As many of these calls as go into one message, and one at least.
fn batch<'a>(calls: impl Iterator<Item = &'a Call>) -> Vec<Call> {
    let mut bytes = 0;
    let fits = |call: &&Call| {
        let first = bytes == 0;
        bytes += call.command.bytes() + 1;
        first || bytes <= BATCH_BYTES
    };
    calls.take(BATCH_CALLS).take_while(fits).cloned().collect()
}
