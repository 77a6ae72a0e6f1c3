//! Who speaks for which attempt of which job: what the two sides of a connection say in `link`'s handshake, and prove.

use std::fmt;

use sha2::{Digest, Sha256};

/// Bytes of an identity: job, attempt, rank. The first two are the realm: who is of another one is refused.
pub const IDENTITY_BYTES: usize = 16 + 4 + 4;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// The operator's rendezvous service.
    Operator,
    /// The sidecar of a node rank.
    Sidecar {
        /// The node rank.
        rank: u32,
    },
}

/// One side of a connection. Of two sidecars the one with the lower rank is the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// The sidecar of this rank in the same attempt.
    #[must_use]
    pub fn peer(self, rank: u32) -> Self {
        let party = Party::Sidecar { rank };
        Self { party, ..self }
    }
}

impl From<Identity> for [u8; IDENTITY_BYTES] {
    fn from(identity: Identity) -> Self {
        let rank = match identity.party {
            Party::Operator => OPERATOR,
            Party::Sidecar { rank } => rank,
        };
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..16].copy_from_slice(&identity.job.0);
        bytes[16..20].copy_from_slice(&identity.attempt.to_le_bytes());
        bytes[20..].copy_from_slice(&rank.to_le_bytes());
        bytes
    }
}

impl From<[u8; IDENTITY_BYTES]> for Identity {
    fn from(bytes: [u8; IDENTITY_BYTES]) -> Self {
        let [job @ .., a0, a1, a2, a3, r0, r1, r2, r3] = bytes;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The same bytes as in the golden messages of the handshake.
    #[test]
    fn an_identity_keeps_its_bytes() {
        let hex = |identity: Identity| -> String {
            let bytes: [u8; IDENTITY_BYTES] = identity.into();
            assert_eq!(Identity::from(bytes), identity);
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let sidecar = Identity {
            job: JobId::new("uid-1"),
            attempt: 3,
            party: Party::Sidecar { rank: 5 },
        };
        let party = Party::Operator;
        let operator = Identity { party, ..sidecar };
        let realm = "4a49acf8a6bd727728495d1e541a840803000000";
        assert_eq!(hex(sidecar), format!("{realm}05000000"));
        assert_eq!(hex(operator), format!("{realm}ffffffff"));
        let text = "sidecar 5 of job 4a49acf8 attempt 3";
        assert_eq!(sidecar.to_string(), text);
    }
}
