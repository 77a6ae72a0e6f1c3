//! What messages are to membership, and membership's messages as they travel.

use super::{Error, Peer, ToOperator, ToSidecar, encode};
use crate::membership::{
    Connection, Endpoint, HelloRefusal, MOST_ASKED, MembershipEvent, MembershipMessage, Reach,
};
use crate::recovery::EpochReport;

/// What a sidecar has said, for the membership of its gang. `rank`: the node rank that it has proved to be.
#[must_use]
pub fn event(connection: Connection, rank: u32, message: ToOperator) -> MembershipEvent {
    match message {
        ToOperator::Hello {
            version: _,
            address,
            port,
            joined_epoch: joined,
            features: _,
        } => MembershipEvent::Hello {
            connection,
            rank,
            endpoint: Endpoint { address, port },
            joined,
        },
        ToOperator::Joined { epoch } => MembershipEvent::Joined { connection, epoch },
        ToOperator::Heartbeat {
            progress,
            operations,
        } => MembershipEvent::Heartbeat {
            connection,
            progress,
            operations,
        },
        ToOperator::Suspect {
            epoch,
            rank,
            reason,
            detail: _,
        } => MembershipEvent::Suspect {
            connection,
            epoch,
            rank,
            reason,
        },
        ToOperator::Recovered { epoch, rank } => MembershipEvent::Recovered {
            connection,
            epoch,
            rank,
        },
        ToOperator::Stopped {
            epoch,
            report,
            reached,
            unreached,
        } => MembershipEvent::Stopped {
            connection,
            epoch,
            report,
            reach: Reach {
                reached: reached.into_iter().collect(),
                unreached: unreached.into_iter().collect(),
            },
        },
        ToOperator::RankLost => MembershipEvent::RankLost { connection },
        ToOperator::Leaving => MembershipEvent::Leaving { connection },
    }
}

/// What membership says to a sidecar, as it travels.
#[must_use]
pub fn to_sidecar(message: &MembershipMessage) -> ToSidecar {
    let peer = |(rank, endpoint): (u32, Endpoint)| Peer {
        rank,
        address: endpoint.address,
        port: endpoint.port,
    };
    match message {
        MembershipMessage::Roster { epoch, endpoints } => ToSidecar::Roster {
            epoch: *epoch,
            nodes: (0..).zip(endpoints.iter().copied()).map(peer).collect(),
        },
        MembershipMessage::Go { epoch } => ToSidecar::Go { epoch: *epoch },
        MembershipMessage::Revoke { epoch, members } => ToSidecar::Revoke {
            epoch: *epoch,
            members: members.iter().copied().map(peer).collect(),
        },
        MembershipMessage::Next {
            epoch,
            members,
            resume,
        } => ToSidecar::Next {
            epoch: *epoch,
            members: members.iter().copied().map(peer).collect(),
            resume: resume.clone(),
        },
        MembershipMessage::Refused(refusal @ HelloRefusal::Connected { .. }) => ToSidecar::Retry {
            reason: refusal.to_string(),
        },
        MembershipMessage::Refused(refusal) => ToSidecar::Refused {
            reason: refusal.to_string(),
            // The others do its work.
            void: matches!(refusal, HelloRefusal::Out { .. }),
        },
    }
}

/// How far a sidecar is that has stopped, and whom it reaches, as it travels.
#[must_use]
pub fn stopped(epoch: u64, report: EpochReport, reach: &Reach) -> ToOperator {
    ToOperator::Stopped {
        epoch,
        report,
        reached: reach.reached.iter().copied().collect(),
        unreached: reach.unreached.iter().copied().collect(),
    }
}

/// Whether a report can be sent, whomever its node reaches: one that is too long names its length.
pub fn fits(report: &EpochReport) -> Result<(), Error> {
    let all = || (0..MOST_ASKED).map(|at| u32::MAX - at).collect();
    let reach = Reach {
        reached: all(),
        unreached: all(),
    };
    encode(&stopped(u64::MAX, report.clone(), &reach)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::machine::{Claim, MAX_GROUPS, Mismatch, Verdict};
    use crate::membership::encoding::Decoder;
    use crate::membership::probes;
    use crate::recovery::{GroupReport, MAX_RETAINED, Retained};
    use crate::{Call, DType, Factor, Numerics, OpKind, ReduceOp};

    use super::*;

    const CONNECTION: Connection = Connection(7);

    #[test]
    fn what_a_stopped_sidecar_says_arrives_at_membership() {
        let reach = Reach {
            reached: BTreeSet::from([0, 2]),
            unreached: BTreeSet::from([1]),
        };
        let said = stopped(4, EpochReport::new(), &reach);
        let received = event(CONNECTION, 3, said);
        let expected = MembershipEvent::Stopped {
            connection: CONNECTION,
            epoch: 4,
            report: EpochReport::new(),
            reach,
        };
        assert_eq!(received, expected);
    }

    #[test]
    fn a_report_or_a_resume_that_is_none_is_an_error() {
        let said = serde_json::json!(
            {"kind": "stopped", "epoch": 1, "report": "nonsense", "reached": [], "unreached": []}
        );
        let mut decoder = Decoder::<ToOperator>::default();
        decoder.push(&encode(&said).unwrap());
        assert!(matches!(decoder.next(), Err(Error::Parse(_))));
        let said = serde_json::json!({"kind": "next", "epoch": 1, "members": [], "resume": 5});
        let mut decoder = Decoder::<ToSidecar>::default();
        decoder.push(&encode(&said).unwrap());
        assert!(matches!(decoder.next(), Err(Error::Parse(_))));
    }

    #[test]
    fn a_sidecar_that_others_have_gone_on_without_and_no_other_may_not_run_on() {
        for (refusal, ends) in [
            (HelloRefusal::Out { rank: 1, epoch: 2 }, true),
            (HelloRefusal::Replaced { rank: 1 }, false),
            (HelloRefusal::Epoch { theirs: 1, ours: 2 }, false),
        ] {
            let said = to_sidecar(&MembershipMessage::Refused(refusal));
            let reason = refusal.to_string();
            let void = ends;
            assert_eq!(said, ToSidecar::Refused { reason, void });
        }
    }

    #[test]
    fn endpoints_of_a_roster_have_their_place_for_a_rank() {
        let endpoint = |port| Endpoint {
            address: [10, 0, 0, 1].into(),
            port,
        };
        let endpoints = vec![endpoint(1), endpoint(2)];
        let said = to_sidecar(&MembershipMessage::Roster {
            epoch: 1,
            endpoints,
        });
        let ToSidecar::Roster { nodes, .. } = said else {
            panic!("a roster stays one");
        };
        let ranks: Vec<_> = nodes.iter().map(|peer| (peer.rank, peer.port)).collect();
        assert_eq!(ranks, [(0, 1), (1, 2)]);
    }

    #[test]
    fn who_is_connected_already_may_try_again_and_is_not_refused() {
        let refusal = HelloRefusal::Connected { rank: 1 };
        let said = to_sidecar(&MembershipMessage::Refused(refusal));
        let reason = refusal.to_string();
        assert_eq!(said, ToSidecar::Retry { reason });
    }

    /// A report of so many groups, each with as many operations as it may name, of which every field is as long as it gets.
    fn longest(groups: usize) -> EpochReport {
        let call = Call {
            kind: OpKind::Reduce {
                op: ReduceOp::PremulSum(Factor::new(f32::MIN_POSITIVE)),
                root: u32::MAX,
            },
            dtype: DType::Bf16,
            count: u64::MAX,
            tag: u64::MAX,
            numerics: Numerics::Precise,
        };
        let rank = u32::MAX;
        let held = |op| Retained {
            op,
            epoch: u32::MAX,
            call,
            bytes: u64::MAX,
            complete: false,
            verdict: Some(Verdict::Mismatch(Mismatch {
                one: Claim { rank, call },
                other: Claim { rank, call },
            })),
        };
        let group = |group| GroupReport {
            group,
            delivered_to_all: u64::MAX,
            delivered_to_any: u64::MAX,
            retained: (u64::MAX - MAX_RETAINED..u64::MAX).map(held).collect(),
            refused: None,
        };
        (0..groups as u64).map(|at| group(u64::MAX - at)).collect()
    }

    /// What the gang of the largest job may say.
    #[test]
    fn a_full_report_of_eight_groups_fits_whatever_they_called_and_what_does_not_fit_is_an_error() {
        let ranks: Vec<u32> = (0..10_000).collect();
        assert!(probes(&ranks, 4_096).len() <= MOST_ASKED as usize);
        fits(&longest(8)).unwrap();
        let longer = longest(16);
        assert!(longer.iter().all(GroupReport::is_sound));
        assert!(matches!(fits(&longer), Err(Error::TooLarge(_))));
        // A node without memory says of any number of groups what was delivered to its processes.
        let recollected =
            (0..=MAX_GROUPS as u64).map(|at| GroupReport::of_delivered(u64::MAX - at, &[u64::MAX]));
        fits(&recollected.collect()).unwrap();
    }
}
