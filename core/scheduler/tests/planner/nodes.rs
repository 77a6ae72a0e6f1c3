//! States of nodes and what follows for gangs: a node that sends heartbeats stays, what is lost is
//! left at once, and who wants a node emptied gets it by the contract.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use scheduler::{
    EndCause, GangLiveness, JobPhase, PodState, Policy, Ready, Sights, Snapshot, States, Wish, plan,
};
use topology::NodeName;

use crate::absence::confirm;
use crate::build::{GRACE, at, job, key, nodes};
use crate::decisions::{decide, placed, queue, reason, recorded, step};
use crate::gangs::{deletions, running};
use crate::properties::apply;

/// The nodes of these numbers send heartbeats to the rendezvous service; of others nothing is
/// known.
fn set_liveness(snapshot: &mut Snapshot, alive: &[usize], given_up: &[usize]) {
    let named = |numbers: &[usize]| -> BTreeSet<NodeName> {
        let names = numbers.iter().map(|number| format!("a-{number:03}"));
        names.map(|name| name.as_str().into()).collect()
    };
    let gang = GangLiveness {
        alive: named(alive),
        quiet: named(given_up),
        given_up: named(given_up),
    };
    snapshot.liveness = [((key("train"), 1), Arc::new(gang))].into();
}

#[test]
fn a_node_that_sends_heartbeats_is_not_lost() {
    for ready in [Ready::False, Ready::Unknown] {
        let mut snapshot = running(4);
        set_liveness(&mut snapshot, &[0, 1, 2, 3], &[]);
        for node in &mut snapshot.nodes[..2] {
            node.ready = ready;
        }
        assert!(decide(&snapshot, at(50)).is_empty(), "{ready:?}");
        // All of them at once, for a day.
        for node in &mut snapshot.nodes {
            node.ready = ready;
        }
        assert!(decide(&snapshot, at(86_400)).is_empty(), "{ready:?}");
        // And the object of one is gone.
        snapshot.nodes.remove(0);
        assert!(decide(&snapshot, at(86_400)).is_empty(), "{ready:?}");
    }
}

#[test]
fn a_node_that_is_not_ready_but_alive_gets_no_new_work() {
    let mut snapshot = running(1);
    snapshot.nodes[1].ready = Ready::False;
    snapshot.jobs.push(job("next", 1));
    let plan = decide(&snapshot, at(50));
    assert!(placed(&plan).is_empty());
    assert_eq!(reason(&plan, "next").0, "WaitingForNodes");
}

#[test]
fn a_silent_node_is_lost_when_its_peers_gave_it_up_or_its_lease_is_out() {
    // The kubelet's Lease still holds for forty seconds.
    let mut snapshot = running(2);
    set_liveness(&mut snapshot, &[0], &[1]);
    let status = recorded(&decide(&snapshot, at(50)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 0));
    let failure = status.failure.unwrap();
    assert_eq!(failure.node, Some("a-001".into()));
    let message = "node a-001 was lost: its peers gave it up";
    assert_eq!(failure.message, message);

    let mut snapshot = running(2);
    set_liveness(&mut snapshot, &[0], &[]);
    assert!(decide(&snapshot, at(50)).is_empty(), "it is only silent");
    snapshot.nodes[1].ready = Ready::Unknown;
    let status = recorded(&decide(&snapshot, at(50)), "train");
    assert_eq!(status.failure.unwrap().node, Some("a-001".into()));
}

#[test]
fn only_a_loss_that_its_lease_or_object_shows_is_remembered_as_the_nodes_own() {
    type Loss = fn(&mut Snapshot);
    let table: [(Loss, EndCause); 4] = [
        (
            |snapshot| set_liveness(snapshot, &[0], &[1]),
            EndCause::Silent,
        ),
        (
            |snapshot| snapshot.nodes[1].ready = Ready::Unknown,
            EndCause::NodeLost,
        ),
        // What peers say takes nothing away from what the Lease shows.
        (
            |snapshot| {
                set_liveness(snapshot, &[0], &[1]);
                snapshot.nodes[1].ready = Ready::Unknown;
            },
            EndCause::NodeLost,
        ),
        (
            |snapshot| {
                snapshot.nodes.remove(1);
                confirm(snapshot, at(50));
            },
            EndCause::NodeLost,
        ),
    ];
    for (loss, cause) in table {
        let mut snapshot = running(2);
        loss(&mut snapshot);
        let status = recorded(&decide(&snapshot, at(50)), "train");
        assert_eq!(status.avoided[&NodeName::from("a-001")].cause, cause);
    }
}

#[test]
fn a_program_that_failed_is_charged_although_its_sidecar_went_with_it() {
    let mut snapshot = running(2);
    set_liveness(&mut snapshot, &[0], &[1]);
    snapshot.pods[1].state = PodState::Failed(scheduler::Exit::default());
    snapshot.pods[1].terminal = true;
    let status = recorded(&decide(&snapshot, at(50)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 1));
}

#[test]
fn a_new_leader_waits_before_missing_heartbeats_count() {
    let mut snapshot = running(2);
    let mut sights = Sights::default();
    let mut look = |snapshot: &mut Snapshot, seconds| {
        sights.fill_in(snapshot, &Policy::default(), at(seconds));
        decide(snapshot, at(seconds))
    };
    snapshot.nodes[1].ready = Ready::Unknown;
    let plan = look(&mut snapshot, 100);
    assert_eq!((plan.is_empty(), plan.wake_at), (true, Some(at(130))));
    assert!(look(&mut snapshot, 129).is_empty());
    let plan = look(&mut snapshot, 130);
    assert_eq!(recorded(&plan, "train").phase, JobPhase::Restarting);
}

#[test]
fn a_quiet_node_whose_object_is_gone_is_lost_at_once() {
    let mut snapshot = running(2);
    snapshot.heartbeats_known_at = at(999);
    snapshot.nodes.remove(1);
    confirm(&mut snapshot, at(50));
    let status = recorded(&decide(&snapshot, at(50)), "train");
    assert_eq!(
        status.failure.unwrap().message,
        "node a-001 was lost: it has no Node object"
    );
}

#[test]
fn a_node_that_never_joined_is_lost_by_its_lease_alone() {
    let mut snapshot = queue("a:3", vec![job("train", 2)]);
    step(&mut snapshot, at(0));
    snapshot.pods[0].state = PodState::Starting;
    set_liveness(&mut snapshot, &[0], &[]);
    snapshot.nodes[1].ready = Ready::Unknown;
    let status = recorded(&decide(&snapshot, at(5)), "train");
    assert_eq!((status.phase, status.replans), (JobPhase::Restarting, 1));
}

#[test]
fn a_node_that_is_being_deleted_is_left_by_the_contract_also_without_a_place_elsewhere() {
    let mut snapshot = running(2);
    set_liveness(&mut snapshot, &[0, 1], &[]);
    snapshot.nodes[0].wishes = [(Wish::Deleted, at(10))].into();
    snapshot.nodes.truncate(2);
    let plan = decide(&snapshot, at(69));
    assert_eq!((plan.is_empty(), plan.wake_at), (true, Some(at(70))));
    let plan = decide(&snapshot, at(70));
    let status = recorded(&plan, "train");
    assert_eq!(status.phase, JobPhase::Interrupting);
    assert_eq!(deletions(&plan), [(0, GRACE), (1, GRACE)]);
    let running = &status.conditions[&scheduler::ConditionKind::Running];
    assert_eq!(
        (running.reason.as_str(), running.message.as_str()),
        (
            "NodeDeleted",
            "Saving and releasing: node a-000 is being deleted"
        )
    );
    // All have saved and left: it waits for another node.
    apply(&mut snapshot, &plan, at(70));
    let ack = crate::build::acknowledge(&mut snapshot);
    step(&mut snapshot, at(71));
    let status = &snapshot.jobs[0].status;
    assert_eq!(status.phase, JobPhase::Restarting);
    assert_eq!(status.last_checkpoint, Some(ack));
    snapshot.pods.clear();
    let plan = decide(&snapshot, at(80));
    assert!(placed(&plan).is_empty());
    snapshot.nodes.push(nodes("a:3").remove(2));
    assert_eq!(placed(&decide(&snapshot, at(81))), ["train: a-001 a-002"]);
}

#[test]
fn pressure_moves_nobody() {
    let mut snapshot = running(2);
    snapshot.nodes[0].taint = Some("node.kubernetes.io/disk-pressure".into());
    assert!(decide(&snapshot, at(86_400)).is_empty());
    snapshot.nodes[2].taint = Some("node.kubernetes.io/disk-pressure".into());
    snapshot.jobs.push(job("next", 1));
    assert!(placed(&decide(&snapshot, at(86_400))).is_empty());
}

#[test]
fn a_rolling_cordon_interrupts_a_gang_once_a_few_minutes_for_all_nodes_that_wish_it_then() {
    let mut snapshot = queue("a:16", vec![job("train", 4)]);
    crate::gangs::train(&mut snapshot);
    let mut sights = Sights::default();
    let policy = Policy::default();
    let mut interrupted = Vec::new();
    // One node after the other, ten seconds apart, is cordoned; each is open again two minutes
    // later.
    for second in (10..1200).step_by(2) {
        let now = at(second);
        for (index, node) in snapshot.nodes.iter_mut().enumerate() {
            let from = 10 + 60 * index as u64;
            let cordoned = (from..from + 240).contains(&second);
            node.wishes.clear();
            node.wishes
                .extend(cordoned.then_some((Wish::Cordoned, now)));
        }
        sights.fill_in(&mut snapshot, &policy, now);
        let next = plan(&snapshot, &policy, now);
        apply(&mut snapshot, &next, now);
        if snapshot.jobs[0].status.phase == JobPhase::Interrupting {
            interrupted.push(second);
            for pod in &mut snapshot.pods {
                pod.state = PodState::Interrupted { ack: None };
                pod.terminal = true;
            }
        }
        for pod in snapshot.pods.iter_mut().filter(|pod| !pod.terminal) {
            pod.state = PodState::Running;
        }
    }
    assert!(!interrupted.is_empty());
    let pauses = interrupted.windows(2).map(|pair| pair[1] - pair[0]);
    let pauses: Vec<u64> = pauses.collect();
    assert!(
        pauses.iter().all(|pause| *pause >= 300),
        "interrupted at {interrupted:?}"
    );
}

#[test]
fn a_waiting_job_says_which_nodes_offer_too_little() {
    let mut snapshot = queue("a:4", vec![job("train", 2)]);
    for node in &mut snapshot.nodes[..3] {
        node.short = Some("7 of 8 nvidia.com/gpu".into());
    }
    let expected = "Waiting: needs 2 healthy nodes of class a100; too little for the class: \
        a-000 offers 7 of 8 nvidia.com/gpu, a-001 offers 7 of 8 nvidia.com/gpu, \
        a-002 offers 7 of 8 nvidia.com/gpu";
    assert_eq!(
        reason(&decide(&snapshot, at(0)), "train"),
        ("WaitingForHealthyNodes".to_owned(), expected.to_owned())
    );
    // With another the text does not change with each.
    snapshot.nodes[3].short = Some("0 of 1 fireflyer.dev/node".into());
    let (_, message) = reason(&decide(&snapshot, at(0)), "train");
    assert_eq!(message, format!("{expected}, and so it is with others"));
}

#[test]
fn a_node_that_offers_too_little_keeps_the_gang_that_is_there() {
    let mut snapshot = running(2);
    snapshot.nodes[0].short = Some("7 of 8 nvidia.com/gpu".into());
    assert!(decide(&snapshot, at(50)).is_empty());
}

#[test]
fn many_nodes_at_once_are_reported_and_end_nothing_that_sends_heartbeats() {
    let mut snapshot = running(6);
    set_liveness(&mut snapshot, &[0, 1, 2, 3, 4, 5], &[]);
    for node in &mut snapshot.nodes {
        node.ready = Ready::Unknown;
    }
    assert!(decide(&snapshot, at(50)).is_empty());
    let states = States::new(&snapshot, &Policy::default(), at(50));
    let storm = &states.storms()[0];
    assert_eq!((storm.not_ready, storm.alive, storm.of), (7, 6, 7));
}

#[test]
fn four_thousand_pods_at_fifty_binds_a_second_are_not_given_up() {
    let size = 4096;
    let mut snapshot = queue(&format!("a:{size}"), vec![job("train", size)]);
    let policy = Policy::default();
    let first = plan(&snapshot, &policy, at(0));
    apply(&mut snapshot, &first, at(0));
    let mut sights = Sights::default();
    let mut bound = 0;
    for second in (4..=84).step_by(4) {
        let now = at(second);
        bound = (bound + 200).min(size as usize);
        for pod in &mut snapshot.pods[..bound] {
            pod.state = PodState::Starting;
        }
        sights.fill_in(&mut snapshot, &policy, now);
        assert!(plan(&snapshot, &policy, now).is_empty(), "after {second} s");
    }
    // The last one is in somebody's way: now it counts.
    let last = &mut snapshot.pods[size as usize - 1];
    last.state = PodState::Unbound;
    sights.fill_in(&mut snapshot, &policy, at(85));
    assert!(plan(&snapshot, &policy, at(85)).is_empty());
    sights.fill_in(&mut snapshot, &policy, at(116));
    let status = recorded(&plan(&snapshot, &policy, at(116)), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
}

#[test]
fn a_gang_waits_for_the_gangs_whose_pods_were_created_before_its_own() {
    let mut snapshot = queue("a:4", vec![job("one", 2), job("two", 2)]);
    let policy = Policy::default();
    step(&mut snapshot, at(0));
    let mut sights = Sights::default();
    let mut look = |snapshot: &mut Snapshot, seconds| {
        sights.fill_in(snapshot, &policy, at(seconds));
        plan(snapshot, &policy, at(seconds))
    };
    let starting = |snapshot: &mut Snapshot, index: usize| {
        snapshot.pods[index].state = PodState::Starting;
    };
    assert!(look(&mut snapshot, 0).is_empty());
    for (index, seconds) in [(0, 25), (1, 50)] {
        starting(&mut snapshot, index);
        assert!(look(&mut snapshot, seconds).is_empty());
    }
    // The stock scheduler has come to its pods, and does not bind them.
    assert!(look(&mut snapshot, 79).is_empty());
    let plan = look(&mut snapshot, 80);
    assert_eq!(recorded(&plan, "two").phase, JobPhase::Restarting);
}

#[test]
fn clocks_that_are_ten_minutes_apart_end_nothing_and_delete_nothing_early() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    for (api, operator) in [(0, 10), (10, 0)] {
        let mut snapshot = queue("a:3", vec![job("train", 2)]);
        snapshot.jobs[0].created = at(0) + minutes(api);
        snapshot.jobs[0].ttl = Some(Duration::from_secs(300));
        let policy = Policy::default();
        let mut sights = Sights::default();
        let mut look = |snapshot: &mut Snapshot, seconds| {
            let now = at(seconds) + minutes(operator);
            sights.fill_in(snapshot, &policy, now);
            let next = plan(snapshot, &policy, now);
            apply(snapshot, &next, now);
            let created = at(seconds) + minutes(api);
            for attempt in &mut snapshot.attempts {
                attempt.created = created;
            }
            next
        };
        look(&mut snapshot, 0);
        assert!(look(&mut snapshot, 20).is_empty(), "unbound for 20 s");
        for pod in &mut snapshot.pods {
            pod.state = PodState::Running;
        }
        look(&mut snapshot, 21);
        assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Running);
        for pod in &mut snapshot.pods {
            pod.state = PodState::Succeeded;
            pod.terminal = true;
        }
        look(&mut snapshot, 30);
        assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Succeeded);
        // Another leads, whose clock is ten minutes ahead of the one that recorded the end.
        let mut next = Sights::default();
        snapshot.jobs[0].seen = at(0);
        let mut look = |snapshot: &mut Snapshot, seconds| {
            let now = at(seconds) + minutes(operator + 10);
            next.fill_in(snapshot, &policy, now);
            plan(snapshot, &policy, now)
        };
        assert!(look(&mut snapshot, 31).is_empty());
        assert!(look(&mut snapshot, 330).is_empty());
        assert!(!look(&mut snapshot, 331).is_empty());
    }
}
