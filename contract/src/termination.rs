//! The launcher's last word: the termination message that the kubelet copies into the pod's status.
//! The launcher writes it, the operator reads it; both trust only what parses here.

use serde::{Deserialize, Serialize};
use topology::CheckpointRef;

pub use crate::limits::TERMINATION_LIMIT_BYTES;
use crate::run_dir::StatedCause;

/// Where the launcher writes it.
pub const PATH: &str = "/dev/termination-log";
/// Longest log tail that is worth trying to fit.
const LOG_LIMIT_BYTES: usize = TERMINATION_LIMIT_BYTES;

/// Why a message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No launcher of ours writes so much.
    #[error(
        "failed to parse the termination message: {0} bytes, at most {TERMINATION_LIMIT_BYTES} are written"
    )]
    TooLarge(usize),
    /// Not written by a launcher of ours.
    #[error("failed to parse the termination message")]
    Parse(#[source] serde_json::Error),
}

/// How the trainer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunOutcome {
    /// Every rank exited with 0.
    Succeeded,
    /// It was asked to stop, and stopped.
    Interrupted,
    /// A rank failed.
    Failed,
}

/// What the launcher reports about the end of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// How the trainer ended.
    pub outcome: RunOutcome,
    /// The global rank that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The checkpoint that was saved because of the interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack: Option<CheckpointRef>,
    /// Why it failed, where the program itself is not at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<StatedCause>,
    /// The last lines of the failed rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

impl TerminationMessage {
    /// A message with the outcome alone.
    pub fn new(outcome: RunOutcome) -> Self {
        Self {
            outcome,
            rank: None,
            exit_code: None,
            signal: None,
            ack: None,
            cause: None,
            log: None,
        }
    }

    /// The message as bytes, at most `TERMINATION_LIMIT_BYTES`: the oldest part of the log gives way.
    pub fn encode(&self) -> Vec<u8> {
        let mut message = self.clone();
        if let Some(log) = &mut message.log {
            *log = tail(log, LOG_LIMIT_BYTES).to_owned();
        }
        loop {
            // Numbers, text and a bounded digest always serialise.
            let bytes = serde_json::to_vec(&message).unwrap_or_default();
            if bytes.len() <= TERMINATION_LIMIT_BYTES {
                return bytes;
            }
            // Escapes make a byte of the log up to six bytes long, so shrink and look again.
            let Some(log) = &mut message.log else {
                // Without a log only what no reader accepts can be this long.
                message.ack = None;
                message.cause = None;
                continue;
            };
            let shorter = tail(log, log.len() * 7 / 8).to_owned();
            message.log = (!shorter.is_empty()).then_some(shorter);
        }
    }

    /// Reads a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > TERMINATION_LIMIT_BYTES {
            return Err(Error::TooLarge(bytes.len()));
        }
        serde_json::from_slice(bytes).map_err(Error::Parse)
    }
}

/// The end of a text, at most `limit` bytes and cut between characters.
fn tail(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use topology::progress::TEXT_LIMIT_CHARS;

    use crate::run_dir::CauseKind;

    fn failed(log: &str) -> TerminationMessage {
        TerminationMessage {
            rank: Some(u32::MAX),
            exit_code: Some(i32::MIN),
            signal: Some(i32::MIN),
            ack: Some(CheckpointRef {
                attempt: u32::MAX,
                step: u64::MAX,
                digest: "f".repeat(128),
            }),
            log: Some(log.to_owned()),
            ..TerminationMessage::new(RunOutcome::Failed)
        }
    }

    #[test]
    fn all_but_the_log_fits_into_512_bytes() {
        let bytes = TerminationMessage {
            log: None,
            ..failed("")
        }
        .encode();
        assert!(bytes.len() <= 512, "{}", bytes.len());
    }

    #[test]
    fn the_longest_cause_leaves_room_for_a_log() {
        let message = TerminationMessage {
            cause: Some(StatedCause {
                kind: CauseKind::CheckpointUnavailable,
                message: "\u{10ffff}".repeat(TEXT_LIMIT_CHARS),
            }),
            ..failed(&"x".repeat(4000))
        };
        let read = TerminationMessage::parse(&message.encode()).unwrap();
        assert_eq!((&read.cause, &read.ack), (&message.cause, &message.ack));
        assert!(read.log.is_some_and(|log| log.len() > 300));
    }

    #[test]
    fn a_long_log_keeps_its_end() {
        let message = failed(&format!("{}the end", "é\u{1}".repeat(4000)));
        let read = TerminationMessage::parse(&message.encode()).unwrap();
        let log = read.log.unwrap();
        assert!(log.ends_with("the end") && log.len() > 500, "{}", log.len());
        assert_eq!(read.ack, message.ack);
    }

    proptest! {
        #[test]
        fn any_log_fits_and_reads_back(log in "\\PC{0,3000}|[\\x00-\\x7f]{0,3000}") {
            let bytes = failed(&log).encode();
            prop_assert!(bytes.len() <= TERMINATION_LIMIT_BYTES);
            let read = TerminationMessage::parse(&bytes).unwrap();
            prop_assert!(log.ends_with(&read.log.unwrap_or_default()));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            let _ = TerminationMessage::parse(&bytes);
        }
    }
}
