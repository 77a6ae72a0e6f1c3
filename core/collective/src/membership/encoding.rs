//! The control stream between a sidecar and the operator's rendezvous service: its messages and
//! their framing, without IO, so that threads and tasks share it. JSON in frames with a length in
//! front: some messages a second, and a person can read them. Parsing is total. Who may say what when
//! is decided by [`super::Membership`], for which [`event`] and [`to_sidecar`] translate.
//!
//! Releases differ: of a message that a receiver does not know, only the kind is read, and the stream goes on. Who sends
//! a kind that not every release knows looks first whether the other side has said that it does.

pub use crate::limits::{FRAME_LIMIT_BYTES, TEXT_LIMIT_BYTES};

mod events;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};

use super::{Progress, SuspicionReason};
use crate::recovery::{EpochReport, Resume};
pub use events::{event, fits, stopped, to_sidecar};

/// The port of the rendezvous service.
pub const PORT: u16 = 9443;
/// Largest frame towards the operator, but for [`ToOperator::Stopped`]: what it holds of each of its sidecars.
pub const TO_OPERATOR_LIMIT_BYTES: usize = 64 << 10;
/// Most features that a hello may list.
pub const FEATURES_LIMIT: usize = 16;
/// How often a sidecar says that it lives.
pub const HEARTBEAT_SECONDS: u64 = 1;

const LENGTH_BYTES: usize = 4;

/// Why a frame was refused. The stream is of no use afterwards: close it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Longer than any message.
    #[error(
        "failed to read a rendezvous frame: {0} bytes, at most {FRAME_LIMIT_BYTES} are allowed"
    )]
    TooLarge(usize),
    /// Not a message.
    #[error("failed to parse a rendezvous message")]
    Parse(#[source] serde_json::Error),
    /// Could not be written as a frame.
    #[error("failed to write a rendezvous message")]
    Write(#[source] serde_json::Error),
}

/// What a sidecar says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ToOperator {
    /// First on every connection: where peers reach this rank.
    Hello {
        /// Version of the sidecar's build.
        version: String,
        /// Its address.
        address: IpAddr,
        /// Its data port.
        port: u16,
        /// The epoch it is a member of, when it had joined before this connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        joined_epoch: Option<u64>,
        /// What it understands beyond what every release does: words of [`Features`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        features: Vec<String>,
    },
    /// All peer connections of the epoch stand.
    Joined {
        /// The epoch.
        epoch: u64,
    },
    /// Once a second.
    Heartbeat {
        /// How far training is; from the node of the lowest rank that is left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        progress: Option<Progress>,
        /// Number of operations that the ranks of this node have finished; none where they have finished none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operations: Option<u64>,
    },
    /// A peer does not answer as it should.
    Suspect {
        /// The epoch it was a member of.
        epoch: u64,
        /// Its node rank.
        rank: u32,
        /// What is wrong with it.
        reason: SuspicionReason,
        /// The same for a person.
        detail: String,
    },
    /// A frozen peer sends again.
    Recovered {
        /// The epoch it is a member of.
        epoch: u64,
        /// Its node rank.
        rank: u32,
    },
    /// It has stopped in this epoch and all before, and waits for the next. Said again on every connection, and when
    /// whom it reaches changes.
    Stopped {
        /// The epoch.
        epoch: u64,
        /// How far it is.
        report: EpochReport,
        /// Members that answered it.
        reached: Vec<u32>,
        /// Members that did not.
        unreached: Vec<u32>,
    },
    /// A process of its trainer is gone. Said again on every connection.
    RankLost,
    /// Leaving on purpose.
    #[serde(rename = "bye")]
    Leaving,
}

/// What the operator says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ToSidecar {
    /// Another replica leads: dial it.
    Redirect {
        /// Its address.
        address: SocketAddr,
    },
    /// Everybody is known: connect along the tree edges.
    Roster {
        /// The epoch these are the members of.
        epoch: u64,
        /// The members, in rank order.
        nodes: Vec<Peer>,
    },
    /// Everybody has joined: the trainer may start.
    Go {
        /// The epoch.
        epoch: u64,
    },
    /// Stop in this epoch and all before, and say how far it is.
    Revoke {
        /// The epoch.
        epoch: u64,
        /// The members that are known, by rank.
        members: Vec<Peer>,
    },
    /// Who goes on together: connect along the tree edges.
    Next {
        /// The epoch these are the members of.
        epoch: u64,
        /// The members, by rank.
        members: Vec<Peer>,
        /// What they begin with.
        #[serde(serialize_with = "sorted")]
        resume: Resume,
    },
    /// Not now: dial again. Only for who announced [`Features::retry`].
    Retry {
        /// Why.
        reason: String,
    },
    /// The gang makes no progress: the ranks are to print where they are. Only for who announced [`Features::stacks`].
    Stacks {
        /// Why.
        reason: String,
    },
    /// This sidecar is not wanted.
    Refused {
        /// Why.
        reason: String,
        /// Whether it never will be: what belongs to it has to end, also where no kubelet ends it.
        #[serde(default)]
        void: bool,
    },
}

/// With its keys in order, as every release has written it.
fn sorted<S: Serializer>(resume: &Resume, serializer: S) -> Result<S::Ok, S::Error> {
    let value = serde_json::to_value(resume).map_err(serde::ser::Error::custom)?;
    value.serialize(serializer)
}

/// What a sidecar understands beyond what every release does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// [`ToSidecar::Retry`].
    pub retry: bool,
    /// [`ToSidecar::Stacks`].
    pub stacks: bool,
}

impl Features {
    /// What this release understands.
    pub const OURS: Self = Self {
        retry: true,
        stacks: true,
    };
    const RETRY: &'static str = "retry";
    const STACKS: &'static str = "stacks";

    /// As a hello lists them.
    #[must_use]
    pub fn list(self) -> Vec<String> {
        let Self { retry, stacks } = self;
        let words = [(retry, Self::RETRY), (stacks, Self::STACKS)];
        let understood = words.into_iter().filter(|(understands, _)| *understands);
        understood.map(|(_, word)| word.to_owned()).collect()
    }

    /// Of a hello. What this release does not know it does not use.
    #[must_use]
    pub fn of(list: &[String]) -> Self {
        let list = &list[..list.len().min(FEATURES_LIMIT)];
        let has = |word: &str| list.iter().any(|feature| feature == word);
        Self {
            retry: has(Self::RETRY),
            stacks: has(Self::STACKS),
        }
    }
}

/// The messages of one direction.
pub trait Messages: DeserializeOwned {
    /// Their kinds.
    const KINDS: &'static [&'static str];

    /// Reads the body of a frame.
    fn parse(body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }
}

/// A [`ToOperator::Stopped`]. An enum with a tag keeps every value until it knows the tag, and a hostile report takes a
/// hundred times its length so; this one keeps none.
#[derive(Deserialize)]
struct Stopped {
    epoch: u64,
    report: EpochReport,
    reached: Vec<u32>,
    unreached: Vec<u32>,
}

impl Messages for ToOperator {
    const KINDS: &'static [&'static str] = &[
        "hello",
        "joined",
        "heartbeat",
        "suspect",
        "recovered",
        "stopped",
        "rankLost",
        "bye",
    ];

    fn parse(body: &[u8]) -> serde_json::Result<Self> {
        if is_stopped(body) != Some(true) {
            return serde_json::from_slice(body);
        }
        let Stopped {
            epoch,
            report,
            reached,
            unreached,
        } = serde_json::from_slice(body)?;
        Ok(Self::Stopped {
            epoch,
            report,
            reached,
            unreached,
        })
    }
}

impl Messages for ToSidecar {
    const KINDS: &'static [&'static str] = &[
        "redirect", "roster", "go", "revoke", "next", "retry", "stacks", "refused",
    ];
}

/// What is read of a message that is not known.
#[derive(Deserialize)]
struct Tag<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

/// Where a rank is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its node rank.
    pub rank: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its data port.
    pub port: u16,
}

/// Frames a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message).map_err(Error::Write)?;
    let length = frame.len() - LENGTH_BYTES;
    if length > FRAME_LIMIT_BYTES {
        return Err(Error::TooLarge(length));
    }
    frame[..LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// Text from elsewhere, cut to what a message may carry.
pub fn text(text: &str) -> String {
    let mut end = text.len().min(TEXT_LIMIT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Turns bytes as they arrive into messages. Holds at most one frame and one read, and no room for a large frame that it
/// has handed out.
#[derive(Debug)]
pub struct Decoder<T> {
    bytes: Vec<u8>,
    taken: usize,
    skipped: u64,
    message: PhantomData<fn() -> T>,
}

impl<T> Default for Decoder<T> {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            taken: 0,
            skipped: 0,
            message: PhantomData,
        }
    }
}

impl<T: Messages> Decoder<T> {
    /// Takes bytes as they arrived. Call `next` until it has no more, then push again.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// How many messages were of a kind that this release does not know.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The length of the frame that is not whole yet, and what is there of it.
    #[must_use]
    pub fn unfinished(&self) -> Option<(usize, &[u8])> {
        let rest = self.bytes.get(self.taken..)?;
        let (length, body) = rest.split_first_chunk::<LENGTH_BYTES>()?;
        Some((u32::from_le_bytes(*length) as usize, body))
    }

    /// The next whole message, if it is there. Those of kinds that this release does not know are skipped.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not distinguish `not yet` from `the stream is broken`"
    )]
    pub fn next(&mut self) -> Result<Option<T>, Error> {
        loop {
            let rest = &self.bytes[self.taken..];
            let Some((length, body)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
                return Ok(None);
            };
            let length = u32::from_le_bytes(*length) as usize;
            if length > FRAME_LIMIT_BYTES {
                return Err(Error::TooLarge(length));
            }
            let Some(body) = body.get(..length) else {
                return Ok(None);
            };
            let message = T::parse(body);
            if message.is_err() && is_unknown::<T>(body) {
                self.skipped += 1;
                self.taken += LENGTH_BYTES + length;
                continue;
            }
            let message = message.map_err(Error::Parse)?;
            self.taken += LENGTH_BYTES + length;
            if length > TO_OPERATOR_LIMIT_BYTES {
                self.bytes.drain(..self.taken);
                self.taken = 0;
                self.bytes.shrink_to_fit();
            }
            return Ok(Some(message));
        }
    }
}

/// Whether a frame is a message of a kind that this release does not know.
fn is_unknown<T: Messages>(body: &[u8]) -> bool {
    serde_json::from_slice::<Tag<'_>>(body).is_ok_and(|tag| !T::KINDS.contains(&&*tag.kind))
}

/// Whether a frame that is not whole yet can become a [`ToOperator::Stopped`]; none while too little of it is there.
#[must_use]
pub fn is_stopped(body: &[u8]) -> Option<bool> {
    const BEGINNING: &[u8] = br#"{"kind":"stopped","#;
    let there = body.len().min(BEGINNING.len());
    match body[..there] == BEGINNING[..there] {
        true if there < BEGINNING.len() => None,
        is_stopped => Some(is_stopped),
    }
}
