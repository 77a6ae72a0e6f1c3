//! Who speaks for which attempt of which job: what the two sides of a channel say, and then prove.

use std::fmt;

use sha2::{Digest, Sha256};

/// Bytes of an identity: job, attempt, rank.
pub(crate) const IDENTITY_BYTES: usize = 16 + 4 + 4;
/// The rank that stands for the operator.
const OPERATOR: u32 = u32::MAX;

/// A job's UID, hashed to a fixed size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId([u8; 16]);

impl JobId {
    /// The identity of the job with this UID.
    pub fn new(uid: &str) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&Sha256::digest(uid.as_bytes())[..16]);
        Self(id)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({self})")
    }
}

/// Who speaks for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// The operator's rendezvous service.
    Operator,
    /// The sidecar of a node rank.
    Sidecar {
        /// The node rank.
        rank: u32,
    },
}

/// One side of a channel. Verified once the handshake ended, a mere claim before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: u32,
    /// Who speaks for it.
    pub party: Party,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.party {
            Party::Operator => write!(f, "the operator")?,
            Party::Sidecar { rank } => write!(f, "sidecar {rank}")?,
        }
        write!(f, " of job {} attempt {}", self.job, self.attempt)
    }
}

impl Identity {
    pub(crate) fn encode(&self) -> [u8; IDENTITY_BYTES] {
        let rank = match self.party {
            Party::Operator => OPERATOR,
            Party::Sidecar { rank } => rank,
        };
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..16].copy_from_slice(&self.job.0);
        bytes[16..20].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[20..].copy_from_slice(&rank.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; IDENTITY_BYTES]) -> Self {
        let [job @ .., a0, a1, a2, a3, r0, r1, r2, r3] = *bytes;
        let party = match u32::from_le_bytes([r0, r1, r2, r3]) {
            OPERATOR => Party::Operator,
            rank => Party::Sidecar { rank },
        };
        Self {
            job: JobId(job),
            attempt: u32::from_le_bytes([a0, a1, a2, a3]),
            party,
        }
    }
}
