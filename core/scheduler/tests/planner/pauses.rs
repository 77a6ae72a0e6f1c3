//! Validations beside gangs: whom they ask to leave a node and whom they do not, in which pause
//! of a gang they get its nodes, and what the gang keeps meanwhile.

use std::time::Duration;

use scheduler::{
    ConditionKind, Job, JobPhase, Plan, PodState, Policy, Ready, Sights, Snapshot, WhenBusy, Wish,
};
use sim::Rng;

use crate::build::{acknowledge, at, job, key, nodes};
use crate::decisions::{decide, placed, reason};
use crate::gangs::running;
use crate::properties::apply;
use crate::validation::validation;
use crate::world::{Deed, Event, Program, World};

/// A validation of `a-000` and the others like it.
fn check(node: &str, when_busy: WhenBusy) -> Job {
    Job {
        when_busy,
        ..validation(&format!("check-{node}"), node)
    }
}

/// A leader that decides, second after second, on a snapshot that it alone changes.
pub(crate) struct Leader {
    pub(crate) snapshot: Snapshot,
    sights: Sights,
}

impl Leader {
    fn of(snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            sights: Sights::default(),
        }
    }

    fn look(&mut self, second: u64) -> Plan {
        let mut seen = self.snapshot.clone();
        self.sights
            .fill_in(&mut seen, &Policy::default(), at(second));
        decide(&seen, at(second))
    }

    fn step(&mut self, second: u64) -> Plan {
        let plan = self.look(second);
        apply(&mut self.snapshot, &plan, at(second));
        plan
    }

    /// The seconds of these in which the job `train` is asked to leave.
    fn asked(&mut self, seconds: std::ops::Range<u64>) -> Vec<u64> {
        let asked = |second: &u64| {
            self.step(*second);
            self.phase() == JobPhase::Interrupting
        };
        seconds.filter(asked).collect()
    }

    fn phase(&self) -> JobPhase {
        self.snapshot.jobs[0].status.phase
    }
}

fn cordon(snapshot: &mut Snapshot, node: usize) {
    snapshot.nodes[node].wishes = [(Wish::Cordoned, at(0))].into();
}

/// A full cluster of two nodes, and a validation of the first that interrupts.
fn interrupted() -> Leader {
    let mut snapshot = running(2);
    snapshot.nodes.truncate(2);
    snapshot.jobs.push(check("a-000", WhenBusy::Interrupt));
    Leader::of(snapshot)
}

/// `train` waits for one of its two nodes, which is being validated.
pub(crate) fn delayed() -> Snapshot {
    let mut leader = interrupted();
    leader.asked(50..111);
    acknowledge(&mut leader.snapshot);
    for second in 111..114 {
        leader.step(second);
    }
    let promise = leader.snapshot.jobs[0].status.promise.as_ref();
    let delayed_by = promise.and_then(|promise| promise.delayed_by.as_deref());
    assert_eq!(delayed_by, Some("check-a-000"));
    leader.snapshot
}

#[test]
fn nobody_is_asked_to_leave_a_node_on_which_the_validation_cannot_start() {
    type Change = fn(&mut Snapshot);
    let changes: [Change; 5] = [
        |snapshot| snapshot.nodes[0].ready = Ready::False,
        |snapshot| snapshot.nodes[0].ready = Ready::Unknown,
        |snapshot| {
            snapshot.nodes[0].taint = Some("node.kubernetes.io/disk-pressure".into());
        },
        |snapshot| {
            snapshot.nodes[0].ready = Ready::False;
            cordon(snapshot, 0);
        },
        // Objects of an earlier validation of its name are still there.
        |snapshot| {
            let mut pod = snapshot.pods[0].clone();
            pod.job = snapshot.jobs[1].key.clone();
            pod.job.uid = "an earlier one".into();
            pod.node = "b-000".into();
            snapshot.pods.push(pod);
        },
    ];
    for change in changes {
        let mut leader = interrupted();
        let well = leader.snapshot.clone();
        // Its sidecar sends heartbeats all the time.
        let gang = scheduler::GangLiveness {
            alive: ["a-000".into(), "a-001".into()].into(),
            ..scheduler::GangLiveness::default()
        };
        leader.snapshot.liveness = [((key("train"), 1), gang.into())].into();
        change(&mut leader.snapshot);
        assert_eq!(leader.asked(50..400), [0; 0]);
        assert_eq!(leader.phase(), JobPhase::Running);
        // Once it can start, it waits as long as any other.
        leader.snapshot.nodes.clone_from(&well.nodes);
        leader.snapshot.pods.clone_from(&well.pods);
        assert_eq!(leader.asked(400..461), [460]);
    }
}

#[test]
fn a_gang_on_a_cordoned_node_of_a_full_cluster_is_asked_once_for_the_validation() {
    let mut leader = interrupted();
    leader.snapshot.jobs.truncate(1);
    cordon(&mut leader.snapshot, 0);
    assert_eq!(leader.asked(50..200), [0; 0], "there is no place elsewhere");
    leader
        .snapshot
        .jobs
        .push(check("a-000", WhenBusy::Interrupt));
    assert_eq!(leader.asked(200..261), [260]);
    let said = &leader.snapshot.jobs[0].status.conditions[&ConditionKind::Running];
    assert_eq!(
        (said.reason.as_str(), said.message.as_str()),
        (
            "NodeValidation",
            "Saving and releasing: node a-000 is awaited by validation check-a-000"
        )
    );
    acknowledge(&mut leader.snapshot);
    leader.step(261);
    assert_eq!(placed(&leader.step(262)), ["check-a-000: a-000"]);
    assert_eq!(leader.asked(263..2000), [0; 0]);
}

#[test]
fn a_node_that_is_unready_once_its_gang_was_asked_is_validated_before_the_gang_is_back() {
    let mut leader = interrupted();
    assert_eq!(leader.asked(50..111), [110]);
    leader.snapshot.nodes[0].ready = Ready::False;
    let ack = acknowledge(&mut leader.snapshot);
    leader.step(111);
    assert_eq!(leader.snapshot.jobs[0].status.last_checkpoint, Some(ack));
    // Neither can have it, and others do not get the rest.
    let mut older = job("older", 1);
    older.status.phase = JobPhase::Restarting;
    older.status.attempt = 1;
    leader.snapshot.jobs.push(older);
    for second in 112..150 {
        assert_eq!(placed(&leader.step(second)), [""; 0], "at {second}");
    }
    leader.snapshot.nodes[0].ready = Ready::True;
    assert_eq!(placed(&leader.step(150)), ["check-a-000: a-000"]);
    // It was asked for that, and is not asked again.
    assert_eq!(leader.asked(151..170), [0; 0]);
    let over = |pod: &mut scheduler::Pod| {
        if &*pod.job.name == "check-a-000" {
            pod.state = PodState::Succeeded;
            pod.terminal = true;
        }
    };
    leader.snapshot.pods.iter_mut().for_each(over);
    leader.step(400);
    assert_eq!(placed(&leader.step(401)), ["train: a-000 a-001"]);
}

/// `train` has all four nodes. A job that is before it in the queue waits for some.
fn full(program: Program, waits_for: u32) -> World {
    let mut world = World::new(&mut Rng::new(1), nodes("a:4"));
    let mut train = job("train", 4);
    train.created = at(5);
    world.submit(train, program);
    world.run_until("it trains", |world| trains(world, 1));
    let mut older = job("older", waits_for);
    older.status.phase = JobPhase::Restarting;
    older.status.attempt = 1;
    world.submit(older, Program::trains(1000));
    world
}

fn trains(world: &World, attempt: u32) -> bool {
    let status = &world.jobs[&key("train")].job.status;
    (status.phase, status.attempt) == (JobPhase::Running, attempt)
}

fn phase(world: &World, job: &Job) -> JobPhase {
    world.jobs[&job.key].job.status.phase
}

#[test]
fn a_gang_that_was_interrupted_for_a_validation_has_its_place_however_long_that_takes() {
    // A leader that comes later than the promise lasts by itself finds it delayed. Once nothing
    // delays it any more, it has to come before that.
    for (minutes, leaders, vacancy) in [(3, 0, 0), (10, 3, 200), (120, 20, 20)] {
        let mut world = full(Program::trains(900), 3);
        world.operator.crash.after = (1..=leaders).map(|one| world.writes + 3 * one).collect();
        world.operator.crash.vacancy = Duration::from_secs(vacancy);
        let run = check("a-000", WhenBusy::Interrupt);
        world.submit(run.clone(), Program::trains(60 * minutes));
        world.run_until("it runs", |world| phase(world, &run) == JobPhase::Running);
        world.run_until("it ended", |world| phase(world, &run).is_terminal());
        let ended = world.now();
        world.run_until("the gang trains again", |world| trains(world, 2));
        let older = world.jobs[&key("older")].job.status.attempt;
        assert_eq!(older, 1, "{}", world.describe());
        let limit = ended + Duration::from_secs(10);
        assert!(leaders > 0 || world.now() <= limit, "{}", world.describe());
    }
}

#[test]
fn what_stands_for_a_validation_ends_a_minute_after_it() {
    type End = fn(&mut World, &Job);
    let ends: [End; 3] = [
        |world, run| world.after(0, Deed::Delete(run.key.clone())),
        |world, _| {
            world
                .queue
                .after(Duration::ZERO, Event::Die("a-000".into()));
        },
        |world, _| world.after(0, Deed::Delete(key("train"))),
    ];
    for (index, end) in ends.into_iter().enumerate() {
        let mut world = full(Program::trains(900), 2);
        let run = check("a-000", WhenBusy::Interrupt);
        world.submit(run.clone(), Program::trains(7200));
        world.run_until("it runs", |world| phase(world, &run) == JobPhase::Running);
        // The gang cannot come back, because a node of it is short of something now.
        let machine = world.machines.get_mut("a-003").unwrap();
        machine.node.short = Some("7 of 8 nvidia.com/gpu".into());
        let later = world.now() + Duration::from_secs(600);
        world.queue.after(Duration::from_secs(600), Event::Collect);
        world.run_until("ten minutes pass", |world| world.now() >= later);
        let attempt = |world: &World| world.jobs[&key("older")].job.status.attempt;
        assert_eq!(attempt(&world), 1);
        end(&mut world, &run);
        world.run_until("others get what was promised", |world| attempt(world) == 2);
        let waited = world.now().as_millis() - later.as_millis();
        // A lost node is known to be lost after its Lease.
        assert!(waited <= 110_000, "end {index}: {waited} ms");
    }
}

#[test]
fn a_rank_that_fails_beside_a_weekly_policy_is_back_after_the_back_off() {
    let mut program = Program::trains(900);
    program.faults.push_back((60_000, 2));
    let mut world = full(program, 3);
    let runs = ["a-000", "a-001", "a-002", "a-003"].map(|node| check(node, WhenBusy::Next));
    for run in &runs {
        world.submit(run.clone(), Program::trains(180));
    }
    world.run_until("it fails", |world| !trains(world, 1));
    let failed = world.now();
    world.run_until("it trains again", |world| trains(world, 2));
    let restart = world.now().as_millis() - failed.as_millis();
    assert!(restart <= 10_000, "{restart} ms");
    let waits = |run: &Job| phase(&world, run) == JobPhase::Queued;
    assert!(runs.iter().all(waits));
    // When it ends, they have its nodes, and not the job that has waited for three.
    world.run_until("it ended", |world| {
        phase(world, &job("train", 4)) == JobPhase::Succeeded
    });
    world.run_until("they run", |world| {
        let all = |wanted| runs.iter().all(|run| phase(world, run) == wanted);
        all(JobPhase::Running)
    });
}

/// The kubelet of the first of four nodes refused a pod of `train`; validations of the first two
/// wait, and so does a small job.
pub(crate) fn refused(nodes: usize) -> Leader {
    let mut snapshot = running(4);
    snapshot.nodes.truncate(nodes);
    snapshot.jobs.push(check("a-000", WhenBusy::Next));
    snapshot.jobs.push(check("a-001", WhenBusy::Next));
    let mut small = job("small", 1);
    small.created = at(9);
    snapshot.jobs.push(small);
    snapshot.pods[0].state = PodState::Refused("UnexpectedAdmissionError".to_owned());
    for pod in &mut snapshot.pods {
        pod.terminal = true;
    }
    let mut leader = Leader::of(snapshot);
    if nodes == 5 {
        // The spare one is free in a moment.
        leader.snapshot.nodes[4].short = Some("0 of 1 fireflyer.dev/node".into());
    }
    leader.step(50);
    assert_eq!(leader.phase(), JobPhase::Restarting);
    leader.snapshot.pods.clear();
    leader
}

#[test]
fn a_node_that_ended_an_attempt_is_validated_once_the_gang_can_start_without_it() {
    let mut leader = refused(5);
    leader.snapshot.jobs[0].status.retry_at = Some(at(55));
    assert_eq!(placed(&leader.step(51)), [""; 0], "it may need that node");
    let plan = leader.look(51);
    assert!(plan.is_empty(), "{plan:?}");
    leader.snapshot.nodes[4].short = None;
    assert_eq!(placed(&leader.step(52)), ["check-a-000: a-000"]);
    assert_eq!(placed(&leader.step(55)), ["train: a-001 a-002 a-003 a-004"]);
}

#[test]
fn a_node_that_ended_an_attempt_and_is_needed_is_validated_at_the_next_pause() {
    let mut leader = refused(4);
    assert_eq!(placed(&leader.step(51)), ["train: a-000 a-001 a-002 a-003"]);
    assert_eq!(reason(&leader.look(52), "check-a-000").0, "NodeInUse");
    // One that is only suspect is needed in a moment, too.
    let mut leader = refused(4);
    leader.snapshot.nodes[0].suspect_until = Some(at(100));
    for second in 51..100 {
        assert_eq!(placed(&leader.step(second)), [""; 0], "at {second}");
    }
    let gang = "train: a-000 a-001 a-002 a-003";
    assert_eq!(placed(&leader.step(100)), [gang]);
}

#[test]
fn a_gang_in_back_off_is_not_asked_to_leave_the_nodes_that_it_restarts_on() {
    let mut leader = refused(4);
    for run in &mut leader.snapshot.jobs[1..3] {
        run.when_busy = WhenBusy::Interrupt;
    }
    assert_eq!(placed(&leader.step(51)), ["train: a-000 a-001 a-002 a-003"]);
}
