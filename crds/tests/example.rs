//! The job that people copy is short, is a job of ours, and names the image of this version. The
//! validation and the policy that they copy have only fields of ours.

use crds::{NodeValidation, NodeValidationPolicy, TrainingJob};
use serde::Deserialize;
use serde_json::Value;

const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits.yaml");
const VALIDATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/validation.yaml");
const POLICY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/validation-policy.yaml"
);

fn text(path: &str) -> String {
    std::fs::read_to_string(path).expect("the example is there")
}

/// The example's object of a kind, as written.
fn read(path: &str, kind: &str) -> Value {
    serde_yaml::Deserializer::from_str(&text(path))
        .map(|document| Value::deserialize(document).expect("the example is YAML"))
        .find(|object| object["kind"] == kind)
        .expect("the example has an object of the kind")
}

/// Whether nothing of `part` is missing in `whole`.
fn holds(whole: &Value, part: &Value) -> bool {
    match part {
        Value::Object(fields) => fields
            .iter()
            .all(|(name, part)| whole.get(name).is_some_and(|whole| holds(whole, part))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            whole == part
        }
    }
}

#[test]
fn the_example_has_at_most_25_lines() {
    let lines = text(JOB).lines().count();
    assert!(lines <= 25, "{lines}");
}

#[test]
fn the_example_has_no_field_that_we_do_not_know() {
    let read = read(JOB, "TrainingJob");
    let job: TrainingJob = serde_json::from_value(read.clone()).expect("the example is a job");
    let written = serde_json::to_value(&job).expect("the job renders");
    assert!(holds(&written, &read), "{written:#}");
}

#[test]
fn the_example_names_the_image_of_this_version() {
    let expected = concat!("localhost/fireflyer/trainer:", env!("CARGO_PKG_VERSION"));
    let containers = &read(JOB, "TrainingJob")["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], expected);
}

#[test]
fn the_validation_has_no_field_that_we_do_not_know() {
    let read = read(VALIDATION, "NodeValidation");
    let validation: NodeValidation =
        serde_json::from_value(read.clone()).expect("the example is a validation");
    let written = serde_json::to_value(&validation).expect("the validation renders");
    assert!(holds(&written, &read), "{written:#}");
}

#[test]
fn the_policy_has_no_field_that_we_do_not_know() {
    let read = read(POLICY, "NodeValidationPolicy");
    let policy: NodeValidationPolicy =
        serde_json::from_value(read.clone()).expect("the example is a policy");
    let written = serde_json::to_value(&policy).expect("the policy renders");
    assert!(holds(&written, &read), "{written:#}");
}
