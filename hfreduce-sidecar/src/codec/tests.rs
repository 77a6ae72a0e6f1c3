//! What is said is heard: every call, frame and cause there and back.

use collective::machine::{Dispute, MessageId, OpenReason, Opener, Reason, Stream};

use super::*;

fn calls() -> Vec<collective::Call> {
    let kinds = [
        OpKind::AllReduce { op: ReduceOp::Avg },
        OpKind::AllReduce {
            op: ReduceOp::PremulSum(Factor::new(-0.0)),
        },
        OpKind::Reduce {
            op: ReduceOp::Min,
            root: 7,
        },
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
        DType::ALL.map(|dtype| collective::Call {
            kind,
            dtype,
            count: 9,
            tag: 5,
            numerics: Numerics::Fast,
        })
    };
    let modes = Numerics::ALL.map(|numerics| collective::Call {
        numerics,
        ..call(kinds[0])[0]
    });
    kinds.into_iter().flat_map(call).chain(modes).collect()
}

#[test]
fn calls_keep_their_meaning() {
    for call in calls() {
        assert_eq!(call_from_wire(&call_to_wire(&call)), call);
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
        Reason::Parts,
        Reason::Splits,
        Reason::Closed,
        Reason::Tags,
        Reason::Left,
    ];
    let refusals = refusals.map(|reason| Refusal {
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
            violation: Violation::Chunk,
        },
        Broken::Protocol {
            node,
            by,
            violation: Violation::Group,
        },
        Broken::Revoked,
    ];
    let group = 9 << 40 | 3;
    let mark = Mark { done: 5, told: 4 };
    let mut frames = vec![
        Frame::Up {
            group,
            tree: 1,
            op,
            chunk: 3,
            slot: 2,
            bytes: 4096,
            call: calls()[7],
            rank,
            mark,
        },
        Frame::Down {
            group,
            tree: 1,
            op,
            chunk: 3,
            bytes: 17,
            mark,
        },
        Frame::Credit {
            group,
            tree: 1,
            slot: 3,
        },
        Frame::Awaiting { group, op },
        Frame::Mark { group, mark },
        Frame::Heartbeat,
        Frame::Bye { group, ended: 12 },
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
            frames.push(Frame::Want {
                group,
                message,
                call,
                refused,
            });
            frames.push(Frame::Deny {
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
        let header = Header::parse(&frame_to_wire(fence, &frame).encode()).unwrap();
        assert_eq!(frame_from_wire(&header), Ok((fence, frame)));
    }
}

#[test]
fn a_reason_that_nobody_gives_is_refused() {
    let notice = Notice {
        code: 99,
        detail: 0,
        subject: 0,
        by: 0,
    };
    assert_eq!(broken(&notice, 0), Err(Unknown("reason")));
}
