//! The job that people copy is short, is a job of ours, and names the image of this version.

use crds::TrainingJob;
use serde::Deserialize;
use serde_json::Value;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits.yaml");

fn text() -> String {
    std::fs::read_to_string(PATH).expect("the example is there")
}

/// The job as written.
fn read() -> Value {
    serde_yaml::Deserializer::from_str(&text())
        .map(|document| Value::deserialize(document).expect("the example is YAML"))
        .find(|object| object["kind"] == "TrainingJob")
        .expect("the example has a job")
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
    let lines = text().lines().count();
    assert!(lines <= 25, "{lines}");
}

#[test]
fn the_example_has_no_field_that_we_do_not_know() {
    let read = read();
    let job: TrainingJob = serde_json::from_value(read.clone()).expect("the example is a job");
    let written = serde_json::to_value(&job).expect("the job renders");
    assert!(holds(&written, &read), "{written:#}");
}

#[test]
fn the_example_names_the_image_of_this_version() {
    let expected = concat!("localhost/fireflyer/trainer:", env!("CARGO_PKG_VERSION"));
    let containers = &read()["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], expected);
}
