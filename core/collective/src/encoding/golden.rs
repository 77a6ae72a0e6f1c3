//! The bytes of every kind of call and frame, kept: whoever changes them changes what releases that run beside each
//! other understand, and has to raise the version of the frames.

use crate::machine::{
    Broken, CallRefusal, Claim, Claimed, Dispute, Fence, Frame, MessageId, Mismatch, OpenReason,
    Opener, ProtocolViolation, Reason, Stream, Verdict, Watermark,
};
use crate::{Call, DType, Factor, Numerics, OpKind, ReduceOp};

const FENCE: Fence = Fence {
    attempt: 3,
    epoch: 2,
};

fn call(kind: OpKind) -> Call {
    Call {
        kind,
        dtype: DType::F32,
        count: 1_000,
        tag: 0x0123_4567_89ab_cdef,
        numerics: Numerics::Fast,
    }
}

fn calls() -> Vec<(&'static str, Call)> {
    let op = ReduceOp::Sum;
    let sum = OpKind::AllReduce { op };
    let reduced = |op| call(OpKind::AllReduce { op });
    let typed = |dtype| Call { dtype, ..call(sum) };
    let rounded = |numerics| Call {
        numerics,
        ..call(sum)
    };
    vec![
        ("allreduce", call(sum)),
        ("reduce", call(OpKind::Reduce { op, root: 7 })),
        ("broadcast", call(OpKind::Broadcast { root: 7 })),
        ("allgather", call(OpKind::AllGather)),
        ("barrier", Call::barrier()),
        ("close", Call::close()),
        ("reduce_scatter", call(OpKind::ReduceScatter { op })),
        ("gather", call(OpKind::Gather { root: 7 })),
        ("scatter", call(OpKind::Scatter { root: 7 })),
        ("alltoall", call(OpKind::AllToAll { with: None })),
        ("alltoall-with", call(OpKind::AllToAll { with: Some(7) })),
        ("send", call(OpKind::Send { to: 7 })),
        ("recv", call(OpKind::Receive { from: 7 })),
        ("avg", reduced(ReduceOp::Avg)),
        ("max", reduced(ReduceOp::Max)),
        ("min", reduced(ReduceOp::Min)),
        (
            "premul_sum",
            reduced(ReduceOp::PremulSum(Factor::new(-0.75))),
        ),
        ("band", reduced(ReduceOp::And)),
        ("bor", reduced(ReduceOp::Or)),
        ("bxor", reduced(ReduceOp::Xor)),
        ("f64", typed(DType::F64)),
        ("f16", typed(DType::F16)),
        ("bf16", typed(DType::Bf16)),
        ("e4m3", typed(DType::E4m3)),
        ("e5m2", typed(DType::E5m2)),
        ("u8", typed(DType::U8)),
        ("i8", typed(DType::I8)),
        ("i32", typed(DType::I32)),
        ("i64", typed(DType::I64)),
        ("precise", rounded(Numerics::Precise)),
        ("bitwise", rounded(Numerics::Bitwise)),
    ]
}

fn frames() -> Vec<(&'static str, Frame)> {
    let (group, op, rank) = (9 << 40 | 3, 11, 6);
    let watermark = Watermark {
        completed: 5,
        delivered: 4,
    };
    let sum = call(OpKind::AllReduce { op: ReduceOp::Sum });
    let gather = call(OpKind::Gather { root: 7 });
    let claim = |rank, call| Claim { rank, call };
    let mismatch = Verdict::Mismatch(Mismatch {
        one: claim(1, sum),
        other: claim(5, gather),
    });
    let refusal = Verdict::Refusal(CallRefusal {
        claim: claim(5, gather),
        reason: Reason::Memory,
    });
    let opener = |rank| Opener {
        rank,
        size: 8,
        checksum: 1 << 63 | 5,
    };
    let message = |of| MessageId {
        from: 3,
        to: 1 << 20,
        of,
        number: 77,
    };
    let part = message(Stream::Operation);
    let tagged = message(Stream::Tag(21));
    let (node, by) = (4, 2);
    let abort = |broken| Frame::Abort { broken };
    let violation = ProtocolViolation::Chunk;
    let refused = Some(Reason::Left);
    vec![
        (
            "up",
            Frame::ReduceChunk {
                group,
                tree: 1,
                op,
                chunk: 3,
                slot: 2,
                bytes: 4096,
                call: sum,
                rank,
                watermark,
            },
        ),
        (
            "refuse-mismatch",
            Frame::Refuse {
                group,
                op,
                verdict: mismatch,
            },
        ),
        (
            "refuse-refusal",
            Frame::Refuse {
                group,
                op,
                verdict: refusal,
            },
        ),
        (
            "down",
            Frame::BroadcastChunk {
                group,
                tree: 1,
                op,
                chunk: 3,
                bytes: 17,
                watermark,
            },
        ),
        (
            "fail-mismatch",
            Frame::Fail {
                group,
                op,
                verdict: mismatch,
            },
        ),
        (
            "fail-refusal",
            Frame::Fail {
                group,
                op,
                verdict: refusal,
            },
        ),
        (
            "want",
            Frame::ReadyToReceive {
                group,
                message: tagged,
                call: gather,
                refused: None,
            },
        ),
        (
            "want-refused",
            Frame::ReadyToReceive {
                group,
                message: part,
                call: gather,
                refused,
            },
        ),
        (
            "data",
            Frame::Data {
                group,
                message: part,
                chunk: 5,
                slot: 1,
                bytes: 99,
            },
        ),
        (
            "data-tagged",
            Frame::Data {
                group,
                message: tagged,
                chunk: 5,
                slot: 255,
                bytes: 99,
            },
        ),
        (
            "deny",
            Frame::ReceiveRejected {
                group,
                message: tagged,
                call: gather,
                refused,
            },
        ),
        (
            "credit",
            Frame::Credit {
                group,
                tree: 1,
                slot: 3,
            },
        ),
        ("awaiting", Frame::Awaiting { group, op }),
        ("node-lost", abort(Broken::NodeLost { node, by })),
        ("node-silent", abort(Broken::NodeSilent { node, by })),
        ("node-left", abort(Broken::NodeLeft { node, by, op })),
        ("rank-lost", abort(Broken::RankLost { rank, by })),
        ("rank-left", abort(Broken::RankLeft { rank, by, op })),
        (
            "protocol",
            abort(Broken::Protocol {
                node,
                by,
                violation,
            }),
        ),
        ("revoked", abort(Broken::Revoked)),
        ("mark", Frame::Watermark { group, watermark }),
        ("heartbeat", Frame::Heartbeat),
        ("bye", Frame::Leaving { group, ended: 12 }),
        (
            "open",
            Frame::Open {
                group,
                claim: Claimed {
                    opener: opener(4),
                    present: 7,
                    refused: None,
                },
            },
        ),
        (
            "open-refused",
            Frame::Open {
                group,
                claim: Claimed {
                    opener: opener(4),
                    present: 7,
                    refused: Some(OpenReason::Gateway),
                },
            },
        ),
        (
            "opened",
            Frame::Opened {
                group,
                outcome: Ok(()),
            },
        ),
        (
            "disputed-mismatch",
            Frame::Opened {
                group,
                outcome: Err(Dispute::Mismatch {
                    one: opener(1),
                    other: opener(2),
                }),
            },
        ),
        (
            "disputed-refused",
            Frame::Opened {
                group,
                outcome: Err(Dispute::Refused {
                    opener: opener(3),
                    reason: OpenReason::Links,
                }),
            },
        ),
    ]
}

/// A name, and the bytes in lines of 32.
fn listed(name: &str, bytes: &[u8]) -> String {
    let lines = bytes.chunks(32).map(|line| {
        let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}\n")
    });
    format!("{name}\n{}", lines.collect::<String>())
}

#[test]
fn calls_keep_their_bytes() {
    let bytes = |call: &Call| -> Vec<u8> {
        let words = super::call_to_words(call);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    let list = |(name, call)| listed(name, &bytes(&call));
    let all: String = calls().into_iter().map(list).collect();
    assert_eq!(all, include_str!("golden/calls.txt"));
}

#[test]
fn frames_keep_their_bytes() {
    let bytes = |frame: &Frame| super::encode(FENCE, frame);
    let list = |(name, frame)| listed(name, &bytes(&frame));
    let all: String = frames().into_iter().map(list).collect();
    assert_eq!(all, include_str!("golden/frames.txt"));
}
