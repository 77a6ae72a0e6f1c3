//! A saved checkpoint: the one name for it that trainer, launcher, sidecar, membership and planner
//! share.

use serde::{Deserialize, Deserializer, Serialize};

/// Most bytes of a digest. One of SHA-512 in hexadecimal fits.
const DIGEST_LIMIT_BYTES: usize = 128;

/// A checkpoint that is durable, named so that any process of the job finds and verifies it. In
/// files its fields have these names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointRef {
    /// The attempt that saved it.
    pub attempt: u32,
    /// The training step that it holds.
    pub step: u64,
    /// Digest of its manifest, in hexadecimal.
    #[serde(deserialize_with = "digest")]
    pub digest: String,
}

/// A digest ends up in the status of a job, so it is bounded and readable.
fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() > DIGEST_LIMIT_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(serde::de::Error::custom(format_args!(
            "a digest is at most {DIGEST_LIMIT_BYTES} printable ASCII bytes without spaces"
        )));
    }
    Ok(text)
}
