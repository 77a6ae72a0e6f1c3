//! Objects that the API server must refuse or accept, and the proof that every rule, bound and
//! pattern of the schema has one. The cases are files under `crds/cases`; whoever runs them against
//! an API server supplies `kubectl` as a function, so that this crate starts no process.

use crate::definition;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The case files: one for each kind, one for the chart's policies.
const FILES: [(&str, &str); 7] = [
    (
        "crds/cases/trainingjob.yaml",
        include_str!("../cases/trainingjob.yaml"),
    ),
    (
        "crds/cases/fabric.yaml",
        include_str!("../cases/fabric.yaml"),
    ),
    (
        "crds/cases/nodevalidation.yaml",
        include_str!("../cases/nodevalidation.yaml"),
    ),
    (
        "crds/cases/nodevalidationpolicy.yaml",
        include_str!("../cases/nodevalidationpolicy.yaml"),
    ),
    (
        "crds/cases/storagepool.yaml",
        include_str!("../cases/storagepool.yaml"),
    ),
    (
        "crds/cases/storagechain.yaml",
        include_str!("../cases/storagechain.yaml"),
    ),
    (
        "crds/cases/policies.yaml",
        include_str!("../cases/policies.yaml"),
    ),
];

/// Keywords of a schema that refuse no value of the right type, and those that `walk` reads itself.
/// Any other is a bound and needs a case, also one that we have never used before.
const NO_BOUNDS: [&str; 13] = [
    "type",
    "format",
    "title",
    "description",
    "default",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
];

/// What can be wrong with the cases themselves.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A case file is not the YAML we expect.
    #[error("failed to parse {path}")]
    Parse {
        /// The file, from the repository's root.
        path: &'static str,
        /// What the parser said.
        source: serde_yaml::Error,
    },
    /// The schema could not be rendered.
    #[error("failed to render the definitions")]
    Render(#[source] serde_json::Error),
}

/// What the API server has to say about a case's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is stored.
    Accepted,
    /// It is refused, and the answer contains this text.
    Refused(String),
}

/// One object, and what must become of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The constraint that the object breaks, `<kind>.<path>.<keyword>`; or what it shows.
    pub name: String,
    /// The object that exists already, where the case is about a change.
    pub before: Option<Value>,
    /// The object to send.
    pub object: Value,
    /// What must become of it.
    pub verdict: Expected,
    /// Who sends it; an administrator if absent.
    pub user: Option<String>,
    /// The way in which the object before is changed.
    pub change: CaseChange,
}

/// A way to change an object that exists: what an account may do differs by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CaseChange {
    /// The new object takes its place.
    #[default]
    Replace,
    /// It is patched to the new one.
    Patch,
    /// It is deleted.
    Delete,
}

impl CaseChange {
    /// kubectl's words for it, as a trial.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Replace => &["replace", "--dry-run=server"],
            Self::Patch => &[
                "apply",
                "--server-side",
                "--force-conflicts",
                "--dry-run=server",
            ],
            Self::Delete => &["delete", "--dry-run=server"],
        }
    }
}

/// Something that the schema refuses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Constraint {
    /// `<kind>.<path>.<keyword>`; the keyword is `rule` for a CEL rule.
    pub name: String,
    /// The message of a CEL rule. One without a message is a gap.
    pub message: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    base: Value,
    cases: Vec<Entry>,
}

/// A case as written: patches (RFC 7396) on the file's base object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    breaks: Option<String>,
    #[serde(default)]
    accepts: Option<String>,
    #[serde(default)]
    before: Option<Value>,
    #[serde(default)]
    patch: Option<Value>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    change: CaseChange,
}

/// All cases of all kinds.
pub fn cases() -> Result<Vec<Case>, CaseError> {
    let mut all = Vec::new();
    for (path, text) in FILES {
        let parse = |source| CaseError::Parse { path, source };
        let file: File = serde_yaml::from_str(text).map_err(parse)?;
        for entry in file.cases {
            let (name, verdict) = match (entry.breaks, entry.accepts, entry.message) {
                (Some(name), None, Some(message)) => (name, Expected::Refused(message)),
                (None, Some(name), None) => (name, Expected::Accepted),
                (breaks, accepts, _) => {
                    let name = breaks.or(accepts).unwrap_or_default();
                    return Err(parse(serde::de::Error::custom(format!(
                        "case `{name}` needs either breaks and message, or accepts"
                    ))));
                }
            };
            let patched = |patch: &Option<Value>| {
                let mut object = file.base.clone();
                if let Some(patch) = patch {
                    merge(&mut object, patch);
                }
                object
            };
            let before = entry.before.is_some().then(|| patched(&entry.before));
            all.push(Case {
                name,
                before,
                object: patched(&entry.patch),
                verdict,
                user: entry.user,
                change: entry.change,
            });
        }
    }
    Ok(all)
}

/// RFC 7396: objects merge, null removes, everything else replaces; plus what `filled` knows.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = filled(patch, 0);
        return;
    };
    if let Some(value) = fill(patch) {
        *target = value;
        return;
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Long values in few words: `{$letters: 64}` is a text of 64 letters, `{$items: 17, $of: X}` a
/// list of 17 copies of X in which `$n` counts, `{$entries: 65}` a map of 65 short texts.
fn fill(words: &Map<String, Value>) -> Option<Value> {
    let count = |key| words.get(key).and_then(Value::as_u64);
    if let Some(letters) = count("$letters") {
        return Some(Value::from("a".repeat(usize::try_from(letters).ok()?)));
    }
    if let Some(entries) = count("$entries") {
        return Some(
            (0..entries)
                .map(|n| (format!("key-{n}"), Value::from("x")))
                .collect(),
        );
    }
    let (items, of) = (count("$items")?, words.get("$of")?);
    Some((0..items).map(|n| filled(of, n)).collect())
}

fn filled(value: &Value, n: u64) -> Value {
    match value {
        Value::Object(map) => fill(map).unwrap_or_else(|| {
            map.iter()
                .map(|(key, value)| (key.clone(), filled(value, n)))
                .collect()
        }),
        Value::Array(items) => items.iter().map(|item| filled(item, n)).collect(),
        Value::String(text) => Value::from(text.replace("$n", &n.to_string())),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Everything that the schemas refuse, outside the status (only the operator writes that).
pub fn constraints() -> Result<BTreeSet<Constraint>, CaseError> {
    let mut found = BTreeSet::new();
    for crd in definition::definitions().map_err(CaseError::Render)? {
        let kind = crd.spec.names.kind.clone();
        for version in crd.spec.versions {
            let schema = version.schema.and_then(|schema| schema.open_api_v3_schema);
            let schema = serde_json::to_value(schema).map_err(CaseError::Render)?;
            walk(&kind, true, &schema, &mut found);
        }
    }
    Ok(found)
}

fn walk(path: &str, root: bool, schema: &Value, found: &mut BTreeSet<Constraint>) {
    let Value::Object(schema) = schema else {
        return;
    };
    let mut add = |name: String, message: Option<String>| {
        found.insert(Constraint { name, message });
    };
    for keyword in schema
        .keys()
        .filter(|keyword| !NO_BOUNDS.contains(&keyword.as_str()))
    {
        add(format!("{path}.{keyword}"), None);
    }
    if schema
        .get("x-kubernetes-list-type")
        .is_some_and(|kind| kind == "map" || kind == "set")
    {
        add(format!("{path}.unique"), None);
    }
    for rule in schema
        .get("x-kubernetes-validations")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let message = rule.get("message").and_then(Value::as_str);
        add(format!("{path}.rule"), message.map(str::to_owned));
    }
    for field in schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if let Some(field) = field.as_str() {
            add(format!("{path}.{field}.required"), None);
        }
    }
    for (name, property) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if !(root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status")) {
            walk(&format!("{path}.{name}"), false, property, found);
        }
    }
    if let Some(items) = schema.get("items") {
        walk(&format!("{path}[]"), false, items, found);
    }
    if let Some(values) = schema.get("additionalProperties") {
        walk(&format!("{path}{{}}"), false, values, found);
    }
}

/// One sentence for each constraint without a case, and for each case without its constraint.
pub fn gaps() -> Result<Vec<String>, CaseError> {
    Ok(between(&cases()?, &constraints()?))
}

fn between(cases: &[Case], constraints: &BTreeSet<Constraint>) -> Vec<String> {
    let covers = |case: &Case, constraint: &Constraint| {
        case.name == constraint.name
            && match (&case.verdict, &constraint.message) {
                (Expected::Refused(text), Some(message)) => text == message,
                (Expected::Refused(_), None) => true,
                (Expected::Accepted, _) => false,
            }
    };
    let mut gaps = Vec::new();
    for constraint in constraints {
        if constraint.name.ends_with(".rule") && constraint.message.is_none() {
            gaps.push(format!(
                "a {} has no message: say what to do instead",
                constraint.name
            ));
            continue;
        }
        if !cases.iter().any(|case| covers(case, constraint)) {
            let message = constraint
                .message
                .as_deref()
                .map(|m| format!(" ({m})"))
                .unwrap_or_default();
            gaps.push(format!(
                "no case breaks {}{message}: add one under crds/cases",
                constraint.name
            ));
        }
    }
    for case in cases
        .iter()
        .filter(|case| case.verdict != Expected::Accepted)
    {
        // A field that is not there, one of another type, and the chart's policies are no bounds.
        let left_out = [".unknown", ".type"]
            .iter()
            .any(|end| case.name.ends_with(end))
            || case.name.starts_with("policy.");
        if !left_out
            && !constraints
                .iter()
                .any(|constraint| covers(case, constraint))
        {
            gaps.push(format!(
                "the case {} breaks nothing that the schema has: correct or remove it",
                case.name
            ));
        }
    }
    gaps
}

/// What one run of `kubectl` printed, and whether it ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubectlAnswer {
    /// Whether it exited with 0.
    pub accepted: bool,
    /// Standard output and error.
    pub text: String,
}

/// What the API server says when a controller wrote the object between kubectl's look and its
/// change, and how often a change is tried again for that.
const CONFLICT: &str = "(Conflict)";
const CONFLICTS: usize = 5;

/// Runs one case against an API server; `kubectl` gets the arguments and the object for its
/// standard input. The objects that a transition needs are removed again. `Err` says what differed.
pub fn run<E: std::fmt::Display>(
    case: &Case,
    mut kubectl: impl FnMut(&[&str], &str) -> Result<KubectlAnswer, E>,
) -> Result<(), String> {
    let mut ask = |arguments: &[&str], object: &Value| {
        kubectl(arguments, &object.to_string()).map_err(|error| format!("{}: {error}", case.name))
    };
    let user = case.user.as_ref().map(|user| format!("--as={user}"));
    let tried = |words: &[&'static str]| {
        let all = words.iter().copied().chain(["-f", "-"]);
        all.chain(user.as_deref()).collect::<Vec<_>>()
    };
    let answer = match &case.before {
        None => ask(&tried(&["create", "--dry-run=server"]), &case.object)?,
        Some(before) => {
            let created = ask(&["create", "-f", "-"], before)?;
            if !created.accepted {
                return Err(format!(
                    "{}: the object before the change was refused: {}",
                    case.name, created.text
                ));
            }
            let words = tried(case.change.words());
            let mut answer = ask(&words, &case.object);
            for _ in 0..CONFLICTS {
                match &answer {
                    Ok(conflict) if conflict.text.contains(CONFLICT) => {
                        answer = ask(&words, &case.object);
                    }
                    Ok(_) | Err(_) => break,
                }
            }
            ask(&["delete", "--wait=true", "-f", "-"], before)?;
            answer?
        }
    };
    // An object that exists passed validation first: the store is asked last.
    let accepted = answer.accepted || answer.text.contains("AlreadyExists");
    match &case.verdict {
        Expected::Accepted if accepted => Ok(()),
        Expected::Accepted => Err(format!(
            "{}: must be accepted, but: {}",
            case.name, answer.text
        )),
        Expected::Refused(_) if accepted => {
            Err(format!("{}: must be refused, was accepted", case.name))
        }
        Expected::Refused(expected) if answer.text.contains(expected) => Ok(()),
        Expected::Refused(expected) => Err(format!(
            "{}: must say `{expected}`, but says: {}",
            case.name, answer.text
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_constraint_whose_case_is_taken_away_is_named() {
        let constraints = constraints().expect("the schemas render");
        let all = cases().expect("the cases parse");
        for taken in ["TrainingJob.spec.nodes.minimum", "Fabric.rule"] {
            let left: Vec<Case> = all
                .iter()
                .filter(|case| case.name != taken)
                .cloned()
                .collect();
            let gaps = between(&left, &constraints);
            assert!(gaps.len() == 1 && gaps[0].contains(taken), "{gaps:?}");
        }
    }

    #[test]
    fn a_bound_of_any_keyword_is_a_constraint() {
        let bounds = [
            "minimum",
            "maxLength",
            "enum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "uniqueItems",
            "oneOf",
            "anyOf",
            "allOf",
            "not",
        ];
        for bound in bounds {
            let mut found = BTreeSet::new();
            let schema = json!({ "type": "object", "properties": { "x": { bound: [] } } });
            walk("Kind", true, &schema, &mut found);
            let gaps = between(&[], &found);
            let expected = format!("no case breaks Kind.x.{bound}: add one under crds/cases");
            assert_eq!(gaps, [expected]);
        }
    }

    #[test]
    fn a_rule_without_a_message_is_a_gap_whatever_the_cases_break() {
        let mut found = BTreeSet::new();
        let schema = json!({ "x-kubernetes-validations": [{ "rule": "self > 0" }] });
        walk("Kind", true, &schema, &mut found);
        let case = Case {
            name: "Kind.rule".to_owned(),
            user: None,
            change: CaseChange::Replace,
            before: None,
            object: json!({}),
            verdict: Expected::Refused("failed rule: self > 0".to_owned()),
        };
        let gaps = between(&[case], &found);
        assert_eq!(gaps, ["a Kind.rule has no message: say what to do instead"]);
    }

    #[test]
    fn a_rule_whose_message_changed_needs_its_case_changed_too() {
        let mut all = cases().expect("the cases parse");
        for case in all.iter_mut().filter(|case| case.name == "Fabric.rule") {
            case.verdict = Expected::Refused("something else".to_owned());
        }
        let gaps = between(&all, &constraints().expect("the schemas render"));
        assert_eq!(
            gaps.len(),
            2,
            "the rule has no case, the case no rule: {gaps:?}"
        );
    }

    #[test]
    fn patches_merge_remove_replace_and_repeat() {
        let mut object = json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
        merge(
            &mut object,
            &json!({ "a": { "b": null, "e": { "$letters": 3 } }, "d": { "$items": 2, "$of": { "n": "x$n" } } }),
        );
        assert_eq!(
            object,
            json!({ "a": { "c": 2, "e": "aaa" }, "d": [{ "n": "x0" }, { "n": "x1" }] })
        );
    }

    #[test]
    fn a_run_differs_when_the_answer_is_not_the_expected_one() {
        let case = |verdict| Case {
            name: "x".to_owned(),
            before: None,
            object: json!({}),
            verdict,
            user: None,
            change: CaseChange::Replace,
        };
        let answer = |accepted, text: &str| {
            let text = text.to_owned();
            move |_: &[&str], _: &str| {
                Ok::<_, std::fmt::Error>(KubectlAnswer {
                    accepted,
                    text: text.clone(),
                })
            }
        };
        let refused = || case(Expected::Refused("too long".to_owned()));
        assert!(run(&refused(), answer(false, "spec is too long")).is_ok());
        assert!(run(&refused(), answer(false, "connection refused")).is_err());
        assert!(run(&refused(), answer(true, "created")).is_err());
        assert!(run(&case(Expected::Accepted), answer(true, "created")).is_ok());
        assert!(run(&case(Expected::Accepted), answer(false, "AlreadyExists")).is_ok());
        assert!(run(&case(Expected::Accepted), answer(false, "spec is too long")).is_err());
    }

    #[test]
    fn a_change_is_tried_again_when_a_controller_was_faster() {
        let case = Case {
            name: "x".to_owned(),
            before: Some(json!({})),
            object: json!({}),
            verdict: Expected::Refused("cannot change".to_owned()),
            user: None,
            change: CaseChange::Replace,
        };
        let mut conflicts = 2;
        let kubectl = |arguments: &[&str], _: &str| {
            let replaces = arguments[0] == "replace";
            let text = match replaces && conflicts > 0 {
                true => "Error from server (Conflict): it has been modified",
                false => "it cannot change",
            };
            conflicts -= i32::from(replaces);
            Ok::<_, std::fmt::Error>(KubectlAnswer {
                accepted: !replaces,
                text: text.to_owned(),
            })
        };
        assert_eq!(run(&case, kubectl), Ok(()));
    }
}
