//! The metadata of an object as the operator reads it: nothing of who set which field, and of
//! labels and annotations only those that it looks at. Of all these an object may have a megabyte,
//! in pieces that cost a hundred bytes each once they are read.

use std::collections::BTreeMap;
use std::fmt;

use crds::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::limits::VALUE_BYTES;

/// Labels and annotations that are read. Whoever may create an object of ours gives it as many of
/// our prefix as it likes.
const READ: [&str; 7] = [
    names::LABEL_JOB,
    names::LABEL_JOB_UID,
    names::LABEL_ATTEMPT,
    names::LABEL_RANK,
    names::LABEL_CROSSING,
    names::LABEL_VALIDATION_POLICY,
    names::ANNOTATION_PROOF,
];

/// Fields that are read of an ObjectMeta.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Slim<L> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
    labels: Option<L>,
    annotations: Option<Ours>,
}

/// Reads metadata with our own labels.
pub(crate) fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    Slim::<Ours>::deserialize(deserializer).map(|slim| slim.with(|Ours(labels)| labels))
}

/// Reads metadata with all labels.
pub(crate) fn with_labels<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ObjectMeta, D::Error> {
    Slim::deserialize(deserializer).map(|slim| slim.with(|labels| labels))
}

impl<L> Slim<L> {
    fn with(self, labels: impl FnOnce(L) -> BTreeMap<String, String>) -> ObjectMeta {
        ObjectMeta {
            name: self.name,
            namespace: self.namespace,
            uid: self.uid,
            resource_version: self.resource_version,
            generation: self.generation,
            creation_timestamp: self.creation_timestamp,
            deletion_timestamp: self.deletion_timestamp,
            deletion_grace_period_seconds: self.deletion_grace_period_seconds,
            finalizers: self.finalizers,
            owner_references: self.owner_references,
            labels: self.labels.map(labels),
            annotations: self.annotations.map(|Ours(annotations)| annotations),
            ..ObjectMeta::default()
        }
    }
}

/// Labels or annotations, those that are ours.
struct Ours(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Ours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Chosen;

        impl<'de> Visitor<'de> for Chosen {
            type Value = Ours;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels or annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ours, A::Error> {
                let mut ours = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if !READ.contains(&&*key) {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let value: String = map.next_value()?;
                    if value.len() <= VALUE_BYTES {
                        ours.insert(key, value);
                    }
                }
                Ok(Ours(ours))
            }
        }

        deserializer.deserialize_map(Chosen)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::views::{ClaimView, NodeView};

    #[test]
    fn only_what_is_ours_is_read_of_labels_and_annotations() {
        let object = json!({"metadata": {
            "name": "n", "generation": 3, "finalizers": ["example.com/hold"],
            "labels": {"fireflyer.dev/job": "digits", "team": "vision"},
            "annotations": {"fireflyer.dev/assignment-proof": "p", "note": "long"},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
        }});
        let claim: ClaimView = serde_json::from_value(object.clone()).unwrap();
        let metadata = claim.metadata;
        let keys = |map: &std::collections::BTreeMap<String, String>| map.keys().cloned().collect();
        let labels: Vec<String> = metadata.labels.as_ref().map(keys).unwrap_or_default();
        assert_eq!(labels, ["fireflyer.dev/job"]);
        let annotations: Vec<String> = metadata.annotations.as_ref().map(keys).unwrap_or_default();
        assert_eq!(annotations, ["fireflyer.dev/assignment-proof"]);
        assert_eq!(metadata.managed_fields, None);
        assert_eq!(metadata.generation, Some(3));
        assert_eq!(
            metadata.finalizers,
            Some(vec!["example.com/hold".to_owned()])
        );
        // Which label of a Node means what is the Fabric's to say.
        let node: NodeView = serde_json::from_value(object).unwrap();
        assert_eq!(node.metadata.labels.map(|labels| labels.len()), Some(2));
    }

    #[test]
    fn a_value_that_is_too_long_counts_as_absent() {
        for (more, is_read) in [(0, true), (1, false)] {
            let proof = "p".repeat(super::VALUE_BYTES + more);
            let object =
                json!({"metadata": {"annotations": {"fireflyer.dev/assignment-proof": proof}}});
            let claim: ClaimView = serde_json::from_value(object).unwrap();
            let annotations = claim.metadata.annotations.unwrap_or_default();
            assert_eq!(!annotations.is_empty(), is_read, "{more} bytes more");
        }
    }
}
