//! Makes the planner's snapshot from the mirrors and from what the gangs reported. Pure but for the
//! lock that the caller holds: one moment, plain values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::fabric::{FabricSpec, NodeClass};
use crds::names;
use crds::training_job::{TrainingJob, ZonePolicy};
use scheduler::{
    CheckpointReport, DryRun, GangLiveness, Job, JobKey, Pod, Policy, Problem, Snapshot, Stuck,
    Timestamp,
};
use topology::{NodeName, OnPeerLoss};

use crate::cluster::Mirrors;
use crate::quantity;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::Terms;
use crate::training_job::{assignments, pod, status, translate};

/// What the rendezvous service knows beyond the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Newest durable checkpoint, for each attempt that reported one.
    pub checkpoints: BTreeMap<(JobKey, u32), CheckpointReport>,
    /// Nodes that peers gave up, and until when that counts.
    pub suspects: BTreeMap<NodeName, Timestamp>,
    /// Gangs that were to go on without lost nodes and cannot.
    pub stuck: BTreeMap<(JobKey, u32), Stuck>,
    /// Which nodes are alive, for each attempt whose sidecars have dialled this leader.
    pub gangs: BTreeMap<(JobKey, u32), Arc<GangLiveness>>,
}

/// The snapshot; none before there is a Fabric, because nothing has a class then. What is being
/// written, and what dry runs have shown, is for the caller to add. Of jobs that are over it contains those that left something
/// running, and those whose time is over.
pub fn snapshot(mirrors: &Mirrors, reports: &Reports, expired: &[JobKey]) -> Option<Snapshot> {
    let fabric = &mirrors.fabric()?.spec;
    let mut jobs: Vec<Job> = mirrors
        .jobs
        .values()
        .filter_map(|mirrored| job(mirrored.whole()?, fabric, mirrors))
        .collect();
    let mut pods: Vec<Pod> = mirrors
        .pods
        .values()
        .map(|mirrored| mirrored.pod.clone())
        .collect();
    let left: BTreeSet<&JobKey> = pods.iter().map(|pod| &pod.job).chain(expired).collect();
    let over =
        left.into_iter()
            .filter_map(|key| match mirrors.jobs.get(&key.namespace, &key.name)? {
                MirroredJob::Over(over) if over.key == *key => Some(over.as_job()),
                MirroredJob::Over(_) | MirroredJob::Whole(_) | MirroredJob::Unreadable(_) => None,
            });
    let over: Vec<Job> = over.collect();
    jobs.extend(over);
    let unreadable = mirrors.jobs.values().filter_map(MirroredJob::unreadable);
    let unreadable: Vec<JobKey> = unreadable.cloned().collect();
    let mut mirrored = Vec::new();
    for key in jobs.iter().map(|job| &job.key).chain(&unreadable) {
        let name = translate::name_of(key);
        let resting = mirrors.pods.resting_with(&name);
        pods.extend(resting.map(|mirrored| mirrored.pod.clone()));
        mirrored.extend(mirrors.attempts.resting_with(&name));
    }
    let (attempts, doubtful) = assignments::known(mirrors, fabric, &mirrored);
    Some(Snapshot {
        nodes: mirrors
            .nodes
            .values()
            .map(|mirrored| node(mirrored, fabric, reports))
            .collect(),
        jobs,
        attempts,
        doubtful,
        pods,
        absent: BTreeSet::new(),
        pods_as_of: None,
        is_stale: false,
        unreadable,
        liveness: reports.gangs.clone(),
        heartbeats_known_at: Timestamp::default(),
        reports: reports.checkpoints.values().cloned().collect(),
        stuck: reports.stuck.values().cloned().collect(),
        under_way: Vec::new(),
    })
}

/// The jobs that have outlived their end for as long as they wanted, and when the next one will have.
/// Looks at all that are over, so it is for once in a while.
pub fn expired(
    mirrors: &Mirrors,
    policy: &Policy,
    now: Timestamp,
) -> (Vec<JobKey>, Option<Timestamp>) {
    let mut expired = Vec::new();
    let mut next: Option<Timestamp> = None;
    for mirrored in mirrors.jobs.resting() {
        let MirroredJob::Over(over) = mirrored else {
            continue;
        };
        // Whoever recorded the end may have had another clock: ours must agree that time has passed.
        let Some(ttl) = over.ttl else { continue };
        let slack = ttl.min(policy.clock_slack);
        let end = (over.finished_at + ttl).max(over.seen() + slack);
        if end <= now {
            expired.push(over.key.clone());
        } else {
            next = Some(next.map_or(end, |next| next.min(end)));
        }
    }
    (expired, next)
}

/// The planner's figures, with what the Fabric sets.
pub fn policy(fabric: &FabricSpec) -> Policy {
    Policy {
        max_cross_zone_jobs: fabric.max_cross_zone_jobs,
        ..Policy::default()
    }
}

/// The class that a job runs on: the one that it names or was given when it was first looked at, else the Fabric's
/// default.
pub fn class_of<'a>(job: &TrainingJob, fabric: &'a FabricSpec) -> Option<&'a NodeClass> {
    match class_name(job) {
        Some(name) => fabric.classes.iter().find(|class| class.name == *name),
        None => fabric.default_class(),
    }
}

/// The class that is certain for a job, whatever becomes of the Fabric.
fn class_name(job: &TrainingJob) -> Option<&String> {
    let given = || job.status.as_ref()?.node_class.as_ref();
    job.spec.node_class.as_ref().or_else(given)
}

/// Who a job is.
pub fn key(job: &TrainingJob) -> Option<JobKey> {
    Some(JobKey {
        namespace: job.metadata.namespace.as_deref()?.into(),
        name: job.metadata.name.as_deref()?.into(),
        uid: job.metadata.uid.as_deref()?.into(),
    })
}

/// A node without a class stays in the snapshot: one that is not there counts as lost, and taking
/// its label away must not end the job that trains on it.
fn node(
    mirrored: &translate::MirroredNode,
    fabric: &FabricSpec,
    reports: &Reports,
) -> scheduler::Node {
    let label = |name: &str| {
        mirrored
            .labels
            .iter()
            .find(|(key, _)| &**key == name)
            .map(|(_, value)| &**value)
    };
    let name = label(&fabric.class_label).unwrap_or_default();
    let class = fabric.classes.iter().find(|class| class.name == name);
    scheduler::Node {
        name: mirrored.name.clone(),
        class: name.into(),
        zone: label(&fabric.zone_label).unwrap_or_default().into(),
        leaf: label(&fabric.leaf_label).unwrap_or_default().into(),
        ready: mirrored.ready,
        unready_since: Timestamp::default(),
        taint: mirrored.taint.clone(),
        wish: mirrored.wish.clone(),
        wish_since: Timestamp::default(),
        short: class.and_then(|class| short(mirrored, class)),
        suspect_until: reports.suspects.get(&mirrored.name).copied(),
    }
}

/// What the node offers less of than its class asks for, if there is something. CPU and memory are the
/// shares of both containers, and a node that says nothing about them is not judged.
fn short(node: &translate::MirroredNode, class: &NodeClass) -> Option<Arc<str>> {
    let offered = |resource: &str| {
        let mut offers = node.offers.iter();
        offers.find(|amount| amount.resource == resource)
    };
    let devices = [
        (names::RESOURCE_NODE, 1),
        (names::RESOURCE_GPU, class.gpus),
        (names::RESOURCE_RDMA, class.rdma),
    ];
    for (resource, asked) in devices {
        let offer = offered(resource);
        if offer.map_or(0, |offer| offer.milli) < u128::from(asked) * 1000 {
            let text = offer.map_or("0", |offer| &*offer.text);
            return Some(format!("{text} of {asked} {resource}").into());
        }
    }
    let (trainer, sidecar) = (&class.trainer, &class.sidecar);
    let shares = [
        ("cpu", &trainer.cpu, &sidecar.cpu),
        ("memory", &trainer.memory, &sidecar.memory),
    ];
    shares.into_iter().find_map(|(resource, one, other)| {
        let offer = offered(resource)?;
        let asked = quantity::milli(one)?.checked_add(quantity::milli(other)?)?;
        let text = &offer.text;
        (offer.milli < asked).then(|| format!("{text} of {one} + {other} {resource}").into())
    })
}

fn job(job: &TrainingJob, fabric: &FabricSpec, mirrors: &Mirrors) -> Option<Job> {
    let spec = &job.spec;
    let named = class_name(job).map(String::as_str);
    let class = class_of(job, fabric);
    let finalizers = job.metadata.finalizers.as_deref().unwrap_or_default();
    let terms = terms(job, mirrors);
    let asked = Duration::from_secs(pod::grace_seconds(job).into());
    let asked_to = translate::on_peer_loss(spec.failure_policy.on_peer_loss);
    Some(Job {
        key: key(job)?,
        created: translate::created(&job.metadata),
        nodes: spec.nodes,
        class: class
            .map(|class| class.name.as_str())
            .or(named)
            .unwrap_or_default()
            .into(),
        procs_per_node: class.map(|class| pod::procs_per_node(job, class)),
        zone_policy: match spec.zone_policy {
            ZonePolicy::Single => scheduler::ZonePolicy::Single,
            ZonePolicy::PreferSingle => scheduler::ZonePolicy::PreferSingle,
        },
        suspend: spec.suspend,
        grace: terms.map_or(asked, |terms| terms.grace),
        max_restarts: spec.failure_policy.max_restarts,
        shrinks: terms.map_or(asked_to, |terms| terms.on_peer_loss) == OnPeerLoss::Shrink,
        ttl: spec
            .ttl_seconds_after_finished
            .map(|ttl| Duration::from_secs(ttl.into())),
        deleting: job.metadata.deletion_timestamp.is_some(),
        finalizer: finalizers
            .iter()
            .any(|finalizer| finalizer == crds::names::FINALIZER),
        observed: job
            .status
            .as_ref()
            .is_none_or(|status| status.observed_generation == job.metadata.generation),
        problem: problem(job, fabric, mirrors),
        dry_run: DryRun::Unknown,
        status: job
            .status
            .as_ref()
            .map(status::from_api)
            .unwrap_or_default(),
        seen: Timestamp::default(),
    })
}

/// What the attempt that has the job's nodes runs with: the job may ask for something else by now.
fn terms(job: &TrainingJob, mirrors: &Mirrors) -> Option<Terms> {
    let (key, status) = (key(job)?, job.status.as_ref()?);
    if !status::phase_from_api(status.phase).holds_nodes() {
        return None;
    }
    let name = crds::names::attempt_name(&key.name, status.attempt);
    let mirrored = mirrors.attempts.get(&key.namespace, &name)?;
    mirrored.terms.filter(|_| mirrored.attempt.job == key)
}

/// Why the job cannot get pods, whatever nodes are free.
fn problem(job: &TrainingJob, fabric: &FabricSpec, mirrors: &Mirrors) -> Option<Problem> {
    let because = |reason| move |message| Problem { reason, message };
    if let (None, Some(name)) = (class_of(job, fabric), class_name(job)) {
        let known: Vec<&str> = fabric
            .classes
            .iter()
            .map(|class| class.name.as_str())
            .collect();
        let known = known.join(", ");
        let message = format!("node class {name} is not in the Fabric, which has {known}");
        return Some(because("ClassUnknown")(message));
    }
    let template = || pod::template_problem(&job.spec.template.spec);
    claim_problem(job, mirrors)
        .map(because("ClaimUnusable"))
        .or_else(|| template().map(because("TemplateUnusable")))
}

/// Every claim that a pod mounts must be there, and be one that all of the gang's pods can mount.
fn claim_problem(job: &TrainingJob, mirrors: &Mirrors) -> Option<String> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let nodes = job.spec.nodes;
    let refused = |name: &str, modes: &str, usable: fn(&translate::MirroredClaim) -> bool| {
        let Some(claim) = mirrors.claims.get(namespace, name) else {
            return Some(format!(
                "claim {name} does not exist in namespace {namespace}"
            ));
        };
        (nodes > 1 && !usable(claim)).then(|| {
            format!("claim {name} is not {modes}, and pods on {nodes} nodes must mount it")
        })
    };
    let checkpoint = job.spec.checkpoint.as_ref().and_then(|checkpoint| {
        refused(&checkpoint.claim_name, "ReadWriteMany", |claim| {
            claim.shared
        })
    });
    checkpoint.or_else(|| {
        pod::claims(&job.spec.template.spec).find_map(|name| {
            refused(name, "ReadWriteMany or ReadOnlyMany", |claim| {
                claim.readable
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::mirror::{Mirror, Mirrored};
    use scheduler::Ready;

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
        let job: TrainingJob = serde_yaml::from_str(job).unwrap();
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
            name: name.into(),
            labels,
            ready: Ready::True,
            taint: None,
            wish: None,
            offers: offers(&[("fireflyer.dev/node", "1"), ("nvidia.com/gpu", "8")]),
        };
        let labels = labels
            .map(|(key, value)| (key.into(), value.into()))
            .to_vec();
        let (node, unlabelled) = (node("n1", labels), node("n2", Vec::new()));
        Mirrors {
            nodes: mirror(vec![("", "n1", node), ("", "n2", unlabelled)]),
            jobs: mirror(vec![("team", "digits", MirroredJob::new(&Arc::new(job)))]),
            claims: mirror(vec![
                ("team", "alone", claim(&["ReadWriteOnce"])),
                ("team", "read", claim(&["ReadWriteOnce", "ReadOnlyMany"])),
                ("team", "shared", claim(&["ReadWriteMany"])),
            ]),
            fabrics: mirror(vec![("", "default", serde_yaml::from_str(fabric).unwrap())]),
            ..Mirrors::default()
        }
    }

    fn offers(amounts: &[(&'static str, &str)]) -> Vec<translate::Amount> {
        let amounts = amounts.iter().map(|(resource, text)| translate::Amount {
            resource,
            text: (*text).into(),
            milli: quantity::milli(text).unwrap(),
        });
        amounts.collect()
    }

    #[test]
    fn a_node_that_offers_less_than_its_class_asks_for_is_short_of_it() {
        let class = |rdma: u32| NodeClass {
            name: "a100".to_owned(),
            default: false,
            gpus: 8,
            rdma,
            trainer: crds::fabric::Share {
                cpu: "48".to_owned(),
                memory: "400Gi".to_owned(),
            },
            sidecar: crds::fabric::Share {
                cpu: "500m".to_owned(),
                memory: "1Gi".to_owned(),
            },
            shared_memory: None,
        };
        let short = |amounts: &[(&'static str, &str)], rdma| {
            let whole = [
                ("fireflyer.dev/node", "1"),
                ("nvidia.com/gpu", "8"),
                ("cpu", "64"),
                ("memory", "430497152Ki"),
            ];
            let is_other = |name: &str| amounts.iter().all(|(other, _)| *other != name);
            let whole = whole.into_iter().filter(|(name, _)| is_other(name));
            let all: Vec<_> = whole.chain(amounts.iter().copied()).collect();
            let node = translate::MirroredNode {
                name: "n1".into(),
                labels: Vec::new(),
                ready: Ready::True,
                taint: None,
                wish: None,
                offers: offers(&all),
            };
            super::short(&node, &class(rdma)).map(|of| of.to_string())
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(short(&[], 0), None);
        assert_eq!(
            short(&[("nvidia.com/gpu", "7")], 0),
            text("7 of 8 nvidia.com/gpu")
        );
        assert_eq!(
            short(&[("fireflyer.dev/node", "0")], 0),
            text("0 of 1 fireflyer.dev/node")
        );
        assert_eq!(short(&[], 2), text("0 of 2 fireflyer.dev/rdma"));
        assert_eq!(
            short(&[("fireflyer.dev/rdma", "0")], 2),
            text("0 of 2 fireflyer.dev/rdma")
        );
        assert_eq!(short(&[("cpu", "48")], 0), text("48 of 48 + 500m cpu"));
        assert_eq!(short(&[("cpu", "48500m")], 0), None);
        assert_eq!(
            short(&[("memory", "400Gi")], 0),
            text("400Gi of 400Gi + 1Gi memory")
        );
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
            let volume = format!(
                "volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}],"
            );
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
            "{}\n            status: {{phase: Running, attempt: 1}}",
            job_with(spec)
        );
        let waiting = running.replace("Running", "Restarting");
        let attempt = translate::MirroredAttempt {
            attempt: scheduler::Attempt {
                job: key(&serde_yaml::from_str(&running).unwrap()).unwrap(),
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
            let job = format!("{}\n            {status}", job_with(""));
            let job: TrainingJob = serde_yaml::from_str(&job).unwrap();
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
}
