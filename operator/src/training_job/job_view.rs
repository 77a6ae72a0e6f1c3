//! A TrainingJob as the operator keeps it: all that the planner reads, and of the pod template the
//! claims that it mounts and what is wrong with it. The template itself is as large as its author
//! likes, so it is read only when pods are built.

use crds::names;
use crds::template::PodTemplate;
use crds::training_job::{
    Checkpoint, Communication, FailurePolicy, Interruption, TrainingJobStatus, ZonePolicy,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::pod;
use crate::condition::cut;
pub use crate::limits::SPEC_LIMIT_BYTES;
use crate::views::slim;

/// A TrainingJob but for its pod template.
#[derive(Clone, Debug, PartialEq, Deserialize, Resource)]
#[resource(inherit = "crds::TrainingJob")]
#[serde(try_from = "JobText")]
pub struct JobView {
    /// Standard metadata; of finalizers only ours.
    pub metadata: ObjectMeta,
    /// Desired state.
    pub spec: JobSpecView,
    /// Part of the pod template that is kept.
    pub template: TemplateView,
    /// Observed state.
    pub status: Option<TrainingJobStatus>,
}

/// A TrainingJobSpec but for its pod template.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpecView {
    /// Whole nodes.
    pub nodes: u32,
    /// Processes of each node.
    pub procs_per_node: Option<u32>,
    /// Node class.
    pub node_class: Option<String>,
    /// Zones in which the nodes may be.
    #[serde(default)]
    pub zone_policy: ZonePolicy,
    /// Time limits of a lossless interruption.
    #[serde(default)]
    pub interruption: Interruption,
    /// Place of checkpoints.
    pub checkpoint: Option<Checkpoint>,
    /// Communication between the ranks.
    #[serde(default)]
    pub communication: Communication,
    /// Rules for failures.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// True while the job is to release its nodes.
    #[serde(default)]
    pub suspend: bool,
    /// Seconds for which the job is kept after its end.
    pub ttl_seconds_after_finished: Option<u32>,
}

/// Part of a pod template that is kept. A template cannot change, so this holds as long as the job
/// exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateView {
    /// Of a template that was read.
    Read {
        /// Claims that its volumes mount.
        claims: Box<[Box<str>]>,
        /// Reason why it cannot be used, in one sentence that says what to change.
        problem: Option<Box<str>>,
    },
    /// Not read: the spec has so many bytes.
    TooLarge(usize),
}

/// A TrainingJob whose spec is not read yet.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "crds::TrainingJob")]
pub struct JobText {
    /// Standard metadata.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    spec: Box<RawValue>,
    status: Option<TrainingJobStatus>,
}

/// Reason why the template of a job is not read.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The spec has too many bytes.
    #[error("its spec has {0} bytes, and at most {SPEC_LIMIT_BYTES} are read")]
    TooLarge(usize),
    /// Not a pod template, or one whose fields lie too deep inside each other.
    #[error("the pod template cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

impl JobText {
    /// The pod template.
    pub fn template(&self) -> Result<PodTemplate, TemplateError> {
        #[derive(Deserialize)]
        struct Spec {
            template: PodTemplate,
        }
        let text = self.spec.get();
        if text.len() > SPEC_LIMIT_BYTES {
            return Err(TemplateError::TooLarge(text.len()));
        }
        let Spec { template } = serde_json::from_str(text)?;
        Ok(template)
    }
}

impl TemplateView {
    fn of(job: &JobText) -> Self {
        match job.template() {
            Ok(template) => {
                let claims = pod::claims(&template.spec);
                Self::Read {
                    claims: claims.map(Into::into).collect(),
                    problem: pod::template_problem(&template.spec)
                        .map(|problem| cut(&problem).into()),
                }
            }
            Err(TemplateError::TooLarge(bytes)) => Self::TooLarge(bytes),
            Err(error @ TemplateError::Unreadable(_)) => Self::Read {
                claims: Box::default(),
                problem: Some(cut(&error.to_string()).into()),
            },
        }
    }
}

impl TryFrom<JobText> for JobView {
    type Error = serde_json::Error;

    fn try_from(job: JobText) -> Result<Self, Self::Error> {
        let (spec, template) = (
            serde_json::from_str(job.spec.get())?,
            TemplateView::of(&job),
        );
        let JobText {
            mut metadata,
            spec: _,
            status,
        } = job;
        // Whoever writes them reads them first.
        if let Some(finalizers) = &mut metadata.finalizers {
            finalizers.retain(|finalizer| finalizer == names::FINALIZER);
            finalizers.shrink_to_fit();
        }
        metadata.owner_references = None;
        Ok(Self {
            metadata,
            spec,
            template,
            status,
        })
    }
}

#[cfg(test)]
mod tests {
    use crds::training_job::TrainingJobSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::views::Guarded;

    fn spec() -> Value {
        json!({
            "nodes": 2, "procsPerNode": 4, "nodeClass": "a100", "zonePolicy": "Single",
            "interruption": {"ackSeconds": 7, "saveSeconds": 9},
            "checkpoint": {"claimName": "shared", "keepLast": 5},
            "communication": {"backend": "None", "numerics": "Bitwise", "nvlink": "Auto"},
            "failurePolicy": {"maxRestarts": 9, "onPeerLoss": "Shrink", "minNodes": 2},
            "suspend": true, "ttlSecondsAfterFinished": 60,
            "template": {"spec": {
                "containers": [{"name": "trainer", "image": "i", "command": ["train"]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "set"}}],
            }},
        })
    }

    fn text(spec: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"digits","namespace":"team","uid":"u-1"}},"spec":{spec}}}"#
        )
    }

    fn read(spec: &Value) -> JobView {
        serde_json::from_str(&text(&spec.to_string())).unwrap()
    }

    #[test]
    fn all_of_a_spec_is_kept_but_its_template() {
        let TrainingJobSpec {
            nodes,
            procs_per_node,
            node_class,
            template: _,
            zone_policy,
            interruption,
            checkpoint,
            communication,
            failure_policy,
            suspend,
            ttl_seconds_after_finished,
        } = serde_json::from_value(spec()).unwrap();
        let whole = JobSpecView {
            nodes,
            procs_per_node,
            node_class,
            zone_policy,
            interruption,
            checkpoint,
            communication,
            failure_policy,
            suspend,
            ttl_seconds_after_finished,
        };
        let job = read(&spec());
        assert_eq!(job.spec, whole);
        let claims = vec![Box::from("set")];
        let read = TemplateView::Read {
            claims: claims.into(),
            problem: None,
        };
        assert_eq!(job.template, read);
    }

    #[test]
    fn a_template_is_read_up_to_the_limit_and_the_rest_of_its_spec_always() {
        let padded = |bytes: usize| {
            let mut spec = spec();
            spec["template"]["spec"]["pad"] = json!("");
            let pad = bytes - spec.to_string().len();
            spec["template"]["spec"]["pad"] = json!("x".repeat(pad));
            spec
        };
        let read_whole = read(&padded(SPEC_LIMIT_BYTES));
        assert!(matches!(read_whole.template, TemplateView::Read { .. }));
        let large = read(&padded(SPEC_LIMIT_BYTES + 1));
        assert_eq!(large.template, TemplateView::TooLarge(SPEC_LIMIT_BYTES + 1));
        assert_eq!(large.spec, read_whole.spec);
        let kept = format!("{large:?}").len();
        assert!(
            kept < 4096,
            "{kept} bytes are kept of {}",
            SPEC_LIMIT_BYTES + 1
        );
    }

    /// Some thousand lists inside each other: more than a parser that calls itself would take.
    #[test]
    fn a_template_that_nests_too_deep_is_a_problem_of_its_job_alone() {
        let nested = |depth: usize| {
            let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            text(
                &spec()
                    .to_string()
                    .replace(r#""containers""#, &format!(r#""deep":{deep},"containers""#)),
            )
        };
        for (depth, is_read) in [(1000, true), (500_000, false)] {
            let job: Guarded<JobView> = serde_json::from_str(&nested(depth)).unwrap();
            let job = job.0.unwrap();
            assert_eq!(job.spec.nodes, 2);
            match job.template {
                TemplateView::Read { problem, .. } => {
                    assert!(is_read, "{depth}");
                    let problem = problem.unwrap();
                    assert!(problem.contains("recursion limit"), "{problem}");
                }
                TemplateView::TooLarge(_) => assert!(!is_read, "{depth}"),
            }
        }
    }

    #[test]
    fn a_spec_of_a_newer_release_is_not_read_and_its_job_is_known_by_name() {
        let mut spec = spec();
        spec["zonePolicy"] = json!("Anywhere");
        let job: Guarded<JobView> = serde_json::from_str(&text(&spec.to_string())).unwrap();
        assert_eq!(job.meta().uid.as_deref(), Some("u-1"));
        let error = job.0.unwrap_err().to_string();
        assert!(error.contains("Anywhere"), "{error}");
    }
}
