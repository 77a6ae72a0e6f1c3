//! Schemas of Kubernetes' own types that appear in a status, bounded as an API server wants them.
//! Written here so that this crate needs no schema support from the Kubernetes type crate.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A list of `metav1.Condition`, one for each type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "maxLength": 316, "description": "What is claimed, for example Running." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0, "description": "Generation of the spec that was looked at." },
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "When the status changed last." },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024, "description": "One word for why, stable enough for scripts." },
                "message": { "type": "string", "maxLength": 32768, "description": "One sentence for people." },
            },
        },
    })
}

/// A moment, as RFC 3339 text.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// A list of moments, as many as there may be restarts.
pub(crate) fn times(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 1000,
        "items": { "type": "string", "format": "date-time" },
    })
}
