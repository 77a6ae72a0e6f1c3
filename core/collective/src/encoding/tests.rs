//! Every call, frame and cause there and back, and damage to them.

use super::*;
use crate::dtype::DType;
use crate::machine::{Claim, OpenReason, Opener, ProtocolViolation, Reason, Watermark};
use crate::numerics::Numerics;
use crate::op::OpKind;
use crate::reduce_op::{Factor, ReduceOp};

fn calls() -> Vec<Call> {
    let kinds = [
        OpKind::AllReduce { op: ReduceOp::Avg },
        OpKind::AllReduce {
            op: ReduceOp::PremulSum(Factor::new(-0.0)),
        },
        OpKind::Reduce {
            op: ReduceOp::Min,
            root: 7,
        },
        OpKind::AllReduce { op: ReduceOp::And },
        OpKind::AllReduce { op: ReduceOp::Or },
        OpKind::AllReduce { op: ReduceOp::Xor },
        OpKind::Broadcast { root: 3 },
        OpKind::AllGather,
        OpKind::Barrier,
        OpKind::Close,
        OpKind::ReduceScatter { op: ReduceOp::Max },
        OpKind::Gather { root: 2 },
        OpKind::Scatter { root: 1 },
        OpKind::AllToAll { with: None },
        OpKind::AllToAll { with: Some(0) },
        OpKind::Send { to: 4 },
        OpKind::Receive { from: 5 },
    ];
    let call = |kind| {
        DType::ALL.map(|dtype| Call {
            kind,
            dtype,
            count: 9,
            tag: 5,
            numerics: Numerics::Fast,
        })
    };
    let modes = Numerics::ALL.map(|numerics| Call {
        numerics,
        ..call(kinds[0])[0]
    });
    kinds.into_iter().flat_map(call).chain(modes).collect()
}

#[test]
fn calls_keep_their_meaning() {
    for call in calls() {
        assert_eq!(call_from_words(&call_to_words(&call)), Ok(call));
    }
}

#[test]
fn frames_keep_their_meaning() {
    let fence = Fence {
        attempt: 3,
        epoch: 2,
    };
    let mismatch = Mismatch {
        one: Claim {
            rank: 1,
            call: calls()[0],
        },
        other: Claim {
            rank: 5,
            call: calls()[9],
        },
    };
    let refusals = [
        Reason::Root,
        Reason::Size,
        Reason::Input,
        Reason::Limit,
        Reason::Memory,
        Reason::RootLost,
        Reason::RanksLost,
        Reason::NotReplicated,
        Reason::Factor,
        Reason::Bits,
        Reason::Parts,
        Reason::Splits,
        Reason::Closed,
        Reason::Tags,
        Reason::Left,
    ];
    let refusals = refusals.map(|reason| CallRefusal {
        claim: mismatch.one,
        reason,
    });
    let (node, by, op, rank) = (4, 2, 11, 6);
    let causes = [
        Broken::NodeLost { node, by },
        Broken::NodeSilent { node, by },
        Broken::NodeLeft { node, by, op },
        Broken::RankLost { rank, by },
        Broken::RankLeft { rank, by, op },
        Broken::Protocol {
            node,
            by,
            violation: ProtocolViolation::Chunk,
        },
        Broken::Protocol {
            node,
            by,
            violation: ProtocolViolation::Group,
        },
        Broken::Revoked,
    ];
    let group = 9 << 40 | 3;
    let watermark = Watermark {
        completed: 5,
        delivered: 4,
    };
    let mut frames = vec![
        Frame::ReduceChunk {
            group,
            tree: 1,
            op,
            chunk: 3,
            slot: 2,
            bytes: 4096,
            call: calls()[7],
            rank,
            watermark,
        },
        Frame::BroadcastChunk {
            group,
            tree: 1,
            op,
            chunk: 3,
            bytes: 17,
            watermark,
        },
        Frame::Credit {
            group,
            tree: 1,
            slot: 3,
        },
        Frame::Awaiting { group, op },
        Frame::Watermark { group, watermark },
        Frame::Heartbeat,
        Frame::Leaving { group, ended: 12 },
        Frame::Opened {
            group,
            outcome: Ok(()),
        },
    ];
    let opener = |rank| Opener {
        rank,
        size: 8,
        checksum: 1 << 63 | 5,
    };
    let reasons = [
        OpenReason::Ranks,
        OpenReason::Taken,
        OpenReason::Groups,
        OpenReason::Links,
        OpenReason::Gateway,
    ];
    let mismatched = Dispute::Mismatch {
        one: opener(1),
        other: opener(2),
    };
    let refused = reasons.map(|reason| Dispute::Refused {
        opener: opener(3),
        reason,
    });
    frames.extend(
        refused
            .into_iter()
            .chain([mismatched])
            .map(|dispute| Frame::Opened {
                group,
                outcome: Err(dispute),
            }),
    );
    frames.extend(
        [None]
            .into_iter()
            .chain(reasons.map(Some))
            .map(|refused| Frame::Open {
                group,
                claim: Claimed {
                    opener: opener(4),
                    present: 7,
                    refused,
                },
            }),
    );
    let message = |of| MessageId {
        from: 3,
        to: 1 << 20,
        of,
        number: 77,
    };
    for of in [Stream::Operation, Stream::Tag(0), Stream::Tag(u64::MAX)] {
        let message = message(of);
        frames.push(Frame::Data {
            group,
            message,
            chunk: 5,
            slot: 1,
            bytes: 99,
        });
        for refused in [None, Some(Reason::Limit), Some(Reason::Tags)] {
            let call = calls()[100];
            frames.push(Frame::ReadyToReceive {
                group,
                message,
                call,
                refused,
            });
            frames.push(Frame::ReceiveRejected {
                group,
                message,
                call,
                refused,
            });
        }
    }
    frames.extend(causes.map(|broken| Frame::Abort { broken }));
    let verdicts = refusals.map(Verdict::from);
    for verdict in verdicts.into_iter().chain([mismatch.into()]) {
        frames.push(Frame::Refuse { group, op, verdict });
        frames.push(Frame::Fail { group, op, verdict });
    }
    for frame in frames {
        assert_eq!(parse(&encode(fence, &frame)), Ok((fence, frame)));
    }
}

const FENCE: Fence = Fence {
    attempt: 1,
    epoch: 2,
};

/// Sets the checksum right, as a hostile sender would.
fn seal(bytes: &mut [u8; HEADER_BYTES]) {
    let sum = crc32c(&bytes[..HEADER_BYTES - SUM_BYTES]);
    bytes[HEADER_BYTES - SUM_BYTES..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_code_that_stands_for_nothing_and_a_field_that_its_kind_does_not_have_are_refused() {
    let broken = Broken::Revoked;
    for (at, what) in [(5, "kind"), (COMMON_BYTES, "cause"), (8 + 8, "padding")] {
        let mut bytes = encode(FENCE, &Frame::Abort { broken });
        bytes[at] = 99;
        seal(&mut bytes);
        assert_eq!(parse(&bytes), Err(Error::Field(what)));
    }
}

#[test]
fn a_factor_travels_with_its_reduction_only_and_a_mode_with_what_reduces_only() {
    let call = |kind, numerics| Call {
        kind,
        dtype: DType::E5m2,
        count: 9,
        tag: 0,
        numerics,
    };
    let op = ReduceOp::PremulSum(Factor::new(-0.75));
    let mut words = call_to_words(&call(OpKind::AllReduce { op }, Numerics::Fast));
    words[0] ^= (5 ^ 1) << 16;
    assert_eq!(call_from_words(&words), Err(Error::Field("call")));
    let words = call_to_words(&call(OpKind::AllGather, Numerics::Precise));
    assert_eq!(call_from_words(&words), Err(Error::Field("call")));
}

#[test]
fn a_payload_above_the_limit_is_refused() {
    let down = |bytes| Frame::BroadcastChunk {
        group: 0,
        tree: 0,
        op: 0,
        chunk: 0,
        bytes,
        watermark: Watermark::default(),
    };
    let largest = down(PAYLOAD_LIMIT_BYTES);
    assert_eq!(parse(&encode(FENCE, &largest)), Ok((FENCE, largest)));
    let larger = encode(FENCE, &down(PAYLOAD_LIMIT_BYTES + 1));
    assert_eq!(parse(&larger), Err(Error::Field("payload")));
}

/// Also where they lie so that one would undo the other in a sum that mixes less well.
#[test]
fn any_two_flipped_bits_are_refused() {
    let mut bytes = encode(FENCE, &Frame::Heartbeat);
    let flip = |bytes: &mut [u8; HEADER_BYTES], bit: usize| bytes[bit / 8] ^= 1 << (bit % 8);
    for one in 0..HEADER_BYTES * 8 {
        flip(&mut bytes, one);
        for other in 0..one {
            flip(&mut bytes, other);
            assert!(parse(&bytes).is_err(), "bits {other} and {one}");
            flip(&mut bytes, other);
        }
        flip(&mut bytes, one);
    }
    assert_eq!(parse(&bytes), Ok((FENCE, Frame::Heartbeat)));
}
