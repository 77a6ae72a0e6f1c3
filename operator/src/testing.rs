//! What the API servers of unit tests say.

use http::Response;
use kube::client::Body;
use serde_json::{Value, json};

use crate::training_job::job_view::JobView;

/// A job of these lines of YAML.
pub(crate) fn job(yaml: &str) -> JobView {
    let value: Value = serde_yaml::from_str(yaml).unwrap();
    serde_json::from_value(value).unwrap()
}

/// A refusal as the API server words it: the status code, and the Status object with its reason.
pub(crate) fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": reason, "code": code});
    (code, status)
}

/// The response that carries an answer.
pub(crate) fn response((code, body): (u16, Value)) -> Response<Body> {
    let body = Body::from(body.to_string().into_bytes());
    Response::builder().status(code).body(body).unwrap()
}

/// What a JSON merge patch makes of a value.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name.as_str()], value);
        }
    }
}
