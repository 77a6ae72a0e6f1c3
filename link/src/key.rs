//! A shared key and what is signed with it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::handshake::PROOF_BYTES;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// A secret that the members of a realm share. It is not printed, and compared only inside a proof.
#[derive(Clone)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// A key as it is stored.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The key of `<name>/<number>` under a master secret, whose holders can recompute each key.
    pub fn derive(master: &[u8], name: &str, number: u32) -> Self {
        Self(sign(master, &[format!("{name}/{number}").as_bytes()]))
    }

    /// The bytes, to be stored.
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
