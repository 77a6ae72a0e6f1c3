//! The smallest legal objects; tests vary one thing.

use std::time::Duration;

use scheduler::{
    DryRun, Job, JobKey, JobKind, JobStatus, Node, PodState, Ready, Snapshot, Timestamp, ZonePolicy,
};
use topology::CheckpointRef;

pub(crate) const CLASS: &str = "a100";
pub(crate) const GRACE: Duration = Duration::from_secs(30);
pub(crate) const EXIT: Duration = Duration::from_secs(1);

pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

pub(crate) fn node(name: &str, zone: &str) -> Node {
    Node {
        name: name.into(),
        class: CLASS.into(),
        zone: zone.into(),
        leaf: "leaf".into(),
        ready: Ready::True,
        unready_since: at(0),
        taint: None,
        foreign_taint: None,
        quarantine: None,
        wishes: std::collections::BTreeMap::new(),
        short: None,
        suspect_until: None,
    }
}

/// `a:3 b:2` gives a-0 a-1 a-2 b-0 b-1, each in the zone of its letter.
pub(crate) fn nodes(text: &str) -> Vec<Node> {
    let mut all = Vec::new();
    for word in text.split_whitespace() {
        let (zone, count) = word.split_once(':').unwrap();
        let count: u32 = count.parse().unwrap();
        all.extend((0..count).map(|index| node(&format!("{zone}-{index:03}"), zone)));
    }
    all
}

pub(crate) fn key(name: &str) -> JobKey {
    JobKey {
        kind: JobKind::TrainingJob,
        namespace: "team".into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
    }
}

pub(crate) fn job(name: &str, nodes: u32) -> Job {
    Job {
        key: key(name),
        created: at(0),
        nodes,
        pin: None,
        when_busy: scheduler::WhenBusy::default(),
        class: CLASS.into(),
        procs_per_node: Some(8),
        zone_policy: ZonePolicy::PreferSingle,
        suspend: false,
        grace: GRACE,
        exit: EXIT,
        stall: None,
        max_restarts: 3,
        shrinks: false,
        ttl: None,
        deleting: false,
        finalizer: false,
        observed: true,
        problem: None,
        hold: None,
        dry_run: DryRun::Accepted,
        status: JobStatus::default(),
        seen: at(0),
    }
}

/// All pods have left after an interruption; rank 0's says that step 7 of attempt 1 is saved.
pub(crate) fn acknowledge(snapshot: &mut Snapshot) -> CheckpointRef {
    let ack = CheckpointRef {
        attempt: 1,
        step: 7,
        digest: "d".to_owned(),
    };
    for pod in &mut snapshot.pods {
        pod.state = PodState::Interrupted {
            ack: (pod.rank == 0).then(|| ack.clone()),
        };
        pod.terminal = true;
    }
    ack
}
