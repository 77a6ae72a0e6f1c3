//! Mutual authentication by a shared key, without IO: three messages of fixed size, in each direction a proof over
//! everything said before. Nonces come from the caller, who must never use one twice. The channel that follows is
//! trusted as the pod network is; a protocol fences its frames, and does not sign them one by one.

use std::fmt;

pub use crate::key::{KEY_BYTES, Key};

/// Bytes of an identity's realm. Two sides of different realms refuse each other.
pub const REALM_BYTES: usize = 20;
/// Bytes of an identity: its realm, and the party in it.
pub const IDENTITY_BYTES: usize = REALM_BYTES + 4;

/// Who a side is: [`IDENTITY_BYTES`] bytes that mean something to the protocol, and nothing here. Verified once the
/// handshake ended, a mere claim before.
pub trait PeerIdentity:
    Copy
    + Ord
    + fmt::Debug
    + fmt::Display
    + Send
    + Sync
    + 'static
    + From<[u8; IDENTITY_BYTES]>
    + Into<[u8; IDENTITY_BYTES]>
{
}

impl<I> PeerIdentity for I where
    I: Copy
        + Ord
        + fmt::Debug
        + fmt::Display
        + Send
        + Sync
        + 'static
        + From<[u8; IDENTITY_BYTES]>
        + Into<[u8; IDENTITY_BYTES]>
{
}

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
pub enum Error<I: PeerIdentity> {
    /// Something else dialled.
    #[error("failed to authenticate the peer: it does not speak our protocol")]
    Magic,
    /// The other side is older or newer.
    #[error("failed to authenticate the peer: it speaks version {theirs}, this side {VERSION}")]
    Version {
        /// The version it speaks.
        theirs: u16,
    },
    /// It is of another realm.
    #[error("failed to authenticate the peer: it is {theirs}, this side expects {ours}")]
    Realm {
        /// What it says it is.
        theirs: I,
        /// What this side is.
        ours: I,
    },
    /// It does not hold the key.
    #[error("failed to authenticate {theirs}: it does not hold the same key")]
    Proof {
        /// What it says it is.
        theirs: I,
    },
}

/// The side that dialled.
#[derive(Debug)]
pub struct Initiator<I> {
    key: Key,
    identity: I,
    hello: [u8; HELLO_BYTES],
}

impl<I: PeerIdentity> Initiator<I> {
    /// Starts: send the bytes, then read `CHALLENGE_BYTES`.
    pub fn new(key: Key, identity: I, nonce: [u8; NONCE_BYTES]) -> (Self, [u8; HELLO_BYTES]) {
        let mut hello = [0; HELLO_BYTES];
        introduce(&mut hello, identity, &nonce);
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
    ) -> Result<(I, [u8; PROOF_BYTES]), Error<I>> {
        let (said, proof) = challenge.split_at(CHALLENGE_BYTES - PROOF_BYTES);
        let theirs = introduced(said)?;
        let ours = self.identity;
        if realm(theirs) != realm(ours) {
            return Err(Error::Realm { theirs, ours });
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
pub struct Responder<I> {
    claim: I,
    hello: [u8; HELLO_BYTES],
}

impl<I: PeerIdentity> Responder<I> {
    /// Reads the first message.
    pub fn new(hello: &[u8; HELLO_BYTES]) -> Result<Self, Error<I>> {
        let claim = introduced(hello)?;
        Ok(Self {
            claim,
            hello: *hello,
        })
    }

    /// Who the peer says it is: good for finding its key, for nothing else yet.
    pub fn claim(&self) -> I {
        self.claim
    }

    /// Answers: send the bytes, then read `PROOF_BYTES`.
    pub fn challenge(
        self,
        key: Key,
        identity: I,
        nonce: [u8; NONCE_BYTES],
    ) -> Result<(Challenged<I>, [u8; CHALLENGE_BYTES]), Error<I>> {
        let (theirs, ours) = (self.claim, identity);
        if realm(theirs) != realm(ours) {
            return Err(Error::Realm { theirs, ours });
        }
        let mut challenge = [0; CHALLENGE_BYTES];
        let (said, proof) = challenge.split_at_mut(CHALLENGE_BYTES - PROOF_BYTES);
        introduce(said, identity, &nonce);
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
pub struct Challenged<I> {
    responder: Responder<I>,
    key: Key,
    challenge: [u8; CHALLENGE_BYTES],
}

impl<I: PeerIdentity> Challenged<I> {
    /// Verifies the proof: the peer is who the identity says.
    pub fn finish(self, proof: &[u8; PROOF_BYTES]) -> Result<I, Error<I>> {
        let Responder { claim, hello } = self.responder;
        let parts: [&[u8]; 3] = [b"initiator", &hello, &self.challenge];
        if self.key.verify(&parts, proof) {
            Ok(claim)
        } else {
            Err(Error::Proof { theirs: claim })
        }
    }
}

fn realm<I: PeerIdentity>(identity: I) -> [u8; REALM_BYTES] {
    let [realm @ .., _, _, _, _] = identity.into();
    realm
}

fn introduce<I: PeerIdentity>(bytes: &mut [u8], identity: I, nonce: &[u8; NONCE_BYTES]) {
    let (prefix, rest) = bytes.split_at_mut(PREFIX_BYTES);
    prefix[..MAGIC.len()].copy_from_slice(&MAGIC);
    prefix[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    rest[..IDENTITY_BYTES].copy_from_slice(&identity.into());
    rest[IDENTITY_BYTES..].copy_from_slice(nonce);
}

fn introduced<I: PeerIdentity>(bytes: &[u8]) -> Result<I, Error<I>> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(Error::Magic)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(Error::Magic)?;
    let theirs = u16::from_le_bytes(*version);
    if theirs != VERSION {
        return Err(Error::Version { theirs });
    }
    let said: Option<&[u8; IDENTITY_BYTES]> = rest.first_chunk();
    said.map(|said| I::from(*said)).ok_or(Error::Magic)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::toy::Player;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

    /// As HFReduce's identities are encoded: job and attempt, then the rank or who is none.
    fn player(party: [u8; 4]) -> Player {
        let mut bytes = *b"JI\xac\xf8\xa6\xbdrw(I]\x1eT\x1a\x84\x08\x03\0\0\0____";
        bytes[REALM_BYTES..].copy_from_slice(&party);
        Player::from(bytes)
    }

    fn dials() -> Player {
        player([5, 0, 0, 0])
    }

    fn answers() -> Player {
        player([0xff; 4])
    }

    /// Runs a handshake whose bytes pass through `tamper`, numbered by message.
    fn shake(
        initiator_key: [u8; KEY_BYTES],
        responder_identity: Player,
        tamper: impl Fn(usize, &mut [u8]),
    ) -> (Result<Player, Error<Player>>, Result<Player, Error<Player>>) {
        let (initiator, mut hello) =
            Initiator::new(Key::new(initiator_key), dials(), [1; NONCE_BYTES]);
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
        let (responder, initiator) = shake(KEY, answers(), |_, _| {});
        assert_eq!(responder, Ok(answers()));
        assert_eq!(initiator, Ok(dials()));
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
        let both = shake(KEY, answers(), |_, bytes| {
            said.borrow_mut().push_str(&hex(bytes));
        });
        assert_eq!(both, (Ok(answers()), Ok(dials())));
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
    fn a_wrong_key_and_another_realm_are_refused_by_name() {
        let (refused, _) = shake([8; KEY_BYTES], answers(), |_, _| {});
        assert_eq!(refused, Err(Error::Proof { theirs: answers() }));
        let elsewhere = answers().elsewhere();
        let (_, refused) = shake(KEY, elsewhere, |_, _| {});
        let text = refused.unwrap_err().to_string();
        let both = [dials(), elsewhere].map(|player| player.to_string());
        assert!(both.iter().all(|player| text.contains(player)), "{text}");
    }

    #[test]
    fn another_version_is_named() {
        let (_, refused) = shake(KEY, answers(), |message, bytes| {
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
            let (responder, initiator) = shake(KEY, answers(), |number, bytes| {
                if number == message {
                    bytes[place.index(bytes.len())] ^= flip;
                }
            });
            prop_assert!(responder.is_err() || initiator.is_err());
        }
    }
}
