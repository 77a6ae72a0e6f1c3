//! The table of states: what each combination of facts makes of a node.

use std::time::Duration;

use super::*;
use crate::snapshot::{JobKey, JobKind};

type Change = fn(&mut Node);

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn node() -> Node {
    Node {
        name: "n1".into(),
        class: "a100".into(),
        zone: "a".into(),
        leaf: "l".into(),
        ready: Ready::True,
        unready_since: NOW,
        taint: None,
        foreign_taint: None,
        quarantine: None,
        wishes: BTreeMap::new(),
        short: None,
        suspect_until: None,
    }
}

fn with(change: fn(&mut Node)) -> Node {
    let mut node = node();
    change(&mut node);
    node
}

fn wish(node: &mut Node, wish: Wish) {
    node.wishes.insert(wish, NOW);
}

fn facts(node: Option<&Node>, heartbeats: Heartbeats) -> Facts<'_> {
    Facts {
        node,
        heartbeats,
        given_up: false,
        is_starting: false,
        lease_counts: true,
        now: NOW,
    }
}

/// In short: the state, and why.
fn describe(state: &State) -> String {
    match state {
        State::Usable => "usable".to_owned(),
        State::NoNewWork { why } | State::Lost { why } => format!("{}: {why}", state.as_str()),
        State::Leaving { wishes } => {
            let wishes: Vec<String> = wishes.keys().map(Wish::to_string).collect();
            format!("leaving: {}", wishes.join(", "))
        }
        State::Suspect { .. } => "suspect".to_owned(),
        State::Short { of } => format!("short: {of}"),
    }
}

#[test]
fn a_node_is_lost_only_if_its_sidecar_is_quiet_and_something_else_says_so() {
    let (unknown, failing) = (
        with(|node| node.ready = Ready::Unknown),
        with(|node| node.ready = Ready::False),
    );
    use Heartbeats::{Missed, Recent, Unknown};
    let lease = "lost: its Lease ran out";
    let no_lease = "no-new-work: its Lease ran out";
    let failed = "no-new-work: it is not Ready";
    let given_up = "lost: its peers gave it up";
    let gone = "lost: it has no Node object";
    let table = [
        // Node, heartbeats, given up by peers, the operator has just started, expected.
        (Some(node()), Recent, false, false, "usable"),
        (Some(node()), Missed, false, false, "usable"),
        (Some(node()), Unknown, false, false, "usable"),
        (Some(node()), Recent, true, false, "usable"),
        (Some(node()), Missed, true, false, given_up),
        (Some(node()), Unknown, true, false, given_up),
        (Some(node()), Unknown, true, true, "usable"),
        (Some(failing.clone()), Recent, false, false, failed),
        (Some(failing.clone()), Missed, false, false, failed),
        (Some(failing.clone()), Unknown, false, false, failed),
        (Some(failing.clone()), Recent, true, false, failed),
        (Some(failing), Missed, true, false, given_up),
        (Some(unknown.clone()), Recent, false, false, no_lease),
        (Some(unknown.clone()), Recent, true, false, no_lease),
        (Some(unknown.clone()), Missed, false, false, lease),
        (Some(unknown.clone()), Missed, false, true, lease),
        (Some(unknown.clone()), Unknown, false, false, lease),
        (Some(unknown.clone()), Unknown, false, true, no_lease),
        (Some(unknown), Missed, true, false, lease),
        (
            None,
            Recent,
            false,
            false,
            "no-new-work: it has no Node object",
        ),
        (None, Missed, false, false, gone),
        (None, Unknown, false, true, gone),
    ];
    for (node, heartbeats, given_up, is_starting, expected) in table {
        let state = join(Facts {
            given_up,
            is_starting,
            ..facts(node.as_ref(), heartbeats)
        });
        let ready = node.map(|node| node.ready);
        assert_eq!(
            describe(&state),
            expected,
            "{ready:?} {heartbeats:?}, given up: {given_up}, starting: {is_starting}"
        );
    }
}

#[test]
fn each_reason_against_new_work_has_its_state() {
    let table: [(Change, &str); 10] = [
        (|_| (), "usable"),
        // Several want it emptied.
        (
            |node| {
                wish(node, Wish::Deleted);
                wish(node, Wish::Validated("weekly-1".into()));
                wish(node, Wish::Cordoned);
            },
            "leaving: cordoned, awaited by validation weekly-1, being deleted",
        ),
        (|node| wish(node, Wish::Cordoned), "leaving: cordoned"),
        (|node| wish(node, Wish::Deleted), "leaving: being deleted"),
        (
            |node| wish(node, Wish::Tainted("team/maintenance".into())),
            "leaving: tainted with team/maintenance",
        ),
        (
            |node| node.taint = Some("node.kubernetes.io/disk-pressure".into()),
            "no-new-work: it has the taint node.kubernetes.io/disk-pressure",
        ),
        (
            |node| node.short = Some("7 of 8 nvidia.com/gpu".into()),
            "short: 7 of 8 nvidia.com/gpu",
        ),
        (
            |node| node.suspect_until = Some(NOW + Duration::from_millis(1)),
            "suspect",
        ),
        (|node| node.suspect_until = Some(NOW), "usable"),
        // A runtime that restarts while somebody empties the node does not keep gangs there.
        (
            |node| {
                node.ready = Ready::False;
                wish(node, Wish::Cordoned);
            },
            "leaving: cordoned",
        ),
    ];
    for (change, expected) in table {
        let node = with(change);
        assert_eq!(
            describe(&join(facts(Some(&node), Heartbeats::Recent))),
            expected
        );
    }
}

/// So many nodes, of which some stopped being Ready at these seconds; the first `alive` send
/// heartbeats.
fn cluster(of: usize, seconds: &[u64], alive: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for index in 0..of {
        let mut node = node();
        node.name = format!("n{index:04}").into();
        if let Some(second) = seconds.get(index) {
            node.ready = Ready::Unknown;
            node.unready_since = Timestamp::from_millis(second * 1000);
        }
        snapshot.nodes.push(node);
    }
    let names = snapshot.nodes.iter().map(|node| node.name.clone());
    let (alive, quiet) = (names.clone().take(alive), names.skip(alive));
    let gang = GangLiveness {
        alive: alive.collect(),
        quiet: quiet.collect(),
        given_up: BTreeSet::new(),
    };
    let job = JobKey {
        kind: JobKind::TrainingJob,
        namespace: "team".into(),
        name: "train".into(),
        uid: "u-1".into(),
    };
    snapshot.liveness.insert((job, 1), Arc::new(gang));
    snapshot
}

#[test]
fn many_nodes_at_once_are_a_storm_and_single_ones_are_not() {
    let storms = |of, seconds: &[u64]| {
        let snapshot = cluster(of, seconds, 2);
        let states = States::new(&snapshot, &Policy::default(), NOW);
        let found = states.storms().first().cloned();
        found.map(|storm| (storm.not_ready, storm.alive, storm.of))
    };
    assert_eq!(storms(10, &[0, 0, 0]), None);
    assert_eq!(storms(10, &[0, 0, 10, 40]), Some((4, 2, 10)));
    assert_eq!(storms(10, &[0, 0, 10, 41]), None);
    // One in twenty of a large zone.
    assert_eq!(storms(200, &[5; 10]), None);
    assert_eq!(storms(200, &[5; 11]), Some((11, 2, 200)));
}

#[test]
fn in_a_storm_a_lease_that_ran_out_counts_only_after_five_minutes() {
    let states = |lost: usize, seconds: u64| {
        let snapshot = cluster(10, &vec![100; lost], 0);
        let now = Timestamp::from_millis(seconds * 1000);
        let states = States::new(&snapshot, &Policy::default(), now);
        let wake = states.wake().map(|wake| wake.as_millis() / 1000);
        (describe(states.of(&"n0000".into())), wake)
    };
    let lost = "lost: its Lease ran out".to_owned();
    let kept = "no-new-work: its Lease ran out".to_owned();
    assert_eq!(states(3, 101), (lost.clone(), None));
    assert_eq!(states(4, 101), (kept.clone(), Some(400)));
    assert_eq!(states(4, 399), (kept, Some(400)));
    assert_eq!(states(4, 400), (lost, None));
}
