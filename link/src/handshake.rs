//! Mutual authentication by the attempt's key, without IO: three messages of fixed size, in each
//! direction a proof over everything said before. Used by sidecars towards the operator and towards
//! each other. Nonces come from the caller, who must never use one twice. The channel that follows is
//! trusted as the pod network is; frames are fenced by (attempt, epoch), not signed one by one.

use crate::identity::IDENTITY_BYTES;
pub use crate::identity::{Identity, JobId, Party};
pub use crate::key::{KEY_BYTES, Key};

/// Bytes of the initiator's first message.
pub const HELLO_BYTES: usize = PREFIX_BYTES + IDENTITY_BYTES + NONCE_BYTES;
/// Bytes of the responder's answer.
pub const CHALLENGE_BYTES: usize = PREFIX_BYTES + IDENTITY_BYTES + NONCE_BYTES + PROOF_BYTES;
/// Bytes of the initiator's proof.
pub const PROOF_BYTES: usize = 32;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// The protocol's version; another one is refused, with both in the text.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 6] = *b"FFLYHS";
const PREFIX_BYTES: usize = MAGIC.len() + 2;

/// Why the other side was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something else dialled.
    #[error("failed to authenticate the peer: it does not speak our protocol")]
    Magic,
    /// The other side is older or newer.
    #[error("failed to authenticate the peer: it speaks version {theirs}, this side {VERSION}")]
    Version {
        /// The version it speaks.
        theirs: u16,
    },
    /// It answers for another job or attempt.
    #[error("failed to authenticate the peer: it is {theirs}, this side expects {ours}")]
    Attempt {
        /// What it says it is.
        theirs: Identity,
        /// What this side is.
        ours: Identity,
    },
    /// It does not hold the attempt's key.
    #[error("failed to authenticate {theirs}: it does not hold the attempt's key")]
    Proof {
        /// What it says it is.
        theirs: Identity,
    },
}

/// The side that dialled.
#[derive(Debug)]
pub struct Initiator {
    key: Key,
    identity: Identity,
    hello: [u8; HELLO_BYTES],
}

impl Initiator {
    /// Starts: send the bytes, then read `CHALLENGE_BYTES`.
    pub fn new(
        key: Key,
        identity: Identity,
        nonce: [u8; NONCE_BYTES],
    ) -> (Self, [u8; HELLO_BYTES]) {
        let mut hello = [0; HELLO_BYTES];
        introduce(&mut hello, &identity, &nonce);
        let initiator = Self {
            key,
            identity,
            hello,
        };
        (initiator, hello)
    }

    /// Verifies the answer: send the proof; the peer is who the identity says.
    pub fn finish(
        self,
        challenge: &[u8; CHALLENGE_BYTES],
    ) -> Result<(Identity, [u8; PROOF_BYTES]), Error> {
        let (said, proof) = challenge.split_at(CHALLENGE_BYTES - PROOF_BYTES);
        let theirs = introduced(said)?;
        if (theirs.job, theirs.attempt) != (self.identity.job, self.identity.attempt) {
            return Err(Error::Attempt {
                theirs,
                ours: self.identity,
            });
        }
        let parts: [&[u8]; 3] = [b"responder", &self.hello, said];
        if !self.key.verify(&parts, proof) {
            return Err(Error::Proof { theirs });
        }
        let proof = self.key.sign(&[b"initiator", &self.hello, challenge]);
        Ok((theirs, proof))
    }
}

/// The side that was dialled, having read `HELLO_BYTES`: it looks the key up by the claim.
#[derive(Debug)]
pub struct Responder {
    claim: Identity,
    hello: [u8; HELLO_BYTES],
}

impl Responder {
    /// Reads the first message.
    pub fn new(hello: &[u8; HELLO_BYTES]) -> Result<Self, Error> {
        let claim = introduced(hello)?;
        Ok(Self {
            claim,
            hello: *hello,
        })
    }

    /// Who the peer says it is: good for finding its key, for nothing else yet.
    pub fn claim(&self) -> Identity {
        self.claim
    }

    /// Answers: send the bytes, then read `PROOF_BYTES`.
    pub fn challenge(
        self,
        key: Key,
        identity: Identity,
        nonce: [u8; NONCE_BYTES],
    ) -> Result<(Challenged, [u8; CHALLENGE_BYTES]), Error> {
        if (self.claim.job, self.claim.attempt) != (identity.job, identity.attempt) {
            return Err(Error::Attempt {
                theirs: self.claim,
                ours: identity,
            });
        }
        let mut challenge = [0; CHALLENGE_BYTES];
        let (said, proof) = challenge.split_at_mut(CHALLENGE_BYTES - PROOF_BYTES);
        introduce(said, &identity, &nonce);
        proof.copy_from_slice(&key.sign(&[b"responder", &self.hello, said]));
        let challenged = Challenged {
            responder: self,
            key,
            challenge,
        };
        Ok((challenged, challenge))
    }
}

/// The side that was dialled, waiting for the proof.
#[derive(Debug)]
pub struct Challenged {
    responder: Responder,
    key: Key,
    challenge: [u8; CHALLENGE_BYTES],
}

impl Challenged {
    /// Verifies the proof: the peer is who the identity says.
    pub fn finish(self, proof: &[u8; PROOF_BYTES]) -> Result<Identity, Error> {
        let Responder { claim, hello } = self.responder;
        let parts: [&[u8]; 3] = [b"initiator", &hello, &self.challenge];
        if self.key.verify(&parts, proof) {
            Ok(claim)
        } else {
            Err(Error::Proof { theirs: claim })
        }
    }
}

fn introduce(bytes: &mut [u8], identity: &Identity, nonce: &[u8; NONCE_BYTES]) {
    let (prefix, rest) = bytes.split_at_mut(PREFIX_BYTES);
    prefix[..MAGIC.len()].copy_from_slice(&MAGIC);
    prefix[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    rest[..IDENTITY_BYTES].copy_from_slice(&identity.encode());
    rest[IDENTITY_BYTES..].copy_from_slice(nonce);
}

fn introduced(bytes: &[u8]) -> Result<Identity, Error> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(Error::Magic)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(Error::Magic)?;
    let theirs = u16::from_le_bytes(*version);
    if theirs != VERSION {
        return Err(Error::Version { theirs });
    }
    rest.first_chunk().map(Identity::decode).ok_or(Error::Magic)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

    fn sidecar(rank: u32) -> Identity {
        Identity {
            job: JobId::new("uid-1"),
            attempt: 3,
            party: Party::Sidecar { rank },
        }
    }

    fn operator() -> Identity {
        Identity {
            party: Party::Operator,
            ..sidecar(0)
        }
    }

    /// Runs a handshake whose bytes pass through `tamper`, numbered by message.
    fn shake(
        initiator_key: [u8; KEY_BYTES],
        responder_identity: Identity,
        tamper: impl Fn(usize, &mut [u8]),
    ) -> (Result<Identity, Error>, Result<Identity, Error>) {
        let (initiator, mut hello) =
            Initiator::new(Key::new(initiator_key), sidecar(5), [1; NONCE_BYTES]);
        tamper(0, &mut hello);
        let challenged = Responder::new(&hello).and_then(|responder| {
            responder.challenge(Key::new(KEY), responder_identity, [2; NONCE_BYTES])
        });
        let (challenged, mut challenge) = match challenged {
            Ok(challenged) => challenged,
            Err(error) => return (Err(error.clone()), Err(error)),
        };
        tamper(1, &mut challenge);
        let (theirs, mut proof) = match initiator.finish(&challenge) {
            Ok(done) => done,
            Err(error) => return (Err(error.clone()), Err(error)),
        };
        tamper(2, &mut proof);
        (Ok(theirs), challenged.finish(&proof))
    }

    #[test]
    fn both_sides_learn_who_the_other_is() {
        let (responder, initiator) = shake(KEY, operator(), |_, _| {});
        assert_eq!(responder, Ok(operator()));
        assert_eq!(initiator, Ok(sidecar(5)));
    }

    /// Whoever changes these bytes shuts releases out that run beside this one, and has to raise the version.
    #[test]
    fn the_messages_keep_their_bytes() {
        let hex = |bytes: &[u8]| -> String {
            let lines = bytes.chunks(32).map(|line| {
                let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{hex}\n")
            });
            lines.collect()
        };
        let said = std::cell::RefCell::new(String::new());
        let both = shake(KEY, operator(), |_, bytes| {
            said.borrow_mut().push_str(&hex(bytes));
        });
        assert_eq!(both, (Ok(operator()), Ok(sidecar(5))));
        let (hello, challenge, proof) = (
            "\
             46464c59485301004a49acf8a6bd727728495d1e541a84080300000005000000\n\
             0101010101010101010101010101010101010101010101010101010101010101\n\
            ",
            "\
             46464c59485301004a49acf8a6bd727728495d1e541a840803000000ffffffff\n\
             0202020202020202020202020202020202020202020202020202020202020202\n\
             4872c528aa514fe0ca135e19542e27d711f4f93c7af121b2a52cac7600153e32\n\
            ",
            "\
             1f35f4eada19fd168fd92a337714c1d68d06e1952622de48c0a2d8c78a89cdb7\n\
            ",
        );
        assert_eq!(said.into_inner(), [hello, challenge, proof].concat());
    }

    #[test]
    fn a_wrong_key_and_a_stale_attempt_are_refused_by_name() {
        let (refused, _) = shake([8; KEY_BYTES], operator(), |_, _| {});
        assert_eq!(refused, Err(Error::Proof { theirs: operator() }));
        let newer = Identity {
            attempt: 4,
            ..operator()
        };
        let (_, refused) = shake(KEY, newer, |_, _| {});
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("attempt 3") && text.contains("attempt 4"),
            "{text}"
        );
    }

    #[test]
    fn another_version_is_named() {
        let (_, refused) = shake(KEY, operator(), |message, bytes| {
            if message == 0 {
                bytes[MAGIC.len()] = 9;
            }
        });
        assert_eq!(refused, Err(Error::Version { theirs: 9 }));
        let text = refused.unwrap_err().to_string();
        let both = format!("it speaks version 9, this side {VERSION}");
        assert!(VERSION != 9 && text.ends_with(&both), "{text}");
    }

    #[test]
    fn keys_differ_by_job_and_attempt_and_are_not_printed() {
        let key = Key::derive(b"master", "uid-1", 1);
        assert_ne!(
            key.as_bytes(),
            Key::derive(b"master", "uid-1", 2).as_bytes()
        );
        assert_ne!(
            key.as_bytes(),
            Key::derive(b"master", "uid-2", 1).as_bytes()
        );
        assert_eq!(format!("{key:?}"), "Key(..)");
    }

    proptest! {
        #[test]
        fn any_changed_byte_ends_the_handshake(
            message in 0usize..3,
            place in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let (responder, initiator) = shake(KEY, operator(), |number, bytes| {
                if number == message {
                    bytes[place.index(bytes.len())] ^= flip;
                }
            });
            prop_assert!(responder.is_err() || initiator.is_err());
        }
    }
}
