//! Which crates may depend on which. The arrows are those of ARCHITECTURE.md: shells use core,
//! core uses at most the node model, nothing uses a shell.

use super::Findings;
use crate::r#gen::root;
use anyhow::{Context, bail};
use serde_json::Value;
use std::process::Command;

/// What a crate of ours may use of ours.
const EDGES: [(&str, &[&str]); 16] = [
    ("topology", &[]),
    ("scheduler", &["topology"]),
    ("collective", &["topology"]),
    ("sim", &[]),
    ("wire", &[]),
    ("rendezvous-codec", &["collective", "wire"]),
    ("crds", &[]),
    ("daemon", &[]),
    (
        "operator",
        &[
            "scheduler",
            "collective",
            "topology",
            "wire",
            "rendezvous-codec",
            "crds",
            "daemon",
        ],
    ),
    ("launcher", &["wire"]),
    (
        "hfreduce-sidecar",
        &[
            "collective",
            "topology",
            "wire",
            "rendezvous-codec",
            "daemon",
        ],
    ),
    ("device-plugin", &["topology", "crds", "daemon"]),
    ("fireflyer-python", &["wire"]),
    ("cluster", &[]),
    (
        "scenarios",
        &["cluster", "crds", "scheduler", "collective", "wire"],
    ),
    ("xtask", &["cluster"]),
];

/// What tests may use on top.
const TEST_EDGES: [(&str, &[&str]); 5] = [
    ("scheduler", &["sim"]),
    ("collective", &["sim"]),
    ("operator", &["sim"]),
    ("hfreduce-sidecar", &["sim"]),
    ("wire", &["sim"]),
];

/// The pure crates: no clock, no IO, so hardly anything from outside either.
const PURE: [&str; 4] = ["topology", "scheduler", "collective", "sim"];
const PURE_MAY_USE: [&str; 3] = ["half", "serde", "thiserror"];
const PURE_TESTS_MAY_USE: [&str; 1] = ["proptest"];

/// Crates that stay light on purpose, and all that they may use from outside.
const LIGHT: [(&str, &[&str]); 2] = [
    ("cluster", &[]),
    ("xtask", &["anyhow", "serde_json", "signal-hook"]),
];

/// A package of the workspace.
#[derive(Debug)]
pub(super) struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    ours: bool,
    test: bool,
    features: Vec<String>,
}

/// Asks cargo.
pub(super) fn packages() -> anyhow::Result<Vec<Package>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .context("failed to start cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    parse(&output.stdout)
}

fn parse(metadata: &[u8]) -> anyhow::Result<Vec<Package>> {
    let metadata: Value =
        serde_json::from_slice(metadata).context("failed to read cargo's metadata")?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let dependency = |value: &Value| Dependency {
        name: text(&value["name"]),
        ours: value["path"].is_string(),
        test: value["kind"] == "dev",
        features: list(&value["features"]).iter().map(text).collect(),
    };
    let package = |value: &Value| Package {
        name: text(&value["name"]),
        dependencies: list(&value["dependencies"])
            .iter()
            .map(dependency)
            .collect(),
    };
    Ok(list(&metadata["packages"]).iter().map(package).collect())
}

pub(super) fn check(packages: &[Package], findings: &mut Findings) {
    let of = |table: &[(&str, &'static [&'static str])], name: &str| {
        table
            .iter()
            .find(|(package, _)| *package == name)
            .map(|(_, uses)| *uses)
    };
    for Package { name, dependencies } in packages {
        let Some(allowed) = of(&EDGES, name) else {
            findings.errors.push(format!(
                "{name}: a new crate needs its line in xtask/src/tidy/edges.rs"
            ));
            continue;
        };
        let in_tests = of(&TEST_EDGES, name).unwrap_or_default();
        for dependency in dependencies {
            let used = dependency.name.as_str();
            let fine = if dependency.ours {
                allowed.contains(&used) || (dependency.test && in_tests.contains(&used))
            } else {
                from_outside(name, dependency)
            };
            if !fine {
                let where_ = if dependency.test {
                    "in tests"
                } else {
                    "at all"
                };
                findings.errors.push(format!(
                    "{name} may not depend on {used} {where_}: see ARCHITECTURE.md"
                ));
            }
        }
    }
}

fn from_outside(package: &str, dependency: &Dependency) -> bool {
    let used = dependency.name.as_str();
    if PURE.contains(&package) {
        return PURE_MAY_USE.contains(&used)
            || (dependency.test && PURE_TESTS_MAY_USE.contains(&used));
    }
    if let Some((_, allowed)) = LIGHT.iter().find(|(light, _)| *light == package) {
        return allowed.contains(&used);
    }
    // The API types carry no client: whoever reads them pays for no HTTP stack.
    if package == "crds" && used == "kube" {
        return dependency
            .features
            .iter()
            .all(|feature| feature == "derive");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Findings, check, parse};

    fn errors(name: &str, dependencies: &str) -> Vec<String> {
        let metadata =
            format!(r#"{{"packages":[{{"name":"{name}","dependencies":[{dependencies}]}}]}}"#);
        let mut findings = Findings::default();
        check(&parse(metadata.as_bytes()).unwrap(), &mut findings);
        findings.errors
    }

    #[test]
    fn arrows_of_the_design_pass() {
        assert!(errors("scheduler", r#"{"name":"topology","path":"x"}"#).is_empty());
        assert!(errors("scheduler", r#"{"name":"sim","path":"x","kind":"dev"}"#).is_empty());
        assert!(errors("operator", r#"{"name":"kube","features":["client"]}"#).is_empty());
    }

    #[test]
    fn any_other_arrow_is_refused() {
        assert_eq!(
            errors("scheduler", r#"{"name":"crds","path":"x"}"#).len(),
            1
        );
        assert_eq!(errors("scheduler", r#"{"name":"sim","path":"x"}"#).len(), 1);
        assert_eq!(
            errors("wire", r#"{"name":"collective","path":"x"}"#).len(),
            1
        );
        assert_eq!(
            errors("device-plugin", r#"{"name":"operator","path":"x"}"#).len(),
            1
        );
    }

    #[test]
    fn core_and_the_light_crates_take_little_from_outside() {
        assert_eq!(errors("collective", r#"{"name":"tokio"}"#).len(), 1);
        assert!(errors("collective", r#"{"name":"proptest","kind":"dev"}"#).is_empty());
        assert_eq!(errors("cluster", r#"{"name":"anyhow"}"#).len(), 1);
        assert_eq!(
            errors("crds", r#"{"name":"kube","features":["client"]}"#).len(),
            1
        );
        assert_eq!(
            errors("crds", r#"{"name":"kube","features":["derive"]}"#).len(),
            0
        );
    }

    #[test]
    fn a_new_crate_needs_its_line() {
        assert!(errors("cli", "")[0].contains("edges.rs"));
    }
}
