//! Snapshots of a small cluster.

use std::time::{Duration, Instant};

use scheduler::{Problem, Ready};
use topology::OnPeerLoss;

use super::*;
use crate::labels::LabelPool;
use crate::mirror::{Mirror, Mirrored};
use crate::quantity;
use crate::testing;
use crate::training_job::pod;
use crate::training_job::translate::Terms;

fn mirror<T: Mirrored>(objects: Vec<(&str, &str, T)>) -> Mirror<T> {
    let mut mirror = Mirror::default();
    mirror.listing(0, Instant::now());
    for (namespace, name, value) in objects {
        mirror.listed((namespace.to_owned(), name.to_owned()), 1, value);
    }
    mirror.listing_done();
    mirror
}

fn mirrors(job: &str) -> Mirrors {
    let job = testing::job(job);
    let fabric = "
        metadata: {name: default}
        spec:
          maxCrossZoneJobs: 2
          classes:
            - {name: a100, gpus: 8, trainer: {cpu: '1', memory: 1Gi}, sidecar: {cpu: '1', memory: 1Gi}}";
    let labels = [
        ("fireflyer.dev/node-class", "a100"),
        ("topology.fireflyer.dev/zone", "b"),
    ];
    let node = |name: &str, labels: Vec<_>| translate::MirroredNode {
        created: Timestamp::default(),
        name: name.into(),
        labels,
        ready: Ready::True,
        taint: None,
        foreign_taint: None,
        quarantine: None,
        boot: "".into(),
        wishes: BTreeSet::new(),
        offers: offers(&[("fireflyer.dev/node", "1"), ("nvidia.com/gpu", "8")]),
    };
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels = LabelPool::default().share(labels.into());
    let (node, unlabelled) = (node("n1", labels), node("n2", Vec::new()));
    Mirrors {
        nodes: mirror(vec![("", "n1", node), ("", "n2", unlabelled)]),
        jobs: mirror(vec![("team", "digits", MirroredJob::new(job.into()))]),
        claims: mirror(vec![
            ("team", "alone", claim(&["ReadWriteOnce"])),
            ("team", "read", claim(&["ReadWriteOnce", "ReadOnlyMany"])),
            ("team", "shared", claim(&["ReadWriteMany"])),
        ]),
        fabrics: mirror(vec![("", "default", serde_yaml::from_str(fabric).unwrap())]),
        ..Mirrors::default()
    }
}

pub(super) fn offers(amounts: &[(&'static str, &str)]) -> Vec<translate::Amount> {
    let amounts = amounts.iter().map(|(resource, text)| translate::Amount {
        resource,
        text: (*text).into(),
        milli: quantity::milli(text).unwrap(),
    });
    amounts.collect()
}

fn claim(modes: &[&str]) -> translate::MirroredClaim {
    let modes = serde_json::json!({"metadata": {}, "spec": {"accessModes": modes}});
    translate::claim(&serde_json::from_value(modes).unwrap())
}

fn job_with(extra: &str) -> String {
    format!(
        "
        metadata: {{name: digits, namespace: team, uid: u-1}}
        spec:
          nodes: 2
          {extra}
          template: {{spec: {{containers: [{{name: trainer, image: i, command: [train]}}]}}}}"
    )
}

fn problem_of(extra: &str) -> Option<Problem> {
    let snapshot = snapshot(&mirrors(&job_with(extra)), &Reports::default(), &[]);
    snapshot.and_then(|snapshot| snapshot.jobs[0].problem.clone())
}

#[test]
fn a_node_without_the_class_label_is_there_but_of_no_class() {
    let suspects = BTreeMap::from([("n1".into(), Timestamp::from_millis(9))]);
    let reports = Reports {
        suspects,
        ..Reports::default()
    };
    let snapshot = snapshot(&mirrors(&job_with("")), &reports, &[]).unwrap();
    let [node, unlabelled] = &snapshot.nodes[..] else {
        panic!("not two nodes: {:?}", snapshot.nodes)
    };
    assert_eq!(
        (node.class.as_str(), node.zone.as_str(), node.leaf.as_str()),
        ("a100", "b", "")
    );
    assert_eq!(node.suspect_until, Some(Timestamp::from_millis(9)));
    assert_eq!(unlabelled.class.as_str(), "");
    assert_eq!(snapshot.jobs[0].class.as_str(), "a100");
}

#[test]
fn a_claim_that_cannot_serve_the_gang_is_named() {
    assert_eq!(problem_of("checkpoint: {claimName: shared}"), None);
    let Problem { reason, message } = problem_of("checkpoint: {claimName: alone}").unwrap();
    assert_eq!(reason, "ClaimUnusable");
    assert!(
        message.contains("alone") && message.contains("ReadWriteMany"),
        "{message}"
    );
    let missing = problem_of("checkpoint: {claimName: none}").unwrap();
    assert!(missing.message.contains("does not exist"), "{missing:?}");
}

#[test]
fn so_is_a_claim_of_the_templates_own_volumes() {
    let problem = |claim: &str| {
        let volume =
            format!("volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}],");
        let job = job_with("").replace("containers:", &format!("{volume} containers:"));
        let snapshot = snapshot(&mirrors(&job), &Reports::default(), &[]).unwrap();
        snapshot.jobs[0].problem.clone()
    };
    assert_eq!(problem("shared"), None);
    assert_eq!(problem("read"), None);
    let alone = problem("alone").unwrap().message;
    assert!(
        alone.contains("alone") && alone.contains("ReadOnlyMany"),
        "{alone}"
    );
    assert!(problem("none").unwrap().message.contains("does not exist"));
}

#[test]
fn an_attempt_keeps_the_terms_that_it_was_started_with() {
    let spec = "interruption: {ackSeconds: 5, saveSeconds: 5}";
    let running = format!(
        "{}\n        status: {{phase: Running, attempt: 1}}",
        job_with(spec)
    );
    let waiting = running.replace("Running", "Restarting");
    let attempt = translate::MirroredAttempt {
        attempt: scheduler::Attempt {
            job: Workload::from(testing::job(&running)).key().unwrap(),
            number: 1,
            nodes: Vec::new(),
            crossing: false,
            created: Timestamp::default(),
            seen: Timestamp::default(),
        },
        resume: None,
        terms: Some(Terms {
            grace: Duration::from_secs(80),
            on_peer_loss: OnPeerLoss::Shrink,
            peer_loss: Duration::from_secs(10),
            min_nodes: None,
        }),
        standing: translate::AttemptProof::Proved(crate::proof::Signer::Current),
        uid: "map-1".into(),
    };
    let of = |job: &str| {
        let mirrors = Mirrors {
            attempts: mirror(vec![("team", "digits-1", attempt.clone())]),
            ..mirrors(job)
        };
        let snapshot = snapshot(&mirrors, &Reports::default(), &[]).unwrap();
        (snapshot.jobs[0].grace.as_secs(), snapshot.jobs[0].shrinks)
    };
    assert_eq!(of(&running), (80, true));
    assert_eq!(of(&waiting), (20, false));
}

#[test]
fn a_job_keeps_the_default_class_that_it_got_first() {
    let class = |name: &str, gpus: u32, default: bool| NodeClass {
        name: name.to_owned(),
        default,
        gpus,
        ..mirrors(&job_with("")).fabric().unwrap().spec.classes[0].clone()
    };
    let resolved = |status: &str, classes: Vec<NodeClass>| {
        let job = format!("{}\n        {status}", job_with(""));
        let job = testing::job(&job);
        let mut fabric = mirrors(&job_with("")).fabric().unwrap().spec.clone();
        fabric.classes = classes;
        let class = class_of(&job, &fabric).map(|class| class.name.clone());
        let procs = class_of(&job, &fabric).map(|class| pod::procs_per_node(&job, class));
        (class.unwrap_or_default(), procs)
    };
    let two = || vec![class("a100", 8, false), class("h100", 4, false)];
    assert_eq!(resolved("", two()), ("a100".to_owned(), Some(8)));
    let mut marked = two();
    marked[1].default = true;
    assert_eq!(resolved("", marked), ("h100".to_owned(), Some(4)));
    // Whatever becomes the default, or what a class says, later.
    let status = "status: {nodeClass: a100, procsPerNode: 8}";
    let later = vec![class("h100", 4, true), class("a100", 2, false)];
    assert_eq!(resolved(status, later), ("a100".to_owned(), Some(8)));
    let gone = vec![class("h100", 4, true)];
    assert_eq!(resolved(status, gone), (String::new(), None));
}

#[test]
fn a_class_that_nobody_defined_is_named() {
    let Problem { reason, message } = problem_of("nodeClass: h100").unwrap();
    assert_eq!(reason, "ClassUnknown");
    assert!(
        message.contains("h100") && message.contains("a100"),
        "{message}"
    );
}

#[test]
fn without_a_fabric_there_is_nothing_to_plan() {
    let mirrors = Mirrors {
        fabrics: mirror(vec![]),
        ..mirrors(&job_with(""))
    };
    assert_eq!(snapshot(&mirrors, &Reports::default(), &[]), None);
}

#[test]
fn each_class_says_how_long_its_pods_may_make_no_progress() {
    let mut fabric = mirrors(&job_with("")).fabric().unwrap().spec.clone();
    let patience = |fabric: &FabricSpec| policy(fabric).start_patience_of;
    let default = Duration::from_secs(7200);
    // As it is where a Fabric of an older release says nothing.
    assert_eq!(patience(&fabric), [("a100".into(), default)].into());
    assert_eq!(policy(&fabric).start_patience, default);
    fabric.classes[0].start_progress_deadline_seconds = 20;
    let short = Duration::from_secs(20);
    assert_eq!(patience(&fabric), [("a100".into(), short)].into());
}

#[test]
fn a_limit_without_progress_and_what_is_known_of_it_reach_the_planner() {
    let progress = GangProgress {
        step: Some(41),
        ..GangProgress::default()
    };
    let seen = |extra: &str| {
        let mut reports = Reports::default();
        let mirrors = mirrors(&job_with(extra));
        let key = snapshot(&mirrors, &reports, &[]).unwrap().jobs[0]
            .key
            .clone();
        reports.progress.insert((key, 1), progress.clone());
        snapshot(&mirrors, &reports, &[]).unwrap()
    };
    let limited = seen("failurePolicy: {stallSeconds: 600}");
    assert_eq!(limited.jobs[0].stall, Some(Duration::from_secs(600)));
    let known: Vec<_> = limited.progress.values().collect();
    assert_eq!(known, [&progress]);
    assert_eq!(seen("").jobs[0].stall, None);
}
