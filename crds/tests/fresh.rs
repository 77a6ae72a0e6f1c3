//! The generated files are fresh, every constraint of the schema has a case that breaks it, and
//! every field is explained.

use std::path::Path;

use serde_json::Value;

#[test]
fn generated_files_match_the_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for file in crds::definition::generated().expect("the definitions render") {
        let text = std::fs::read_to_string(root.join(&file.path)).unwrap_or_default();
        assert!(
            text == file.text,
            "{} is stale: run `cargo xtask gen`",
            file.path
        );
    }
}

#[test]
fn every_constraint_of_the_schema_has_a_case_that_breaks_it() {
    let gaps = crds::cases::gaps().expect("the cases parse");
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
}

#[test]
fn every_field_has_a_description_for_kubectl_explain() {
    let mut silent = Vec::new();
    for crd in crds::definition::definitions().expect("the definitions render") {
        for version in crd.spec.versions {
            let schema = version.schema.and_then(|schema| schema.open_api_v3_schema);
            let mut schema = serde_json::to_value(schema).expect("the schema renders");
            // The API server explains it.
            schema["properties"]
                .as_object_mut()
                .expect("an object")
                .remove("metadata");
            unexplained(&crd.spec.names.kind, &schema, &mut silent);
        }
    }
    assert!(silent.is_empty(), "without a doc comment: {silent:?}");
}

fn unexplained(path: &str, schema: &Value, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if property["description"].as_str().is_none_or(str::is_empty) {
            found.push(path.clone());
        }
        unexplained(&path, property, found);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get(inner) {
            unexplained(path, schema, found);
        }
    }
}

#[test]
fn chart_text_holds_no_template_actions_but_our_own() {
    for file in crds::definition::generated().expect("the definitions render") {
        let actions = file.text.matches("{{").count();
        let ours = if file.path.starts_with("helm/") { 2 } else { 0 };
        assert_eq!(
            actions, ours,
            "a doc comment in {} holds a template action",
            file.path
        );
    }
}

#[test]
fn a_simple_job_survives_the_round_trip_with_fields_that_we_do_not_declare() {
    let text = include_str!("../cases/roundtrip.yaml");
    let job: crds::TrainingJob = serde_yaml::from_str(text).expect("the sample parses");
    let read: serde_json::Value = serde_yaml::from_str(text).expect("the sample is YAML");
    let written = serde_json::to_value(&job).expect("the job renders");
    assert_eq!(written["spec"]["template"], read["spec"]["template"]);
}
