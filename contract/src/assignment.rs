//! The attempt's assignment: which nodes, in rank order, run an attempt of a job. The operator writes
//! it once into the attempt's ConfigMap, compressed; sidecar and tools read it. Trees and the gateway
//! pair are not in it: `core/collective` derives them from the zones, by the algorithm's version.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use topology::OnPeerLoss;

pub use crate::limits::{ASSIGNMENT_LIMIT_BYTES, MAX_NODES, MAX_PROCS_PER_NODE};
use topology::CheckpointRef;

/// The layout that is written today.
pub const VERSION: u32 = 1;
/// The layouts that are read: also those that attempts under way were written in before an upgrade.
pub const VERSIONS: RangeInclusive<u32> = 1..=VERSION;
/// How trees are derived from the zones in attempts that begin today.
pub const ALGORITHM: u32 = 1;
/// The algorithms by which trees can be derived.
pub const ALGORITHMS: RangeInclusive<u32> = 1..=ALGORITHM;
/// Highest traffic class: IP packets have three bits for it.
pub const MAX_TRAFFIC_CLASS: u8 = 7;
/// Longest name of anything in Kubernetes.
const NAME_LIMIT_BYTES: usize = 253;

/// Why an assignment could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not unpack.
    #[error("failed to unpack the assignment: it is not gzip, or it is cut short")]
    Unpack(#[source] io::Error),
    /// It unpacks to more than any assignment holds.
    #[error("failed to unpack the assignment: it is larger than {0} bytes")]
    TooLarge(u64),
    /// It is not the JSON we write.
    #[error("failed to parse the assignment")]
    Parse(#[source] serde_json::Error),
    /// Another release wrote it, and this one does not read it.
    #[error(
        "failed to read the assignment: made by {age} release: {what} {found}, this release reads {reads}",
        age = if found < reads.start() { "an older" } else { "a newer" },
        reads = Span(reads),
    )]
    Release {
        /// What this release does not know.
        what: FoundAssignment,
        /// Which one it is.
        found: u32,
        /// Those that this release knows.
        reads: RangeInclusive<u32>,
    },
    /// It says something that cannot be.
    #[error("failed to accept the assignment: {0}")]
    Invalid(String),
    /// It could not be packed.
    #[error("failed to pack the assignment")]
    Pack(#[source] io::Error),
}

/// What of an assignment has versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundAssignment {
    /// Its layout.
    Layout,
    /// How trees are derived.
    Algorithm,
}

impl FoundAssignment {
    /// Refuses what is not within the versions that are read.
    fn within(self, found: u32, reads: &RangeInclusive<u32>) -> Result<(), Error> {
        match reads.contains(&found) {
            true => Ok(()),
            false => Err(Error::Release {
                what: self,
                found,
                reads: reads.clone(),
            }),
        }
    }
}

impl fmt::Display for FoundAssignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Layout => "version",
            Self::Algorithm => "algorithm",
        })
    }
}

/// A range in words.
struct Span<'a>(&'a RangeInclusive<u32>);

impl fmt::Display for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (oldest, newest) = (self.0.start(), self.0.end());
        match oldest == newest {
            true => write!(f, "{newest}"),
            false => write!(f, "{oldest} to {newest}"),
        }
    }
}

/// Which nodes run an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// Layout of this file.
    pub version: u32,
    /// The job.
    pub job: JobRef,
    /// The attempt, from 1.
    pub attempt: u32,
    /// How trees are derived.
    pub algorithm: u32,
    /// Processes on each node.
    pub procs_per_node: u32,
    /// The nodes, in rank order.
    pub nodes: Vec<AssignedNode>,
    /// Whether the nodes are in more than one zone.
    pub crossing: bool,
    /// The port rank 0 offers to the training framework.
    pub master_port: u16,
    /// The rule for the others when a node is lost.
    #[serde(default)]
    pub on_peer_loss: OnPeerLoss,
    /// How long a node may be gone before it is lost, in seconds.
    #[serde(default = "peer_loss_seconds")]
    pub peer_loss_seconds: u32,
    /// With fewer nodes than this the others do not go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_nodes: Option<u32>,
    /// How long its pods may take to save and leave, in seconds. Absent in what older operators wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u32>,
    /// The class of the job's data on the network, 0 to 7: InfiniBand's service level, and the class selector of IP
    /// packets.
    #[serde(default)]
    pub traffic_class: u8,
    /// Whether RDMA devices may write payload to memory in any order.
    #[serde(default = "relaxed_ordering")]
    pub relaxed_ordering: bool,
    /// Where checkpoints go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointFolder>,
    /// The checkpoint this attempt resumes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<CheckpointRef>,
}

/// Until a node counts as lost, unless something else is said: longer than a sidecar takes to start again.
pub const PEER_LOSS_SECONDS: u32 = 10;

const fn peer_loss_seconds() -> u32 {
    PEER_LOSS_SECONDS
}

const fn relaxed_ordering() -> bool {
    true
}

/// A job, by name and for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, which no later job of the same name shares.
    pub uid: String,
}

/// One node of the attempt; its rank is its place in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedNode {
    /// Its Kubernetes name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its leaf switch.
    #[serde(default)]
    pub leaf: String,
}

/// Where checkpoints go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointFolder {
    /// The claim.
    pub claim_name: String,
    /// The folder in it.
    pub path: String,
}

/// The member that says how the others are to be read.
#[derive(Deserialize)]
struct Layout {
    version: u32,
}

/// What every version of an assignment says. No version may write these members in another way.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outline {
    /// The attempt.
    pub attempt: u32,
    /// Its nodes, in rank order.
    pub nodes: Vec<OutlineNode>,
    /// Whether they are in two zones.
    #[serde(default)]
    pub crossing: bool,
}

/// A node of an [`Outline`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OutlineNode {
    /// Its Kubernetes name.
    pub name: String,
}

impl Assignment {
    /// Checks everything that readers rely on.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |why: String| Err(Error::Invalid(why));
        FoundAssignment::Layout.within(self.version, &VERSIONS)?;
        FoundAssignment::Algorithm.within(self.algorithm, &ALGORITHMS)?;
        if self.attempt == 0 {
            return refuse("attempts are counted from 1".to_owned());
        }
        if self.nodes.is_empty() || self.nodes.len() > MAX_NODES {
            return refuse(format!("{} nodes, not 1 to {MAX_NODES}", self.nodes.len()));
        }
        if self.procs_per_node == 0 || self.procs_per_node > MAX_PROCS_PER_NODE {
            return refuse(format!(
                "{} processes a node, not 1 to {MAX_PROCS_PER_NODE}",
                self.procs_per_node
            ));
        }
        if self.traffic_class > MAX_TRAFFIC_CLASS {
            return refuse(format!(
                "traffic class {}, not 0 to {MAX_TRAFFIC_CLASS}",
                self.traffic_class
            ));
        }
        for text in [&self.job.namespace, &self.job.name, &self.job.uid] {
            name("the job's namespace, name or uid", text)?;
        }
        let mut seen = BTreeSet::new();
        for node in &self.nodes {
            name("a node", &node.name)?;
            // Zone and leaf are label values: a node without the label has an empty one.
            if node.zone.len() > NAME_LIMIT_BYTES || node.leaf.len() > NAME_LIMIT_BYTES {
                return refuse(format!("zone or leaf of node {} is too long", node.name));
            }
            if !seen.insert(&node.name) {
                return refuse(format!("node {} is listed twice", node.name));
            }
        }
        Ok(())
    }

    /// What a file says in every version, also in one that this reader does not know: which attempt it is and where
    /// it runs. Only what is known to be the operator's may be believed without its rules being checked.
    pub fn outline(packed: &[u8], limit: u64) -> Result<Outline, Error> {
        let json = unpack(packed, limit)?;
        serde_json::from_slice(&json).map_err(Error::Parse)
    }

    /// Ranks of all processes together.
    pub fn world_size(&self) -> u32 {
        self.nodes.len() as u32 * self.procs_per_node
    }

    /// The file's content.
    pub fn to_gz(&self) -> Result<Vec<u8>, Error> {
        self.validate()?;
        let json = serde_json::to_vec(self).map_err(|error| Error::Pack(error.into()))?;
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&json).map_err(Error::Pack)?;
        packer.finish().map_err(Error::Pack)
    }

    /// Reads a file's content, of at most `limit` bytes when unpacked.
    pub fn from_gz(packed: &[u8], limit: u64) -> Result<Self, Error> {
        let json = unpack(packed, limit)?;
        // What another release wrote in its own way is no damage.
        let layout: Layout = serde_json::from_slice(&json).map_err(Error::Parse)?;
        FoundAssignment::Layout.within(layout.version, &VERSIONS)?;
        let assignment: Self = serde_json::from_slice(&json).map_err(Error::Parse)?;
        assignment.validate()?;
        Ok(assignment)
    }
}

fn unpack(packed: &[u8], limit: u64) -> Result<Vec<u8>, Error> {
    let mut json = Vec::new();
    GzDecoder::new(packed)
        .take(limit.saturating_add(1))
        .read_to_end(&mut json)
        .map_err(Error::Unpack)?;
    if json.len() as u64 > limit {
        return Err(Error::TooLarge(limit));
    }
    Ok(json)
}

fn name(what: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() || text.len() > NAME_LIMIT_BYTES {
        return Err(Error::Invalid(format!(
            "{what} has a name of {} bytes, not 1 to {NAME_LIMIT_BYTES}",
            text.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assignment(nodes: usize) -> Assignment {
        Assignment {
            version: VERSION,
            job: JobRef {
                namespace: "vision".to_owned(),
                name: "digits".to_owned(),
                uid: "2c1f2a6e-8f0b-4a77-9a53-0d6f3a5d1b11".to_owned(),
            },
            attempt: 1,
            algorithm: ALGORITHM,
            procs_per_node: 8,
            nodes: (0..nodes)
                .map(|rank| AssignedNode {
                    name: format!("node-{rank}"),
                    zone: if rank % 2 == 0 { "a" } else { "b" }.to_owned(),
                    leaf: format!("leaf-{}", rank / 20),
                })
                .collect(),
            crossing: nodes > 1,
            master_port: 29_400,
            on_peer_loss: OnPeerLoss::Restart,
            peer_loss_seconds: PEER_LOSS_SECONDS,
            min_nodes: None,
            grace_seconds: None,
            traffic_class: 1,
            relaxed_ordering: true,
            checkpoint: None,
            resume: None,
        }
    }

    fn pack(json: &serde_json::Value) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(json.to_string().as_bytes()).unwrap();
        packer.finish().unwrap()
    }

    fn refused(change: impl FnOnce(&mut Assignment)) -> String {
        let mut changed = assignment(2);
        change(&mut changed);
        changed.to_gz().unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read_and_10_000_nodes_fit_a_configmap() {
        let written = assignment(10_000);
        let packed = written.to_gz().unwrap();
        assert!(packed.len() < 512 << 10, "{} bytes", packed.len());
        assert_eq!(
            Assignment::from_gz(&packed, ASSIGNMENT_LIMIT_BYTES).unwrap(),
            written
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        assert!(refused(|a| a.nodes.clear()).contains("0 nodes"));
        assert!(refused(|a| a.procs_per_node = 65).contains("65 processes a node"));
        let many = refused(|a| a.nodes = assignment(MAX_NODES + 1).nodes);
        assert!(many.contains("16385 nodes, not 1 to 16384"), "{many}");
        assert!(refused(|a| a.nodes[1].name = "node-0".to_owned()).contains("twice"));
        assert!(refused(|a| a.attempt = 0).contains("counted from 1"));
        assert!(refused(|a| a.traffic_class = 8).contains("class 8, not 0 to 7"));
    }

    #[test]
    fn of_another_release_is_said_which_versions_this_one_reads() {
        let said = |found| {
            FoundAssignment::Layout
                .within(found, &(2..=3))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            said(1),
            "failed to read the assignment: made by an older release: version 1, this release reads 2 to 3"
        );
        assert_eq!(
            said(4),
            "failed to read the assignment: made by a newer release: version 4, this release reads 2 to 3"
        );
        for inside in 2..=3 {
            assert!(FoundAssignment::Layout.within(inside, &(2..=3)).is_ok());
        }
        let newer = FoundAssignment::Algorithm
            .within(2, &(1..=1))
            .unwrap_err()
            .to_string();
        assert!(
            newer.ends_with("a newer release: algorithm 2, this release reads 1"),
            "{newer}"
        );
    }

    #[test]
    fn every_version_that_this_release_reads_is_accepted_and_no_other() {
        assert!(VERSIONS.contains(&VERSION) && ALGORITHMS.contains(&ALGORITHM));
        let read = |version: u32, algorithm: u32| {
            let changed = Assignment {
                version,
                algorithm,
                ..assignment(2)
            };
            Assignment::from_gz(
                &pack(&serde_json::to_value(changed).unwrap()),
                ASSIGNMENT_LIMIT_BYTES,
            )
        };
        for version in VERSIONS {
            assert_eq!(read(version, ALGORITHM).unwrap().version, version);
        }
        for algorithm in ALGORITHMS {
            assert_eq!(read(VERSION, algorithm).unwrap().algorithm, algorithm);
        }
        for (version, algorithm, release) in [
            (VERSIONS.start() - 1, ALGORITHM, "an older"),
            (VERSIONS.end() + 1, ALGORITHM, "a newer"),
            (VERSION, ALGORITHMS.start() - 1, "an older"),
            (VERSION, ALGORITHMS.end() + 1, "a newer"),
        ] {
            let error = read(version, algorithm).unwrap_err().to_string();
            assert!(
                error.contains(&format!("made by {release} release")),
                "{error}"
            );
        }
    }

    #[test]
    fn what_an_older_operator_does_not_say_is_as_it_was_then() {
        let mut json = serde_json::to_value(assignment(2)).unwrap();
        let members = json.as_object_mut().unwrap();
        assert_eq!(members.remove("relaxedOrdering"), Some(true.into()));
        let read = Assignment::from_gz(&pack(&json), ASSIGNMENT_LIMIT_BYTES).unwrap();
        assert_eq!(read, assignment(2));
    }

    #[test]
    fn a_version_of_the_future_still_says_which_nodes_it_is_about() {
        let mut json = serde_json::to_value(assignment(2)).unwrap();
        json["version"] = 99.into();
        json["algorithm"] = "of the future".into();
        json["nodes"][0]["rack"] = 7.into();
        let packed = pack(&json);
        let error = Assignment::from_gz(&packed, ASSIGNMENT_LIMIT_BYTES).unwrap_err();
        let newer = "made by a newer release: version 99";
        assert!(error.to_string().contains(newer), "{error}");
        let read = Assignment::outline(&packed, ASSIGNMENT_LIMIT_BYTES).unwrap();
        let names: Vec<_> = read.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!((read.attempt, read.crossing), (1, true));
        assert_eq!(names, ["node-0", "node-1"]);
        let error = Assignment::outline(&packed, 10).unwrap_err();
        assert!(matches!(error, Error::TooLarge(10)), "{error}");
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&vec![b' '; 1 << 20]).unwrap();
        let packed = packer.finish().unwrap();
        let error = Assignment::from_gz(&packed, 1000).unwrap_err();
        assert!(matches!(error, Error::TooLarge(1000)), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = Assignment::from_gz(&bytes, ASSIGNMENT_LIMIT_BYTES);
        }

        #[test]
        fn a_damaged_file_never_panics(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut packed = assignment(3).to_gz().unwrap();
            let place = place.index(packed.len());
            packed[place] = byte;
            let _ = Assignment::from_gz(&packed, ASSIGNMENT_LIMIT_BYTES);
        }
    }
}
