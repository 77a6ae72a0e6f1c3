//! Files that are read at a start and messages that are read after an end, valid or damaged in a few places: nothing
//! panics, and what is accepted means what it says. `cargo xtask fuzz documents --minutes M` goes on for longer.

#![expect(clippy::unwrap_used, reason = "test harness")]

use std::io::Write as _;

use contract::CheckpointRef;
use contract::assignment::Assignment;
use contract::termination::{RunOutcome, TerminationMessage};
use contract::validation::ValidationTask;
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
        if let Ok(read) = Assignment::from_gz(&file, LIMIT) {
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
