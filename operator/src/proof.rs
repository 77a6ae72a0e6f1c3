//! The operator's master keys, and what they prove: that the operator itself wrote the ConfigMap of
//! an attempt. There are two keys while one replaces the other. Leaves reading them to `bootstrap`.

use std::fmt::Write as _;

use link::handshake::{KEY_BYTES, Key, PROOF_BYTES};

/// What a proof is about, so that it is no proof of anything else.
const PURPOSE: &[u8] = b"fireflyer assignment of an attempt";
/// Bytes of a key's id: enough to separate two keys, and no help to guess one.
const ID_BYTES: usize = 4;

/// Which master key was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signer {
    /// The one that is used for all that is written now.
    Current,
    /// The one before: what it proved stays proved.
    Previous,
}

/// The master keys.
#[derive(Clone, Debug)]
pub struct Masters {
    current: Master,
    previous: Option<Master>,
}

#[derive(Clone, Debug)]
struct Master {
    key: Key,
    id: String,
}

impl Master {
    fn new(bytes: [u8; KEY_BYTES]) -> Self {
        let key = Key::new(bytes);
        let id = hex(&key.sign(&[b"fireflyer key id"])[..ID_BYTES]);
        Self { key, id }
    }
}

impl Masters {
    /// The key in use, and the one before it as long as attempts rest on it.
    pub fn new(current: [u8; KEY_BYTES], previous: Option<[u8; KEY_BYTES]>) -> Self {
        Self {
            current: Master::new(current),
            previous: previous.map(Master::new),
        }
    }

    /// The proof that an attempt has this file: the key's id and a MAC.
    pub fn prove(&self, job_uid: &str, attempt: u32, file: &[u8]) -> String {
        let Master { key, id } = &self.current;
        let mac = key.sign(&parts(job_uid, &attempt.to_le_bytes(), file));
        format!("{id}:{}", hex(&mac))
    }

    /// Whose proof it is that an attempt has this file; none if it is nobody's.
    pub fn signer(&self, job_uid: &str, attempt: u32, file: &[u8], proof: &str) -> Option<Signer> {
        let (id, mac) = proof.split_once(':')?;
        let mac = unhex(mac)?;
        let number = attempt.to_le_bytes();
        let parts = parts(job_uid, &number, file);
        let mut signers = self.signers();
        signers.find(|signer| {
            let master = self.master(*signer);
            master.id == id && master.key.verify(&parts, &mac)
        })
    }

    /// All keys that there are, the one in use first.
    pub fn signers(&self) -> impl Iterator<Item = Signer> {
        let previous = self.previous.as_ref().map(|_| Signer::Previous);
        [Some(Signer::Current), previous].into_iter().flatten()
    }

    /// The key by which the sidecars of an attempt authenticate.
    pub fn attempt_key(&self, signer: Signer, job_uid: &str, attempt: u32) -> Key {
        Key::derive(self.master(signer).key.as_bytes(), job_uid, attempt)
    }

    fn master(&self, signer: Signer) -> &Master {
        match (signer, &self.previous) {
            (Signer::Previous, Some(previous)) => previous,
            (Signer::Current | Signer::Previous, _) => &self.current,
        }
    }
}

fn parts<'a>(job_uid: &'a str, attempt: &'a [u8], file: &'a [u8]) -> [&'a [u8]; 4] {
    [PURPOSE, job_uid.as_bytes(), attempt, file]
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Option<[u8; PROOF_BYTES]> {
    let mut bytes = [0; PROOF_BYTES];
    if text.len() != 2 * PROOF_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; KEY_BYTES] = [7; KEY_BYTES];
    const NEW: [u8; KEY_BYTES] = [8; KEY_BYTES];

    #[test]
    fn a_proof_is_of_one_job_one_number_and_one_file() {
        let masters = Masters::new(OLD, None);
        let proof = masters.prove("u-1", 3, b"nodes");
        let signer = |uid, number, file: &[u8]| masters.signer(uid, number, file, &proof);
        assert_eq!(signer("u-1", 3, b"nodes"), Some(Signer::Current));
        assert_eq!(signer("u-2", 3, b"nodes"), None);
        assert_eq!(signer("u-1", 4, b"nodes"), None);
        assert_eq!(signer("u-1", 3, b"other nodes"), None);
    }

    #[test]
    fn what_the_previous_key_proved_stays_proved_and_a_lost_key_proves_nothing() {
        let before = Masters::new(OLD, None);
        let proof = before.prove("u-1", 3, b"nodes");
        let signer = |masters: &Masters| masters.signer("u-1", 3, b"nodes", &proof);
        let rotated = Masters::new(NEW, Some(OLD));
        assert_eq!(signer(&rotated), Some(Signer::Previous));
        assert_eq!(signer(&Masters::new(NEW, None)), None);
        // Sidecars that run keep the key that they got.
        let key = |masters: &Masters, signer| *masters.attempt_key(signer, "u-1", 3).as_bytes();
        assert_eq!(
            key(&rotated, Signer::Previous),
            key(&before, Signer::Current)
        );
        assert_ne!(
            key(&rotated, Signer::Current),
            key(&before, Signer::Current)
        );
    }

    #[test]
    fn what_is_no_proof_proves_nothing() {
        let masters = Masters::new(OLD, None);
        let proof = masters.prove("u-1", 3, b"nodes");
        let (id, mac) = proof.split_once(':').unwrap();
        let wrong = [
            String::new(),
            id.to_owned(),
            mac.to_owned(),
            format!("{id}:"),
            format!("{id}:{}", &mac[2..]),
            format!("00000000:{mac}"),
            format!("{id}:{}", "é".repeat(PROOF_BYTES)),
        ];
        for wrong in wrong {
            assert_eq!(masters.signer("u-1", 3, b"nodes", &wrong), None, "{wrong}");
        }
    }
}
