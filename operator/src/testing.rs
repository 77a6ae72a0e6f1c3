//! What the API servers of unit tests say.

use http::Response;
use kube::client::Body;
use serde_json::{Value, json};

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
