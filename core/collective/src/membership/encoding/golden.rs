//! The bytes of every message of the rendezvous, kept: releases that run beside each other have to understand them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::machine::{CallRefusal, Claim, Dispute, Mismatch, OpenReason, Opener, Reason, Verdict};
use crate::membership::{
    Break, Endpoint, HelloRefusal, MembershipMessage, Progress, Reach, SuspicionReason as Suspected,
};
use crate::recovery::{EpochReport, GroupReport, GroupResume, Retained, Served};
use crate::{Call, DType, Factor, Numerics, OpKind, ReduceOp};

use topology::CheckpointRef;

use super::{Features, ToOperator, ToSidecar, encode, stopped, to_sidecar};

fn call(kind: OpKind) -> Call {
    Call {
        kind,
        dtype: DType::Bf16,
        count: 1_000,
        tag: 21,
        numerics: Numerics::Precise,
    }
}

fn held(op: u64, kind: OpKind, verdict: Option<Verdict>) -> Retained {
    Retained {
        op,
        epoch: 2,
        call: call(kind),
        bytes: 2_000,
        complete: verdict.is_none(),
        verdict,
    }
}

fn dispute() -> Dispute {
    let opener = |rank| Opener {
        rank,
        size: 8,
        checksum: 5,
    };
    Dispute::Mismatch {
        one: opener(1),
        other: opener(2),
    }
}

fn all_held() -> Vec<Retained> {
    let op = ReduceOp::PremulSum(Factor::new(-0.75));
    let claim = |rank, kind| Claim {
        rank,
        call: call(kind),
    };
    let kinds = [
        OpKind::AllReduce { op },
        OpKind::Reduce {
            op: ReduceOp::Avg,
            root: 3,
        },
        OpKind::Broadcast { root: 3 },
        OpKind::AllGather,
        OpKind::ReduceScatter { op: ReduceOp::Max },
        OpKind::Gather { root: 3 },
        OpKind::Scatter { root: 3 },
        OpKind::AllToAll { with: None },
        OpKind::AllToAll { with: Some(3) },
        OpKind::Barrier,
        OpKind::Close,
    ];
    let mismatch = Verdict::Mismatch(Mismatch {
        one: claim(1, kinds[0]),
        other: claim(2, kinds[3]),
    });
    let refusal = Verdict::Refusal(CallRefusal {
        claim: claim(1, kinds[0]),
        reason: Reason::Memory,
    });
    let ended = kinds.map(|kind| (kind, None)).into_iter();
    let ended = ended.chain([(kinds[0], Some(mismatch)), (kinds[0], Some(refusal))]);
    (7..)
        .zip(ended)
        .map(|(op, (kind, verdict))| held(op, kind, verdict))
        .collect()
}

fn report() -> EpochReport {
    vec![
        GroupReport {
            group: 0,
            delivered_to_all: 7,
            delivered_to_any: 8,
            retained: all_held(),
            refused: None,
        },
        GroupReport {
            group: 9,
            delivered_to_all: 0,
            delivered_to_any: 0,
            retained: Vec::new(),
            refused: Some(dispute()),
        },
    ]
}

fn to_operator() -> Vec<ToOperator> {
    let address: IpAddr = [192, 0, 2, 1].into();
    let checkpoint = CheckpointRef {
        attempt: 3,
        step: 40,
        digest: "sha256:00".to_owned(),
    };
    let reach = Reach {
        reached: BTreeSet::from([0, 2]),
        unreached: BTreeSet::from([1]),
    };
    vec![
        ToOperator::Hello {
            version: "0.1.0".to_owned(),
            address,
            port: 9404,
            joined_epoch: Some(2),
            features: Features::OURS.list(),
        },
        ToOperator::Hello {
            version: "0.1.0".to_owned(),
            address: "2001:db8::1".parse().unwrap(),
            port: 9404,
            joined_epoch: None,
            features: Vec::new(),
        },
        ToOperator::Joined { epoch: 2 },
        ToOperator::Heartbeat {
            progress: None,
            operations: None,
        },
        ToOperator::Heartbeat {
            progress: Some(Progress {
                step: 41,
                loss: Some(0.25),
                checkpoint: Some(checkpoint),
                passed_over: Some("why".to_owned()),
            }),
            operations: None,
        },
        ToOperator::Heartbeat {
            progress: None,
            operations: Some(7),
        },
        ToOperator::Suspect {
            epoch: 2,
            rank: 1,
            reason: Suspected::Dead,
            detail: "why".to_owned(),
        },
        ToOperator::Suspect {
            epoch: 2,
            rank: 1,
            reason: Suspected::Silent,
            detail: "why".to_owned(),
        },
        ToOperator::Suspect {
            epoch: 2,
            rank: 1,
            reason: Suspected::Frozen,
            detail: "why".to_owned(),
        },
        ToOperator::Recovered { epoch: 2, rank: 1 },
        stopped(2, report(), &reach),
        ToOperator::RankLost,
        ToOperator::Leaving,
    ]
}

fn messages() -> Vec<MembershipMessage> {
    let endpoint = |port| Endpoint {
        address: [192, 0, 2, 1].into(),
        port,
    };
    let members = vec![(0, endpoint(1)), (2, endpoint(2))];
    let served = |(at, held): (usize, Retained)| Served {
        retained: held,
        holder: at % 2,
        spread: at == 1,
    };
    vec![
        MembershipMessage::Roster {
            epoch: 1,
            endpoints: vec![endpoint(1), endpoint(2)],
        },
        MembershipMessage::Go { epoch: 1 },
        MembershipMessage::Revoke {
            epoch: 1,
            members: members.clone(),
        },
        MembershipMessage::Next {
            epoch: 2,
            members,
            resume: vec![
                GroupResume {
                    group: 0,
                    base: 7,
                    served: all_held().into_iter().enumerate().map(served).collect(),
                    refused: None,
                },
                GroupResume {
                    group: 9,
                    base: 0,
                    served: Vec::new(),
                    refused: Some(Dispute::Refused {
                        opener: Opener {
                            rank: 1,
                            size: 8,
                            checksum: 5,
                        },
                        reason: OpenReason::Gateway,
                    }),
                },
            ],
        },
        MembershipMessage::Refused(HelloRefusal::Rank { rank: 9, nodes: 4 }),
        MembershipMessage::Refused(HelloRefusal::Epoch { theirs: 1, ours: 2 }),
        MembershipMessage::Refused(HelloRefusal::Out { rank: 1, epoch: 2 }),
        MembershipMessage::Refused(HelloRefusal::Connected { rank: 1 }),
        MembershipMessage::Refused(HelloRefusal::Replaced { rank: 1 }),
        MembershipMessage::Refused(HelloRefusal::Broken(Break::Lost { rank: 1, by: 2 })),
    ]
}

#[test]
fn messages_keep_their_bytes() {
    let redirect = ToSidecar::Redirect {
        address: ([192, 0, 2, 1], 9443).into(),
    };
    let to_operator = to_operator();
    let to_operator = to_operator.iter().map(|message| encode(message).unwrap());
    let to_sidecar = messages()
        .into_iter()
        .map(|message| encode(&to_sidecar(&message)).unwrap());
    let redirect = encode(&redirect).unwrap();
    let stacks = ToSidecar::Stacks {
        reason: "why".to_owned(),
    };
    let stacks = encode(&stacks).unwrap();
    let mut all = String::new();
    for frame in to_operator.chain(to_sidecar).chain([redirect, stacks]) {
        let (length, body) = frame.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
        all += std::str::from_utf8(body).unwrap();
        all.push('\n');
    }
    assert_eq!(all, include_str!("golden.txt"));
}
