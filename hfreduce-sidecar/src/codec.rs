//! Translates between the words of `core/collective` and those of `wire`, which do not know each other.
//! Every translation names all cases, so a new frame or cause does not compile until it has a code here.

use collective::machine::{
    Broken, Claim, Fence, Frame, Mark, Mismatch, Reason, Refusal, Verdict, Violation,
};
use collective::{DType, Factor, OpKind, ReduceOp};
use wire::frame::{Body, Header, Notice};

/// A frame of ours that no machine can have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to understand a frame: its {0} is unknown")]
pub struct Unknown(&'static str);

/// A call as the machine wants it.
pub fn call_from_wire(call: &wire::Call) -> collective::Call {
    let op = match call.reduce {
        wire::ReduceOp::Sum => ReduceOp::Sum,
        wire::ReduceOp::Avg => ReduceOp::Avg,
        wire::ReduceOp::Max => ReduceOp::Max,
        wire::ReduceOp::Min => ReduceOp::Min,
        wire::ReduceOp::PremulSum => ReduceOp::PremulSum(Factor::from_bits(call.factor_bits)),
    };
    let root = call.root;
    let kind = match call.kind {
        wire::OpKind::AllReduce => OpKind::AllReduce { op },
        wire::OpKind::Reduce => OpKind::Reduce { op, root },
        wire::OpKind::Broadcast => OpKind::Broadcast { root },
        wire::OpKind::AllGather => OpKind::AllGather,
        wire::OpKind::Barrier => OpKind::Barrier,
    };
    let dtype = match call.dtype {
        wire::DType::F32 => DType::F32,
        wire::DType::F16 => DType::F16,
        wire::DType::BF16 => DType::Bf16,
        wire::DType::E4M3 => DType::E4m3,
        wire::DType::E5M2 => DType::E5m2,
        wire::DType::U8 => DType::U8,
        wire::DType::I32 => DType::I32,
        wire::DType::I64 => DType::I64,
    };
    collective::Call {
        kind,
        dtype,
        count: call.count,
        tag: call.tag,
    }
}

/// A call as it travels.
pub fn call_to_wire(call: &collective::Call) -> wire::Call {
    let (kind, reduce, root) = match call.kind {
        OpKind::AllReduce { op } => (wire::OpKind::AllReduce, op, 0),
        OpKind::Reduce { op, root } => (wire::OpKind::Reduce, op, root),
        OpKind::Broadcast { root } => (wire::OpKind::Broadcast, ReduceOp::Sum, root),
        OpKind::AllGather => (wire::OpKind::AllGather, ReduceOp::Sum, 0),
        OpKind::Barrier => (wire::OpKind::Barrier, ReduceOp::Sum, 0),
    };
    wire::Call {
        kind,
        dtype: match call.dtype {
            DType::F32 => wire::DType::F32,
            DType::F16 => wire::DType::F16,
            DType::Bf16 => wire::DType::BF16,
            DType::E4m3 => wire::DType::E4M3,
            DType::E5m2 => wire::DType::E5M2,
            DType::U8 => wire::DType::U8,
            DType::I32 => wire::DType::I32,
            DType::I64 => wire::DType::I64,
        },
        reduce: match reduce {
            ReduceOp::Sum => wire::ReduceOp::Sum,
            ReduceOp::Avg => wire::ReduceOp::Avg,
            ReduceOp::Max => wire::ReduceOp::Max,
            ReduceOp::Min => wire::ReduceOp::Min,
            ReduceOp::PremulSum(_) => wire::ReduceOp::PremulSum,
        },
        factor_bits: match reduce {
            ReduceOp::PremulSum(factor) => factor.to_bits(),
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min => 0,
        },
        root,
        count: call.count,
        tag: call.tag,
    }
}

fn claim_from_wire(claim: &wire::frame::Claim) -> Claim {
    Claim {
        rank: claim.rank,
        call: call_from_wire(&claim.call),
    }
}

fn claim_to_wire(claim: &Claim) -> wire::frame::Claim {
    wire::frame::Claim {
        rank: claim.rank,
        call: call_to_wire(&claim.call),
    }
}

fn mark_from_wire(mark: &wire::frame::Mark) -> Mark {
    let wire::frame::Mark { done, told } = *mark;
    Mark { done, told }
}

fn mark_to_wire(mark: &Mark) -> wire::frame::Mark {
    let Mark { done, told } = *mark;
    wire::frame::Mark { done, told }
}

fn verdict_from_wire(verdict: &wire::frame::Verdict) -> Result<Verdict, Unknown> {
    Ok(match verdict {
        wire::frame::Verdict::Mismatch { one, other } => Verdict::Mismatch(Mismatch {
            one: claim_from_wire(one),
            other: claim_from_wire(other),
        }),
        wire::frame::Verdict::Refusal { claim, reason } => Verdict::Refusal(Refusal {
            claim: claim_from_wire(claim),
            reason: match reason {
                1 => Reason::Root,
                2 => Reason::Size,
                3 => Reason::Input,
                4 => Reason::Limit,
                5 => Reason::Memory,
                6 => Reason::RootLost,
                7 => Reason::RanksLost,
                8 => Reason::NotReplicated,
                9 => Reason::Factor,
                _ => return Err(Unknown("reason of a refusal")),
            },
        }),
    })
}

fn verdict_to_wire(verdict: &Verdict) -> wire::frame::Verdict {
    match verdict {
        Verdict::Mismatch(mismatch) => wire::frame::Verdict::Mismatch {
            one: claim_to_wire(&mismatch.one),
            other: claim_to_wire(&mismatch.other),
        },
        Verdict::Refusal(refusal) => wire::frame::Verdict::Refusal {
            claim: claim_to_wire(&refusal.claim),
            reason: match refusal.reason {
                Reason::Root => 1,
                Reason::Size => 2,
                Reason::Input => 3,
                Reason::Limit => 4,
                Reason::Memory => 5,
                Reason::RootLost => 6,
                Reason::RanksLost => 7,
                Reason::NotReplicated => 8,
                Reason::Factor => 9,
            },
        },
    }
}

/// A frame's header, as it travels.
pub fn frame_to_wire(fence: Fence, frame: &Frame) -> Header {
    let mut header = Header {
        attempt: fence.attempt,
        epoch: fence.epoch,
        group: 0,
        operation: 0,
        tree: 0,
        slot: 0,
        chunk: 0,
        payload: 0,
        body: Body::Heartbeat,
    };
    match frame {
        Frame::Up {
            group,
            tree,
            op,
            chunk,
            slot,
            bytes,
            call,
            rank,
            mark,
        } => {
            (header.group, header.tree, header.slot) = (*group, *tree, *slot);
            (header.operation, header.chunk, header.payload) = (*op, *chunk, *bytes);
            header.body = Body::Up {
                claim: wire::frame::Claim {
                    rank: *rank,
                    call: call_to_wire(call),
                },
                mark: mark_to_wire(mark),
            };
        }
        Frame::Refuse { group, op, verdict } => {
            (header.group, header.operation) = (*group, *op);
            header.body = Body::Refuse {
                verdict: verdict_to_wire(verdict),
            };
        }
        Frame::Down {
            group,
            tree,
            op,
            chunk,
            bytes,
            mark,
        } => {
            (header.group, header.tree) = (*group, *tree);
            (header.operation, header.chunk, header.payload) = (*op, *chunk, *bytes);
            header.body = Body::Down {
                mark: mark_to_wire(mark),
            };
        }
        Frame::Fail { group, op, verdict } => {
            (header.group, header.operation) = (*group, *op);
            header.body = Body::Fail {
                verdict: verdict_to_wire(verdict),
            };
        }
        Frame::Credit { group, tree, slot } => {
            (header.group, header.tree, header.slot) = (*group, *tree, *slot);
            header.body = Body::Credit;
        }
        Frame::Awaiting { group, op } => {
            (header.group, header.operation) = (*group, *op);
            header.body = Body::Awaiting;
        }
        Frame::Abort { broken } => {
            let (notice, op) = notice(broken);
            header.operation = op;
            header.body = Body::Abort { notice };
        }
        Frame::Mark { group, mark } => {
            header.group = *group;
            header.body = Body::Mark {
                mark: mark_to_wire(mark),
            };
        }
        Frame::Heartbeat => {}
        Frame::Bye { ended } => {
            header.operation = *ended;
            header.body = Body::Bye;
        }
    }
    header
}

/// What a header says, for the machine.
pub fn frame_from_wire(header: &Header) -> Result<(Fence, Frame), Unknown> {
    let fence = Fence {
        attempt: header.attempt,
        epoch: header.epoch,
    };
    let (group, op) = (header.group, header.operation);
    let (tree, slot) = (header.tree, header.slot);
    let frame = match &header.body {
        Body::Up { claim, mark } => Frame::Up {
            group,
            tree,
            op,
            chunk: header.chunk,
            slot,
            bytes: header.payload,
            call: call_from_wire(&claim.call),
            rank: claim.rank,
            mark: mark_from_wire(mark),
        },
        Body::Refuse { verdict } => Frame::Refuse {
            group,
            op,
            verdict: verdict_from_wire(verdict)?,
        },
        Body::Down { mark } => Frame::Down {
            group,
            tree,
            op,
            chunk: header.chunk,
            bytes: header.payload,
            mark: mark_from_wire(mark),
        },
        Body::Fail { verdict } => Frame::Fail {
            group,
            op,
            verdict: verdict_from_wire(verdict)?,
        },
        Body::Credit => Frame::Credit { group, tree, slot },
        Body::Awaiting => Frame::Awaiting { group, op },
        Body::Abort { notice } => Frame::Abort {
            broken: broken(notice, op)?,
        },
        Body::Mark { mark } => Frame::Mark {
            group,
            mark: mark_from_wire(mark),
        },
        Body::Heartbeat => Frame::Heartbeat,
        Body::Bye => Frame::Bye { ended: op },
    };
    Ok((fence, frame))
}

fn notice(broken: &Broken) -> (Notice, u64) {
    let (code, detail, subject, by, op) = match *broken {
        Broken::NodeLost { node, by } => (1, 0, node as u32, by, 0),
        Broken::NodeSilent { node, by } => (2, 0, node as u32, by, 0),
        Broken::NodeLeft { node, by, op } => (3, 0, node as u32, by, op),
        Broken::RankLost { rank, by } => (4, 0, rank, by, 0),
        Broken::RankLeft { rank, by, op } => (5, 0, rank, by, op),
        Broken::Protocol {
            node,
            by,
            violation,
        } => {
            let detail = match violation {
                Violation::Direction => 1,
                Violation::Slot => 2,
                Violation::Chunk => 3,
                Violation::Tree => 4,
                Violation::Operation => 5,
                Violation::Group => 6,
            };
            (6, detail, node as u32, by, 0)
        }
        Broken::Revoked => (7, 0, 0, 0, 0),
    };
    let notice = Notice {
        code,
        detail,
        subject,
        by: by as u32,
    };
    (notice, op)
}

fn broken(notice: &Notice, op: u64) -> Result<Broken, Unknown> {
    let (node, by) = (notice.subject as usize, notice.by as usize);
    let rank = notice.subject;
    Ok(match notice.code {
        1 => Broken::NodeLost { node, by },
        2 => Broken::NodeSilent { node, by },
        3 => Broken::NodeLeft { node, by, op },
        4 => Broken::RankLost { rank, by },
        5 => Broken::RankLeft { rank, by, op },
        6 => Broken::Protocol {
            node,
            by,
            violation: match notice.detail {
                1 => Violation::Direction,
                2 => Violation::Slot,
                3 => Violation::Chunk,
                4 => Violation::Tree,
                5 => Violation::Operation,
                6 => Violation::Group,
                _ => return Err(Unknown("violation")),
            },
        },
        7 => Broken::Revoked,
        _ => return Err(Unknown("reason")),
    })
}

#[cfg(test)]
mod tests {
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
        ];
        let call = |kind| {
            DType::ALL.map(|dtype| collective::Call {
                kind,
                dtype,
                count: 9,
                tag: 5,
            })
        };
        kinds.into_iter().flat_map(call).collect()
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
        let group = 9;
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
            Frame::Bye { ended: 12 },
        ];
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
}
