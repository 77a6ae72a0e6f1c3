//! The CustomResourceDefinitions as the API server gets them, and the text of the files that are
//! generated from them. The derive gives the raw schema; what is odd in it is smoothed here.

use crate::{Fabric, NodeValidation, NodeValidationPolicy, StorageChain, StoragePool, TrainingJob};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// First line of every generated file.
const HEADER: &str = "# Generated from crds/src by `cargo xtask gen`. Do not edit.\n";

/// A generated file: its path from the repository's root, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Path from the repository's root, with slashes.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// All our CustomResourceDefinitions.
pub fn definitions() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    rendered()?
        .into_iter()
        .map(serde_json::from_value)
        .collect()
}

/// Every file that is generated from the types: plain YAML for people and tests, and the same
/// inside the chart, where an uninstall keeps it (and with it every job).
pub fn generated() -> Result<Vec<Generated>, serde_yaml::Error> {
    let mut files = Vec::new();
    for mut crd in rendered().map_err(<serde_yaml::Error as serde::ser::Error>::custom)? {
        let name = crd["spec"]["names"]["plural"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        files.push(Generated {
            path: format!("crds/yaml/{name}.yaml"),
            text: format!("{HEADER}{}", serde_yaml::to_string(&crd)?),
        });
        crd["metadata"]["annotations"] = json!({ "helm.sh/resource-policy": "keep" });
        files.push(Generated {
            path: format!("helm/fireflyer/templates/crds/{name}.yaml"),
            text: format!(
                "{HEADER}{{{{- if .Values.crds.install }}}}\n{}{{{{- end }}}}\n",
                serde_yaml::to_string(&crd)?
            ),
        });
    }
    Ok(files)
}

fn rendered() -> Result<Vec<Value>, serde_json::Error> {
    [
        TrainingJob::crd(),
        Fabric::crd(),
        NodeValidation::crd(),
        NodeValidationPolicy::crd(),
        StoragePool::crd(),
        StorageChain::crd(),
    ]
    .into_iter()
    .map(|crd| {
        let mut crd = serde_json::to_value(crd)?;
        smooth(&mut crd);
        Ok(crd)
    })
    .collect()
}

/// Rust's unsigned formats are unknown to the API server (it warns); `nullable` would let a null
/// slip past `has()` in a rule, where an optional field can be left out instead; and bounds of
/// whole numbers are written as such.
fn smooth(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("nullable");
            // A doc comment's line ends mean nothing; `kubectl explain` wraps by itself.
            if let Some(Value::String(text)) = map.get_mut("description") {
                let paragraphs = text
                    .split("\n\n")
                    .map(|paragraph| paragraph.replace('\n', " "));
                *text = paragraphs.collect::<Vec<_>>().join("\n\n");
            }
            let format = map.get("format").and_then(Value::as_str);
            if format.is_some_and(|format| format.starts_with("uint")) {
                map.insert("format".to_owned(), Value::from("int64"));
            }
            map.values_mut().for_each(smooth);
        }
        Value::Array(items) => items.iter_mut().for_each(smooth),
        Value::Number(number) => {
            let whole = number
                .as_f64()
                .filter(|n| number.is_f64() && n.fract() == 0.0);
            if let Some(whole) = whole {
                *value = Value::from(whole as i64);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
