//! The attempt's key and what is signed with it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::handshake::PROOF_BYTES;

/// Bytes of the attempt's key.
pub const KEY_BYTES: usize = 32;

/// The secret of an attempt. It is not printed, and compared only inside a proof.
#[derive(Clone)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// A key as it lies in the attempt's Secret.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The key of an attempt: the operator's master secret over `<job uid>/<attempt>`, so that every
    /// leader can recompute every key and none has to read the users' Secrets.
    pub fn derive(master: &[u8], job_uid: &str, attempt: u32) -> Self {
        Self(sign(master, &[format!("{job_uid}/{attempt}").as_bytes()]))
    }

    /// The bytes, to be stored in the attempt's Secret.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// A proof that its holder has said `parts`.
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        sign(&self.0, parts)
    }

    /// Whether that is such a proof; takes the same time whatever is wrong with it.
    pub fn verify(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        mac(&self.0, parts).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in parts {
        // Each part with its length, so that no two lists of parts sign the same bytes.
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    Some(mac)
}

fn sign(key: &[u8], parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    // HMAC takes a key of any length, so there is always a signature.
    mac(key, parts).map_or([0; PROOF_BYTES], |mac| mac.finalize().into_bytes().into())
}
