//! The control stream between a sidecar and the operator's rendezvous service: its messages and
//! their framing, without IO, so that threads and tasks share it. JSON in frames with a length in
//! front: some messages a second, and a person can read them. Who may say what when is decided by
//! `collective::membership`.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::run_dir::Progress;

/// The port of the rendezvous service.
pub const PORT: u16 = 9443;
/// Largest frame: a roster of 10,000 nodes is some 600 KiB.
pub const FRAME_LIMIT_BYTES: usize = 1 << 20;
/// How often a sidecar says that it lives.
pub const HEARTBEAT_SECONDS: u64 = 1;
/// Longest text inside a message.
pub const TEXT_LIMIT_BYTES: usize = 1 << 10;

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

/// Why a rank is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SuspectReason {
    /// Its connection ended without a goodbye.
    Dead,
    /// It cannot be reached.
    Silent,
    /// Its connection stands but nothing comes.
    Frozen,
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
    },
    /// A peer does not answer as it should.
    Suspect {
        /// The epoch it was a member of.
        epoch: u64,
        /// Its node rank.
        rank: u32,
        /// What is wrong with it.
        reason: SuspectReason,
        /// The same for a person.
        detail: String,
    },
    /// A frozen peer was heard again.
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
        /// How far it is, in the words of `collective::recovery`.
        report: serde_json::Value,
        /// Members that answered it.
        reached: Vec<u32>,
        /// Members that did not.
        unreached: Vec<u32>,
    },
    /// A process of its trainer is gone. Said again on every connection.
    RankLost,
    /// Leaving on purpose.
    Bye,
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
        /// What they begin with, in the words of `collective::recovery`.
        resume: serde_json::Value,
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

/// Turns bytes as they arrive into messages. Holds at most one frame and one read.
#[derive(Debug)]
pub struct Decoder<T> {
    bytes: Vec<u8>,
    taken: usize,
    message: PhantomData<fn() -> T>,
}

impl<T> Default for Decoder<T> {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            taken: 0,
            message: PhantomData,
        }
    }
}

impl<T: DeserializeOwned> Decoder<T> {
    /// Takes bytes as they arrived. Call `next` until it has no more, then push again.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if it is there.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not tell `not yet` from `the stream is broken`"
    )]
    pub fn next(&mut self) -> Result<Option<T>, Error> {
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
        let message = serde_json::from_slice(body).map_err(Error::Parse)?;
        self.taken += LENGTH_BYTES + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn spoken() -> Vec<ToOperator> {
        vec![
            ToOperator::Hello {
                version: "0.1.0".to_owned(),
                address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
                port: 9404,
                joined_epoch: Some(1),
            },
            ToOperator::Joined { epoch: 1 },
            ToOperator::Heartbeat { progress: None },
            ToOperator::Suspect {
                epoch: 1,
                rank: 3,
                reason: SuspectReason::Frozen,
                detail: "nothing for 2 s".to_owned(),
            },
            ToOperator::Recovered { epoch: 1, rank: 3 },
            ToOperator::Bye,
        ]
    }

    #[test]
    fn the_largest_gang_fits_one_frame() {
        let nodes = (0..10_000)
            .map(|rank| Peer {
                rank,
                address: "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap(),
                port: u16::MAX,
            })
            .collect();
        let roster = ToSidecar::Roster { epoch: 1, nodes };
        let mut decoder = Decoder::default();
        decoder.push(&encode(&roster).unwrap());
        assert_eq!(decoder.next().unwrap(), Some(roster));
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_anything_is_kept() {
        let mut decoder = Decoder::<ToOperator>::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next(), Err(Error::TooLarge(_))));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let cut = text(&"é".repeat(1000));
        assert!(cut.len() <= TEXT_LIMIT_BYTES && cut.len() > TEXT_LIMIT_BYTES - 2);
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut_of_the_stream(cuts in prop::collection::vec(1usize..40, 1..60)) {
            let stream: Vec<u8> = spoken().iter().flat_map(|m| encode(m).unwrap()).collect();
            let mut decoder = Decoder::<ToOperator>::default();
            let (mut heard, mut rest) = (Vec::new(), stream.as_slice());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                decoder.push(now);
                rest = later;
                while let Some(message) = decoder.next().unwrap() {
                    heard.push(message);
                }
            }
            prop_assert_eq!(heard, spoken());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut decoder = Decoder::<ToSidecar>::default();
            for part in bytes.chunks(7) {
                decoder.push(part);
                while let Ok(Some(_)) = decoder.next() {}
            }
        }
    }
}
