//! Translates between the words of `core/collective` and those of `wire`, which do not know each other.
//! Every translation names all cases, so a new frame or cause does not compile until it has a code here.

use collective::machine::{
    Broken, Claim, Claimed, Fence, Frame, Mark, Mismatch, Refusal, Verdict, Violation,
};
use collective::{DType, Factor, Numerics, OpKind, ReduceOp};
use wire::frame::{Body, Header, Notice};

mod message;
mod opening;
use message::{maybe_reason, message_from_wire, message_to_wire, reason_from_wire, reason_to_wire};
use opening::{
    dispute_from_wire, dispute_to_wire, open_reason_from_wire, open_reason_to_wire,
    opener_from_wire, opener_to_wire,
};

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
        wire::OpKind::Close => OpKind::Close,
        wire::OpKind::ReduceScatter => OpKind::ReduceScatter { op },
        wire::OpKind::Gather => OpKind::Gather { root },
        wire::OpKind::Scatter => OpKind::Scatter { root },
        wire::OpKind::AllToAll => OpKind::AllToAll {
            with: root.checked_sub(1),
        },
        wire::OpKind::Send => OpKind::Send { to: root },
        wire::OpKind::Receive => OpKind::Receive { from: root },
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
        numerics: match call.numerics {
            wire::Numerics::Fast => Numerics::Fast,
            wire::Numerics::Precise => Numerics::Precise,
            wire::Numerics::Bitwise => Numerics::Bitwise,
        },
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
        OpKind::Close => (wire::OpKind::Close, ReduceOp::Sum, 0),
        OpKind::ReduceScatter { op } => (wire::OpKind::ReduceScatter, op, 0),
        OpKind::Gather { root } => (wire::OpKind::Gather, ReduceOp::Sum, root),
        OpKind::Scatter { root } => (wire::OpKind::Scatter, ReduceOp::Sum, root),
        OpKind::AllToAll { with } => {
            let with = with.map_or(0, |rank| rank + 1);
            (wire::OpKind::AllToAll, ReduceOp::Sum, with)
        }
        OpKind::Send { to } => (wire::OpKind::Send, ReduceOp::Sum, to),
        OpKind::Receive { from } => (wire::OpKind::Receive, ReduceOp::Sum, from),
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
        numerics: match call.numerics {
            Numerics::Fast => wire::Numerics::Fast,
            Numerics::Precise => wire::Numerics::Precise,
            Numerics::Bitwise => wire::Numerics::Bitwise,
        },
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
            reason: reason_from_wire(*reason)?,
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
            reason: reason_to_wire(refusal.reason),
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
        Frame::Want {
            group,
            message,
            call,
            refused,
        } => {
            (header.group, header.operation) = (*group, message.number);
            header.body = Body::Want {
                message: message_to_wire(message),
                call: call_to_wire(call),
                reason: refused.map_or(0, reason_to_wire),
            };
        }
        Frame::Data {
            group,
            message,
            chunk,
            slot,
            bytes,
        } => {
            (header.group, header.operation) = (*group, message.number);
            (header.chunk, header.slot, header.payload) = (*chunk, *slot, *bytes);
            header.body = Body::Data {
                message: message_to_wire(message),
            };
        }
        Frame::Deny {
            group,
            message,
            call,
            refused,
        } => {
            (header.group, header.operation) = (*group, message.number);
            header.body = Body::Deny {
                message: message_to_wire(message),
                call: call_to_wire(call),
                reason: refused.map_or(0, reason_to_wire),
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
        Frame::Bye { group, ended } => {
            (header.group, header.operation) = (*group, *ended);
            header.body = Body::Bye;
        }
        Frame::Open { group, claim } => {
            header.group = *group;
            header.body = Body::Open {
                opener: opener_to_wire(&claim.opener),
                present: claim.present,
                reason: claim.refused.map_or(0, open_reason_to_wire),
            };
        }
        Frame::Opened { group, outcome } => {
            header.group = *group;
            header.body = match outcome {
                Ok(()) => Body::Opened,
                Err(dispute) => Body::Disputed {
                    dispute: dispute_to_wire(dispute),
                },
            };
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
        Body::Want {
            message,
            call,
            reason,
        } => Frame::Want {
            group,
            message: message_from_wire(message, op),
            call: call_from_wire(call),
            refused: maybe_reason(*reason)?,
        },
        Body::Data { message } => Frame::Data {
            group,
            message: message_from_wire(message, op),
            chunk: header.chunk,
            slot,
            bytes: header.payload,
        },
        Body::Deny {
            message,
            call,
            reason,
        } => Frame::Deny {
            group,
            message: message_from_wire(message, op),
            call: call_from_wire(call),
            refused: maybe_reason(*reason)?,
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
        Body::Bye => Frame::Bye { group, ended: op },
        Body::Open {
            opener,
            present,
            reason,
        } => Frame::Open {
            group,
            claim: Claimed {
                opener: opener_from_wire(opener),
                present: *present,
                refused: match reason {
                    0 => None,
                    reason => Some(open_reason_from_wire(*reason)?),
                },
            },
        },
        Body::Opened => Frame::Opened {
            group,
            outcome: Ok(()),
        },
        Body::Disputed { dispute } => Frame::Opened {
            group,
            outcome: Err(dispute_from_wire(dispute)?),
        },
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
                Violation::Message => 7,
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
                7 => Violation::Message,
                _ => return Err(Unknown("violation")),
            },
        },
        7 => Broken::Revoked,
        _ => return Err(Unknown("reason")),
    })
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
