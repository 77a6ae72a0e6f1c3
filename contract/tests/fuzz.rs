//! Files that are read at a start, messages that are read after an end, and what trainers leave in the run directory, valid or
//! damaged in a few places: nothing panics, and what is accepted means what it says. `cargo xtask fuzz documents --minutes M`
//! and `files` go on for longer.

#![expect(clippy::unwrap_used, reason = "test harness")]

use std::io::Write as _;
use std::path::Path;

use contract::assignment::Assignment;
use contract::run_dir::{
    self, ACK, CAUSE, PROGRESS, PROGRESS_LIMIT_BYTES, ROSTER, Roster, StatedCause,
};
use contract::termination::{RunOutcome, TerminationMessage};
use contract::validation::ValidationTask;
use contract::{CheckpointRef, Progress};
use flate2::Compression;
use flate2::write::GzEncoder;
use sim::{Rng, damage, explore};

const LIMIT: u64 = 1 << 20;

fn assignment(rng: &mut Rng) -> Vec<u8> {
    let nodes: Vec<serde_json::Value> = (0..1 + rng.below(5))
        .map(|node| serde_json::json!({"name": format!("node-{node}"), "zone": "a", "leaf": "l"}))
        .collect();
    let text = serde_json::json!({
        "version": contract::assignment::VERSION,
        "job": {"namespace": "team", "name": "job", "uid": "u"},
        "attempt": rng.range(1..5),
        "algorithm": contract::assignment::ALGORITHM,
        "procsPerNode": 1 + rng.below(8),
        "nodes": nodes,
        "crossing": false,
        "masterPort": 29500,
        "onPeerLoss": "Shrink",
    });
    serde_json::to_vec(&text).unwrap()
}

fn task(rng: &mut Rng) -> Vec<u8> {
    let text = serde_json::json!({
        "version": contract::validation::VERSION,
        "validation": "node-7", "uid": "u", "node": "node-7", "nodeClass": "a",
        "deadlineSeconds": 1 + rng.below(1000),
        "checks": [
            {"name": "Offer"},
            {"name": "Disk", "screens": [{"device": "read", "value": rng.below(9)}]},
        ],
        "offers": [{"resource": "nvidia.com/gpu", "offered": rng.below(9), "expected": 8}],
    });
    serde_json::to_vec(&text).unwrap()
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn documents() {
    explore(2_000, &[], |rng| {
        let (mut text, other) = (assignment(rng), assignment(rng));
        damage::anyhow(rng, &mut text, &other);
        let mut file = packed(&text);
        if rng.chance(1, 4) {
            damage::anyhow(rng, &mut file, &other);
        }
        let outline = Assignment::outline(&file, LIMIT);
        if let Ok(read) = Assignment::from_gz(&file, LIMIT) {
            let nodes = outline.unwrap().nodes;
            assert!(
                nodes
                    .iter()
                    .map(|node| &node.name)
                    .eq(read.nodes.iter().map(|node| &node.name))
            );
            // What was accepted can be written and is the same then.
            let again = read.to_gz().unwrap();
            assert_eq!(Assignment::from_gz(&again, LIMIT).unwrap(), read);
            assert!(read.world_size() > 0);
        }
        let (mut text, other_task) = (task(rng), task(rng));
        assert!(ValidationTask::from_json(&text).is_ok());
        damage::anyhow(rng, &mut text, &other_task);
        if let Ok(read) = ValidationTask::from_json(&text) {
            let again = ValidationTask::from_json(read.to_json().as_bytes());
            assert_eq!(again.map(|again| again.uid).ok(), Some(read.uid));
        }
        let mut message = TerminationMessage {
            rank: Some(rng.next_u64() as u32),
            ack: Some(CheckpointRef {
                attempt: 1,
                step: damage::number(rng),
                digest: "ab".repeat(32),
            }),
            log: Some("é\n".repeat(rng.below(2000))),
            ..TerminationMessage::new(RunOutcome::Failed)
        }
        .encode();
        assert!(TerminationMessage::parse(&message).is_ok());
        damage::anyhow(rng, &mut message, &other);
        if let Ok(read) = TerminationMessage::parse(&message) {
            assert_eq!(
                TerminationMessage::parse(&read.encode())
                    .map(|read| read.ack)
                    .ok(),
                Some(read.ack)
            );
        }
    });
}

/// A file of the run directory, as its writer puts it there.
fn left(rng: &mut Rng, name: &str) -> Vec<u8> {
    let digest = "ab".repeat(32);
    let (step, attempt) = (damage::number(rng), 1 + rng.below(9));
    let checkpoint = serde_json::json!({"attempt": attempt, "step": step, "digest": digest});
    let text = match name {
        ACK => checkpoint,
        CAUSE => {
            serde_json::json!({"kind": "NoUsableCheckpoint", "message": "é".repeat(rng.below(300))})
        }
        PROGRESS => serde_json::json!({
            "step": step, "loss": 0.25, "checkpoint": checkpoint, "passedOver": "from attempt-1/step-80",
        }),
        _ => serde_json::json!({
            "attempt": attempt, "procsPerNode": 8, "masterPort": 29500, "onPeerLoss": "Shrink",
            "nodes": [{"rank": 0, "name": "node-0", "zone": "a", "address": "10.0.0.1", "port": 9404}],
        }),
    };
    serde_json::to_vec(&text).unwrap()
}

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    explore(1_000, &[], |rng| {
        for name in [ACK, CAUSE, PROGRESS, ROSTER] {
            let (mut bytes, other) = (left(rng, name), left(rng, name));
            if rng.chance(3, 4) {
                damage::anyhow(rng, &mut bytes, &other);
            }
            let is_long = bytes.len() as u64 > PROGRESS_LIMIT_BYTES;
            std::fs::write(dir.join(name), &bytes).unwrap();
            match name {
                ACK => {
                    let read = run_dir::read_ack(dir);
                    assert!(!is_long || read.is_err());
                    same(dir, name, read, run_dir::read_ack);
                }
                CAUSE => {
                    let read = StatedCause::read(dir);
                    assert!(!is_long || read.is_err());
                }
                PROGRESS => {
                    let read = || run_dir::read_progress(dir);
                    assert!(!is_long || read().is_err());
                    // The last digit of a loss may differ.
                    let all_but_loss = |_: &Path| {
                        let known = read()?;
                        Ok(known.map(|known| Progress {
                            loss: None,
                            ..known
                        }))
                    };
                    same(dir, name, all_but_loss(dir), all_but_loss);
                }
                _ => same(dir, name, Roster::read(dir), Roster::read),
            }
        }
    });
}

/// Checks that a value that was accepted can be written and is the same then.
fn same<T: serde::Serialize + PartialEq + std::fmt::Debug>(
    dir: &Path,
    name: &str,
    read: Result<Option<T>, run_dir::Error>,
    again: impl Fn(&Path) -> Result<Option<T>, run_dir::Error>,
) {
    if let Ok(Some(read)) = read {
        run_dir::write(&dir.join(name), &read).unwrap();
        assert_eq!(again(dir).unwrap(), Some(read));
    }
}
