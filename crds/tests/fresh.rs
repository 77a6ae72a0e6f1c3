//! The generated files are fresh, and every constraint of the schema has a case that breaks it.

use std::path::Path;

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
