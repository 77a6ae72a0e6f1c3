//! The members of an attempt in three forms: as the rendezvous commits them, as the planner reads
//! them, and as the status shows them. There those who are lost are listed and not those who are
//! left: of 1,250 nodes few are.

use std::collections::BTreeSet;

use collective::membership::Commit;
use crds::names;
use crds::training_job::{MembershipStatus, RankRange};
use scheduler::CommittedMembers;
use sha2::{Digest as _, Sha256};
use topology::NodeName;

/// Lost nodes that the status names; ranks say the rest.
const NAMED: usize = 16;
/// The longest record: 128 operations of some 250 bytes, eight times. An object of the API server
/// holds 1 MiB.
const RESUME_BYTES: usize = 256 << 10;
/// No attempt has ranks from here on.
const RANKS: u32 = contract::assignment::MAX_NODES as u32;

/// What a record cannot hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to store the resume record of {operations} operations: {bytes} bytes are more than {RESUME_BYTES}"
)]
pub struct TooLarge {
    operations: usize,
    bytes: usize,
}

/// A commit, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// What goes into the status.
    pub membership: CommittedMembers,
    /// What its record holds: what the members begin with. None when they begin with nothing.
    pub text: Option<String>,
}

/// A commit of an attempt of a job over these nodes, to be recorded.
pub fn of_commit(
    job: &str,
    attempt: u32,
    nodes: &[NodeName],
    commit: &Commit,
) -> Result<Recorded, TooLarge> {
    let members: BTreeSet<u32> = commit.members.iter().copied().collect();
    let lost = (0..).zip(nodes).filter(|(rank, _)| !members.contains(rank));
    let (lost, names): (BTreeSet<u32>, Vec<&NodeName>) = lost.unzip();
    let text = serde_json::to_string(&commit.resume).unwrap_or_default();
    if text.len() > RESUME_BYTES {
        return Err(TooLarge {
            operations: commit.resume.iter().map(|group| group.served.len()).sum(),
            bytes: text.len(),
        });
    }
    let text = (!commit.resume.is_empty()).then_some(text);
    let record = text
        .as_deref()
        .map(|text| record_name(job, (attempt, commit.epoch), text));
    let membership = CommittedMembers {
        attempt,
        epoch: commit.epoch,
        participants: u32::try_from(members.len()).unwrap_or(u32::MAX),
        lost,
        lost_nodes: names.iter().take(NAMED).map(ToString::to_string).collect(),
        record: record.map(Into::into),
    };
    Ok(Recorded { membership, text })
}

/// Name of the ConfigMap that holds the text of an epoch: of no other epoch, and of no other text.
pub fn record_name(job: &str, (attempt, epoch): (u32, u64), text: &str) -> String {
    let mut name = format!("{}-{epoch}-", names::attempt_name(job, attempt));
    for byte in Sha256::digest(text) {
        name.push_str(&format!("{byte:02x}"));
    }
    name
}

/// The commit that was recorded for an attempt over so many nodes, with the text of its record;
/// none when it cannot be read.
pub fn to_commit(recorded: &CommittedMembers, nodes: usize, text: Option<&str>) -> Option<Commit> {
    let nodes = u32::try_from(nodes).ok()?;
    let members: Vec<u32> = (0..nodes)
        .filter(|rank| !recorded.lost.contains(rank))
        .collect();
    let resume = match text {
        Some(text) => serde_json::from_str(text).ok()?,
        None => Vec::new(),
    };
    (members.len() == recorded.participants as usize).then_some(Commit {
        epoch: recorded.epoch,
        members,
        resume,
    })
}

/// As the API shows it.
pub fn to_api(recorded: &CommittedMembers) -> MembershipStatus {
    MembershipStatus {
        attempt: recorded.attempt,
        epoch: recorded.epoch,
        participants: recorded.participants,
        lost_ranks: ranges(&recorded.lost),
        lost_nodes: recorded.lost_nodes.clone(),
        record: recorded.record.as_deref().map(str::to_owned),
    }
}

/// As it was recorded; none when the ranks are not ours.
pub fn from_api(shown: &MembershipStatus) -> Option<CommittedMembers> {
    Some(CommittedMembers {
        attempt: shown.attempt,
        epoch: shown.epoch,
        participants: shown.participants,
        lost: ranks(&shown.lost_ranks)?,
        lost_nodes: shown.lost_nodes.clone(),
        record: shown.record.as_deref().map(Into::into),
    })
}

fn ranges(ranks: &BTreeSet<u32>) -> Vec<RankRange> {
    let mut ranges: Vec<RankRange> = Vec::new();
    for &rank in ranks {
        match ranges.last_mut() {
            Some(range) if range.last + 1 == rank => range.last = rank,
            Some(_) | None => ranges.push(RankRange {
                first: rank,
                last: rank,
            }),
        }
    }
    ranges
}

/// The ranks in some ranges; none when these are not what an attempt can have.
fn ranks(ranges: &[RankRange]) -> Option<BTreeSet<u32>> {
    let possible = |range: &RankRange| range.first <= range.last && range.last < RANKS;
    let all = ranges.iter().flat_map(|range| range.first..=range.last);
    ranges.iter().all(possible).then(|| all.collect())
}

#[cfg(test)]
mod tests {
    use collective::recovery::GroupResume;

    use super::*;

    fn nodes(count: u32) -> Vec<NodeName> {
        (0..count)
            .map(|rank| format!("node-{rank}").into())
            .collect()
    }

    fn there_and_back(nodes: &[NodeName], commit: &Commit) -> Commit {
        let Recorded { membership, text } = of_commit("train", 1, nodes, commit).unwrap();
        let json = serde_json::to_string(&to_api(&membership)).unwrap();
        let read = from_api(&serde_json::from_str(&json).unwrap()).unwrap();
        to_commit(&read, nodes.len(), text.as_deref()).unwrap()
    }

    #[test]
    fn a_commit_reads_back_the_same_and_that_of_4096_nodes_is_small() {
        let nodes = nodes(4096);
        let commit = |members: Vec<u32>| Commit {
            epoch: 7,
            members,
            resume: vec![GroupResume {
                group: 0,
                base: 41,
                served: Vec::new(),
                refused: None,
            }],
        };
        let odd = commit((0..4096).filter(|rank| rank % 2 == 1).collect());
        for commit in [commit((0..4096).collect()), commit(vec![4095]), odd] {
            assert_eq!(there_and_back(&nodes, &commit), commit);
            let shown = to_api(&of_commit("train", 1, &nodes, &commit).unwrap().membership);
            let bytes = serde_json::to_string(&shown).unwrap().len();
            assert!(bytes < 64 << 10, "{bytes} bytes");
        }
    }

    #[test]
    fn lost_ranks_are_shown_as_ranges_and_the_first_by_name() {
        let commit = Commit {
            epoch: 2,
            members: vec![0, 1, 3, 4, 8],
            resume: Vec::new(),
        };
        let shown = to_api(
            &of_commit("train", 1, &nodes(9), &commit)
                .unwrap()
                .membership,
        );
        let range = |first, last| RankRange { first, last };
        assert_eq!(shown.participants, 5);
        assert_eq!(shown.lost_ranks, [range(2, 2), range(5, 7)]);
        assert_eq!(shown.lost_nodes, ["node-2", "node-5", "node-6", "node-7"]);
        assert_eq!(shown.record, None);
    }

    #[test]
    fn what_nobody_wrote_is_not_believed() {
        for (first, last) in [(5, 2), (1, 99_999_999), (99_999, 99_999)] {
            assert_eq!(ranks(&[RankRange { first, last }]), None);
        }
        let recorded = of_commit(
            "train",
            1,
            &nodes(3),
            &Commit {
                epoch: 1,
                members: vec![0, 1, 2],
                resume: Vec::new(),
            },
        )
        .unwrap()
        .membership;
        assert_eq!(to_commit(&recorded, 3, Some("{")), None);
        assert_eq!(to_commit(&recorded, 4, None), None);
    }
}
