//! The pod template of a TrainingJob: the part that rules look at is declared, every other field
//! of a PodSpec or Container is kept as written. What the operator owns is declared to be refused.
#![expect(
    unreachable_pub,
    reason = "the schema derive copies each struct into a function"
)]

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The pod that runs on each node: a PodTemplateSpec. The operator passes everything on as written,
/// except what it owns (placement, restart policy).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels and annotations for the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// The pod's spec.
    pub spec: PodTemplateBody,
}

/// Labels and annotations that are copied to each pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct TemplateMetadata {
    /// Labels for the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('fireflyer.dev/'))")
        .message("labels under fireflyer.dev/ are set by the operator: use a key of your own"))]
    pub labels: BTreeMap<String, String>,
    /// Annotations for the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: BTreeMap<String, String>,
}

/// A PodSpec. The declared part is what rules look at; all other fields are kept in `rest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = declare_pod_fields)]
#[x_kube(validation = Rule::new("self.containers.exists_one(c, c.name == 'trainer')")
    .message("exactly one container must be called trainer: it runs the training on each node")
    .field_path(".containers"))]
#[x_kube(validation = Rule::new(
        "self.containers.all(c, c.name != 'trainer' || (has(c.command) && size(c.command) > 0))"
    )
    .message("the container trainer needs a command: write the program that the image would start, it runs once for each rank")
    .field_path(".containers"))]
#[x_kube(validation = Rule::new(
        "self.containers.all(c, c.name != 'hfreduce') && (!has(self.initContainers) || self.initContainers.all(c, c.name != 'hfreduce'))"
    )
    .message("the container name hfreduce belongs to the sidecar that the operator adds: rename yours"))]
#[x_kube(validation = Rule::new(
        "!has(self.volumes) || self.volumes.all(v, !v.name.startsWith('fireflyer-'))"
    )
    .message("volume names that start with fireflyer- belong to the operator: rename yours"))]
#[x_kube(validation = Rule::new("!has(self.restartPolicy)")
    .message("restartPolicy belongs to the operator: leave it out, failurePolicy says how often the job is tried again"))]
#[x_kube(validation = Rule::new("!has(self.nodeName)")
    .message("nodeName belongs to the operator: leave it out, nodeClass says which nodes the job may use"))]
#[x_kube(validation = Rule::new("!has(self.nodeSelector)")
    .message("nodeSelector belongs to the operator: leave it out, nodeClass says which nodes the job may use"))]
#[x_kube(validation = Rule::new("!has(self.affinity)")
    .message("affinity belongs to the operator: leave it out, nodeClass and zonePolicy say where the job may run"))]
#[x_kube(validation = Rule::new("!has(self.schedulerName)")
    .message("schedulerName belongs to the operator: leave it out, the operator chooses the nodes"))]
#[x_kube(validation = Rule::new("!has(self.priorityClassName)")
    .message("priorityClassName belongs to the operator: leave it out, every job's pods use fireflyer-training"))]
#[x_kube(validation = Rule::new("!has(self.terminationGracePeriodSeconds)")
    .message("terminationGracePeriodSeconds follows from the job's interruption: leave it out and set interruption.saveSeconds"))]
#[x_kube(validation = Rule::new("!has(self.activeDeadlineSeconds)")
    .message("activeDeadlineSeconds limits a pod and not the job, which would go on in another attempt: leave it out, and suspend or delete the job when its time is over"))]
#[x_kube(validation = Rule::new("!has(self.hostPID) || !self.hostPID")
    .message("hostPID would show the gang's key to every process of the node: leave it out"))]
#[x_kube(validation = Rule::new("!has(self.shareProcessNamespace) || !self.shareProcessNamespace")
    .message("shareProcessNamespace would show the gang's key to the trainer: leave it out"))]
pub struct PodTemplateBody {
    /// Containers of the pod. One is called `trainer`.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub containers: Vec<TemplateContainer>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Map<String, Value>>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Every other field of a PodSpec, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A container of the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = declare_container_fields)]
pub struct TemplateContainer {
    /// Name of the container; `trainer` runs the training.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Program and arguments. Required for `trainer`, because the launcher starts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub command: Option<Vec<String>>,
    /// Every other field of a Container, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Fields of a PodSpec that rules must see but that the operator passes on in `rest`.
fn declare_pod_fields(schema: &mut Schema) {
    let owned = "Owned by the operator: leave it out.";
    let refused = "Must be false: the sidecar's memory holds the gang's key.";
    declare(
        schema,
        &[
            (
                "initContainers",
                named(
                    16,
                    "Containers that end before the trainer starts, or native sidecars of your own.",
                    "Its name in the pod; `hfreduce` belongs to the operator's sidecar.",
                ),
            ),
            (
                "volumes",
                named(
                    64,
                    "Volumes of the pod. The checkpoint's claim is mounted by the operator.",
                    "Its name in the pod; names that start with `fireflyer-` belong to the operator.",
                ),
            ),
            (
                "tolerations",
                objects(
                    64,
                    "Taints that the pods tolerate; the operator adds those of dedicated nodes.",
                ),
            ),
            (
                "hostPID",
                json_schema!({ "type": "boolean", "description": refused }),
            ),
            (
                "shareProcessNamespace",
                json_schema!({ "type": "boolean", "description": refused }),
            ),
            (
                "activeDeadlineSeconds",
                json_schema!({ "type": "integer", "format": "int64", "description": "Refused: it limits an attempt, not the job." }),
            ),
            ("affinity", any_object(owned)),
            ("nodeSelector", any_object(owned)),
            (
                "priorityClassName",
                json_schema!({ "type": "string", "description": owned }),
            ),
            (
                "terminationGracePeriodSeconds",
                json_schema!({ "type": "integer", "format": "int64", "description": owned }),
            ),
        ],
    );
}

/// Fields of a Container that must be present, or that the operator adds to, but that it passes on
/// in `rest`.
fn declare_container_fields(schema: &mut Schema) {
    declare(
        schema,
        &[
            (
                "image",
                json_schema!({
                    "type": "string",
                    "minLength": 1,
                    "description": "Image of the container. Any image works as trainer: the launcher is added to it.",
                }),
            ),
            (
                "env",
                objects(
                    512,
                    "Variables, as in any Container; for `trainer` the operator adds the gang's.",
                ),
            ),
            (
                "volumeMounts",
                objects(
                    64,
                    "Mounts, as in any Container; for `trainer` the operator adds its own.",
                ),
            ),
            (
                "resources",
                json_schema!({
                    "type": "object",
                    "description": "As in any Container; `trainer` gets the node class's share of what is left out, and the node.",
                    "properties": {
                        "limits": any_object("The most that it may use."),
                        "requests": any_object("What it is sure to get."),
                    },
                    "x-kubernetes-preserve-unknown-fields": true,
                }),
            ),
        ],
    );
    if let Some(Value::Array(required)) = schema.ensure_object().get_mut("required") {
        required.push(Value::from("image"));
    }
}

/// A list of objects that rules know by their names.
fn named(most: u32, description: &str, name: &str) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": most,
        "description": description,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": { "name": { "type": "string", "maxLength": 63, "description": name } },
            "x-kubernetes-preserve-unknown-fields": true,
        },
    })
}

/// A list of objects of which only the operator's part matters here.
fn objects(most: u32, description: &str) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": most,
        "description": description,
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// An object whose fields are the API server's own business.
fn any_object(description: &str) -> Schema {
    json_schema!({
        "type": "object",
        "description": description,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn declare(schema: &mut Schema, fields: &[(&str, Schema)]) {
    let object = schema.ensure_object();
    object.insert(
        "x-kubernetes-preserve-unknown-fields".to_owned(),
        Value::Bool(true),
    );
    object.remove("additionalProperties");
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (name, field) in fields {
            properties.insert((*name).to_owned(), field.clone().to_value());
        }
    }
}
