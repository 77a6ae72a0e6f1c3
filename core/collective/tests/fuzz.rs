//! Bytes from a hostile or broken side, for the encodings of the collective: what is valid, damaged in a few places, so
//! that most of it passes the first checks. Nothing panics, and what is accepted means what it says.
//! `cargo xtask fuzz frames --minutes M` goes on for longer, `fuzz rendezvous` too.

#![expect(clippy::unwrap_used, reason = "test harness")]

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use collective::encoding::{self, CALL_WORDS, HEADER_BYTES, PAYLOAD_LIMIT_BYTES};
use collective::machine::{
    Broken, CallRefusal, Claim, Claimed, Dispute, Fence, Frame, MessageId, Mismatch, OpenReason,
    Opener, ProtocolViolation, Reason, Stream, Verdict, Watermark,
};
use collective::membership::SuspicionReason;
use collective::membership::encoding::{self as rendezvous, Decoder, Messages, Peer, ToOperator};
use collective::recovery::{EpochReport, GroupReport, GroupResume};
use collective::{Call, DType, Numerics, OpKind, ReduceOp};
use serde::Serialize;
use sim::{Rng, damage, explore};

/// Any call.
fn call(rng: &mut Rng) -> Call {
    let op = *rng.pick(&ReduceOp::ALL);
    let root = rng.next_u64() as u32 >> 1;
    let kind = *rng.pick(&[
        OpKind::AllReduce { op },
        OpKind::Reduce { op, root },
        OpKind::ReduceScatter { op },
        OpKind::Broadcast { root },
        OpKind::AllGather,
        OpKind::Gather { root },
        OpKind::Scatter { root },
        OpKind::AllToAll { with: None },
        OpKind::AllToAll { with: Some(root) },
        OpKind::Send { to: root },
        OpKind::Receive { from: root },
        OpKind::Barrier,
        OpKind::Close,
    ]);
    let call = Call {
        kind,
        dtype: *rng.pick(&DType::ALL),
        count: damage::number(rng),
        tag: damage::number(rng),
        numerics: Numerics::Fast,
    };
    Call {
        numerics: match call.reduce_op() {
            Some(_) => *rng.pick(&Numerics::ALL),
            None => Numerics::Fast,
        },
        ..call
    }
}

fn opener(rng: &mut Rng) -> Opener {
    Opener {
        rank: rng.next_u64() as u32,
        size: rng.next_u64() as u32,
        checksum: damage::number(rng),
    }
}

fn reason(rng: &mut Rng) -> Reason {
    *rng.pick(&[
        Reason::Root,
        Reason::Size,
        Reason::Factor,
        Reason::Bits,
        Reason::Parts,
        Reason::Input,
        Reason::Limit,
        Reason::Memory,
        Reason::Splits,
        Reason::RootLost,
        Reason::RanksLost,
        Reason::NotReplicated,
        Reason::Closed,
        Reason::Left,
        Reason::Tags,
    ])
}

fn open_reason(rng: &mut Rng) -> OpenReason {
    *rng.pick(&[
        OpenReason::Ranks,
        OpenReason::Taken,
        OpenReason::Groups,
        OpenReason::Links,
        OpenReason::Gateway,
    ])
}

fn verdict(rng: &mut Rng) -> Verdict {
    let claim = |rng: &mut Rng| Claim {
        rank: rng.next_u64() as u32,
        call: call(rng),
    };
    let (one, other) = (claim(rng), claim(rng));
    if rng.chance(1, 2) {
        Verdict::Mismatch(Mismatch { one, other })
    } else {
        Verdict::Refusal(CallRefusal {
            claim: one,
            reason: reason(rng),
        })
    }
}

/// Any frame that may be sent.
fn frame(rng: &mut Rng) -> Frame {
    let (group, op) = (damage::number(rng), damage::number(rng));
    let (tree, slot) = (rng.below(3) as u8, rng.below(16) as u8);
    let (chunk, bytes) = (damage::number(rng) as u32, rng.range(0..4096) as u32);
    let (rank, by) = (rng.next_u64() as u32, rng.below(100));
    let watermark = Watermark {
        completed: damage::number(rng),
        delivered: damage::number(rng),
    };
    let message = MessageId {
        from: rank,
        to: by as u32,
        of: if rng.chance(1, 2) {
            Stream::Operation
        } else {
            Stream::Tag(damage::number(rng))
        },
        number: op,
    };
    let refused = rng.chance(1, 2).then(|| reason(rng));
    match rng.below(17) {
        0 => Frame::ReduceChunk {
            group,
            tree,
            op,
            chunk,
            slot,
            bytes,
            call: call(rng),
            rank,
            watermark,
        },
        1 => Frame::Refuse {
            group,
            op,
            verdict: verdict(rng),
        },
        2 => Frame::BroadcastChunk {
            group,
            tree,
            op,
            chunk,
            bytes,
            watermark,
        },
        3 => Frame::Fail {
            group,
            op,
            verdict: verdict(rng),
        },
        4 => Frame::ReadyToReceive {
            group,
            message,
            call: call(rng),
            refused,
        },
        5 => Frame::Data {
            group,
            message,
            chunk,
            slot,
            bytes,
        },
        6 => Frame::ReceiveRejected {
            group,
            message,
            call: call(rng),
            refused,
        },
        7 => Frame::Credit { group, tree, slot },
        8 => Frame::Awaiting { group, op },
        9 => Frame::Abort {
            broken: *rng.pick(&[
                Broken::NodeLost { node: 1, by },
                Broken::NodeSilent { node: 1, by },
                Broken::NodeLeft { node: 1, by, op },
                Broken::RankLost { rank, by },
                Broken::RankLeft { rank, by, op },
                Broken::Protocol {
                    node: 1,
                    by,
                    violation: ProtocolViolation::Tree,
                },
                Broken::Revoked,
            ]),
        },
        10 => Frame::Watermark { group, watermark },
        11 => Frame::Leaving { group, ended: op },
        12 => Frame::Open {
            group,
            claim: Claimed {
                opener: opener(rng),
                present: rank,
                refused: rng.chance(1, 2).then(|| open_reason(rng)),
            },
        },
        13 => Frame::Opened {
            group,
            outcome: Ok(()),
        },
        14 => Frame::Opened {
            group,
            outcome: Err(Dispute::Mismatch {
                one: opener(rng),
                other: opener(rng),
            }),
        },
        15 => Frame::Opened {
            group,
            outcome: Err(Dispute::Refused {
                opener: opener(rng),
                reason: open_reason(rng),
            }),
        },
        _ => Frame::Heartbeat,
    }
}

/// Makes the checksum right, so that the fields are looked at. Written down once more: a reader and a writer that agree
/// on another sum would pass. CRC32C, bit by bit.
fn seal(bytes: &mut [u8; HEADER_BYTES]) {
    let (content, sum) = bytes.split_at_mut(HEADER_BYTES - 4);
    let remainder = content.iter().fold(!0_u32, |rest, &byte| {
        (0..8).fold(rest ^ u32::from(byte), |rest, _bit| {
            (rest >> 1) ^ ((rest & 1) * 0x82f6_3b78)
        })
    });
    sum.copy_from_slice(&(!remainder).to_le_bytes());
}

#[test]
fn frames() {
    explore(20_000, &[], |rng| {
        let fence = Fence {
            attempt: rng.range(0..4) as u32,
            epoch: rng.range(0..4) as u32,
        };
        let frame = frame(rng);
        let mut bytes = encoding::encode(fence, &frame);
        assert_eq!(encoding::parse(&bytes), Ok((fence, frame)));
        let whole = bytes;
        damage::in_place(rng, &mut bytes);
        let damaged = bytes != whole;
        let sealed = rng.chance(7, 8);
        if sealed {
            seal(&mut bytes);
        }
        match encoding::parse(&bytes) {
            Ok((fence, frame)) => {
                assert!(
                    sealed || !damaged,
                    "a damaged header was taken for a whole one"
                );
                assert!(frame.payload_bytes() <= PAYLOAD_LIMIT_BYTES);
                let again = encoding::encode(fence, &frame);
                assert_eq!(again, bytes, "there is one way to write it");
            }
            Err(error) => assert!(error.to_string().starts_with("failed to parse a frame")),
        }
    });
}

#[test]
fn words_are_a_call_or_are_refused() {
    explore(20_000, &[], |rng| {
        // Codes are small: most numbers mean none of them.
        let words = [0; CALL_WORDS].map(|_none| match rng.below(3) {
            0 => rng.next_u64(),
            1 => damage::number(rng),
            _ => rng.next_u64() & 0x0f0f_0f0f_0f0f_0f0f,
        });
        if let Ok(call) = encoding::call_from_words(&words) {
            let again = encoding::call_to_words(&call);
            assert_eq!(encoding::call_from_words(&again), Ok(call));
            assert_eq!(again, words, "there is one way to write it");
        }
        let call = call(rng);
        let words = encoding::call_to_words(&call);
        assert_eq!(encoding::call_from_words(&words), Ok(call));
    });
}

fn report(delivered: u64) -> EpochReport {
    vec![GroupReport {
        group: 0,
        delivered_to_all: delivered,
        delivered_to_any: delivered,
        retained: Vec::new(),
        refused: None,
    }]
}

fn to_operator(rng: &mut Rng) -> ToOperator {
    let epoch = damage::number(rng);
    match rng.below(8) {
        0 => ToOperator::Hello {
            version: "0.1.0".to_owned(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 9404,
            joined_epoch: rng.chance(1, 2).then_some(epoch),
            features: vec!["retry".to_owned()],
        },
        1 => ToOperator::Joined { epoch },
        2 => ToOperator::Heartbeat {
            progress: None,
            operations: None,
        },
        3 => ToOperator::Suspect {
            epoch,
            rank: 1,
            reason: SuspicionReason::Silent,
            detail: "é".repeat(rng.below(300)),
        },
        4 => ToOperator::Recovered { epoch, rank: 1 },
        5 => ToOperator::Stopped {
            epoch,
            report: report(epoch),
            reached: vec![1, 2],
            unreached: Vec::new(),
        },
        6 => ToOperator::RankLost,
        _ => ToOperator::Leaving,
    }
}

fn from_operator(rng: &mut Rng) -> rendezvous::ToSidecar {
    let epoch = damage::number(rng);
    let peer = |rank| Peer {
        rank,
        address: IpAddr::V6(Ipv6Addr::LOCALHOST),
        port: 9404,
    };
    let members: Vec<Peer> = (0..rng.below(9) as u32).map(peer).collect();
    match rng.below(7) {
        0 => rendezvous::ToSidecar::Redirect {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        },
        1 => rendezvous::ToSidecar::Roster {
            epoch,
            nodes: members,
        },
        2 => rendezvous::ToSidecar::Go { epoch },
        3 => rendezvous::ToSidecar::Revoke { epoch, members },
        4 => rendezvous::ToSidecar::Next {
            epoch,
            members,
            resume: vec![GroupResume {
                group: 0,
                base: epoch,
                served: Vec::new(),
                refused: None,
            }],
        },
        5 => rendezvous::ToSidecar::Stacks {
            reason: "é".repeat(rng.below(300)),
        },
        _ => rendezvous::ToSidecar::Refused {
            void: rng.below(2) == 0,
            reason: "out".to_owned(),
        },
    }
}

/// What a decoder says of a stream that comes in parts, up to the end or the first error.
fn decode<T: Messages>(parts: &[&[u8]]) -> (Vec<T>, Option<String>) {
    let mut decoder = Decoder::default();
    let mut messages = Vec::new();
    for part in parts {
        decoder.push(part);
        loop {
            match decoder.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error.to_string())),
            }
        }
    }
    (messages, None)
}

fn check_stream<T>(rng: &mut Rng, any: fn(&mut Rng) -> T)
where
    T: Serialize + Messages + PartialEq + Debug,
{
    let sent: Vec<T> = (0..1 + rng.below(4)).map(|_| any(rng)).collect();
    let mut stream = Vec::new();
    for message in &sent {
        stream.extend(rendezvous::encode(message).unwrap());
    }
    assert_eq!(decode::<T>(&[&stream]), (sent, None));
    let other = rendezvous::encode(&any(rng)).unwrap();
    damage::anyhow(rng, &mut stream, &other);
    let whole = decode::<T>(&[&stream]);
    let cut = rng.below(stream.len() + 1);
    let again = cut + rng.below(stream.len() - cut + 1);
    let parts = [&stream[..cut], &stream[cut..again], &stream[again..]];
    assert_eq!(decode::<T>(&parts), whole, "how it was cut does not matter");
}

#[test]
fn rendezvous() {
    explore(4_000, &[], |rng| {
        check_stream(rng, to_operator);
        check_stream(rng, from_operator);
    });
}
