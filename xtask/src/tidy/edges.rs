//! Which crates may depend on which. The arrows are those of ARCHITECTURE.md: shells use core,
//! core uses at most the node model, nothing uses a shell.

use super::Findings;
use crate::r#gen::root;
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// What a crate of ours may use of ours.
const EDGES: &[(&str, &[&str])] = &[
    ("chain-placement", &[]),
    ("chain-table", &[]),
    ("chunk-store", &[]),
    ("topology", &[]),
    ("scheduler", &["topology"]),
    ("collective", &["topology"]),
    ("craq", &[]),
    ("health", &[]),
    ("metadata", &[]),
    ("sim", &[]),
    ("contract", &["topology"]),
    ("link", &[]),
    ("fuse", &[]),
    ("kv", &[]),
    ("csi", &["fuse"]),
    (
        "mount",
        &[
            "chain-link",
            "craq",
            "fuse",
            "metadata",
            "storage-client",
            "storage-rpc",
        ],
    ),
    (
        "storage-rpc",
        &["chain-link", "craq", "daemon", "link", "metadata"],
    ),
    ("chain-link", &["craq", "link"]),
    ("storage", &["chain-link", "chunk-store", "craq", "link"]),
    ("storage-client", &["chain-link", "craq", "link"]),
    (
        "meta",
        &["chain-link", "daemon", "kv", "metadata", "storage-rpc"],
    ),
    (
        "manager",
        &[
            "chain-link",
            "chain-table",
            "daemon",
            "kv",
            "link",
            "storage-rpc",
        ],
    ),
    (
        "storage-csi",
        &[
            "chain-link",
            "craq",
            "csi",
            "daemon",
            "fuse",
            "kv",
            "link",
            "manager",
            "meta",
            "metadata",
            "mount",
            "storage",
            "storage-client",
            "storage-rpc",
        ],
    ),
    ("hfreduce-client", &["collective", "link"]),
    ("crds", &[]),
    ("daemon", &["link"]),
    (
        "operator",
        &[
            "scheduler",
            "collective",
            "health",
            "contract",
            "topology",
            "link",
            "crds",
            "daemon",
            "chain-link",
            "chain-placement",
            "chain-table",
            "storage-rpc",
        ],
    ),
    ("launcher", &["contract"]),
    (
        "hfreduce-sidecar",
        &[
            "collective",
            "contract",
            "topology",
            "hfreduce-client",
            "link",
            "daemon",
        ],
    ),
    ("device-plugin", &["topology", "crds", "daemon"]),
    ("validator", &["health", "contract", "collective", "link"]),
    ("fireflyer-python", &["hfreduce-client"]),
    ("cluster", &[]),
    ("bench", &["cluster", "fuse", "storage-cell"]),
    (
        "storage-cell",
        &["chain-link", "cluster", "fuse", "link", "storage-rpc"],
    ),
    (
        "scenarios",
        &[
            "cluster",
            "crds",
            "scheduler",
            "collective",
            "contract",
            "link",
        ],
    ),
    ("xtask", &["cluster"]),
];

/// What tests may use on top.
const TEST_EDGES: &[(&str, &[&str])] = &[
    ("chain-placement", &["sim"]),
    ("chain-table", &["sim"]),
    ("chunk-store", &["sim"]),
    ("scheduler", &["sim"]),
    ("collective", &["sim"]),
    ("craq", &["sim"]),
    ("health", &["sim"]),
    ("operator", &["kv", "manager", "sim"]),
    ("metadata", &["sim"]),
    ("hfreduce-sidecar", &["sim"]),
    ("contract", &["sim"]),
    ("link", &["sim"]),
    ("fuse", &["sim"]),
    ("kv", &["cluster", "sim", "storage-cell"]),
    ("manager", &["craq", "sim", "storage-cell"]),
    ("csi", &["cluster", "sim"]),
    ("meta", &["link", "sim", "storage-cell"]),
    ("storage", &["sim", "storage-client"]),
    ("storage-csi", &["cluster", "sim", "storage-cell"]),
    ("hfreduce-client", &["sim"]),
    ("validator", &["sim"]),
];

/// The pure crates: no clock, no IO, so hardly anything from outside either.
const PURE: [&str; 10] = [
    "chain-placement",
    "chain-table",
    "chunk-store",
    "topology",
    "scheduler",
    "collective",
    "craq",
    "health",
    "metadata",
    "sim",
];
const PURE_MAY_USE: [&str; 5] = ["crc32c", "half", "serde", "serde_json", "thiserror"];
const PURE_TESTS_MAY_USE: [&str; 1] = ["proptest"];

/// Crates that stay light on purpose, and all that they may use from outside.
const LIGHT: &[(&str, &[&str])] = &[
    ("cluster", &[]),
    ("xtask", &["anyhow", "serde_json", "signal-hook"]),
];

/// A package of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// From the repository's root, with a slash at its end.
    pub(crate) folder: String,
    dependencies: Vec<Dependency>,
    tests: Vec<Target>,
}

/// What cargo makes a test program of.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// From the package's folder.
    source: String,
    integration: bool,
}

impl Package {
    /// Its test programs, as the table of classes calls them.
    pub(crate) fn units(&self) -> impl Iterator<Item = String> {
        self.tests.iter().map(|target| self.unit(target))
    }

    pub(crate) fn unit(&self, target: &Target) -> String {
        unit(&self.name, &target.source)
    }

    pub(crate) fn integration_tests(&self) -> impl Iterator<Item = &Target> {
        self.tests.iter().filter(|target| target.integration)
    }
}

/// A test program by its package, spelled as a crate, and its source.
pub(crate) fn unit(package: &str, source: &str) -> String {
    format!("{} {source}", package.replace('-', "_"))
}

#[derive(Debug)]
struct Dependency {
    name: String,
    ours: bool,
    test: bool,
    features: Vec<String>,
}

/// Asks cargo.
pub(crate) fn packages() -> anyhow::Result<Vec<Package>> {
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
    let target = |folder: &str, value: &Value| Target {
        name: text(&value["name"]),
        source: text(&value["src_path"])
            .strip_prefix(&format!("{}/{folder}", root().display()))
            .unwrap_or_default()
            .to_owned(),
        integration: list(&value["kind"]).iter().any(|kind| kind == "test"),
    };
    let tests = |value: &Value| {
        let folder = folder(&text(&value["manifest_path"]));
        let targets = list(&value["targets"]);
        let tested = targets.iter().filter(|target| target["test"] == true);
        tested.map(|one| target(&folder, one)).collect()
    };
    let package = |value: &Value| Package {
        name: text(&value["name"]),
        folder: folder(&text(&value["manifest_path"])),
        tests: tests(value),
        dependencies: list(&value["dependencies"])
            .iter()
            .map(dependency)
            .collect(),
    };
    Ok(list(&metadata["packages"]).iter().map(package).collect())
}

/// The folder of a manifest. Nothing for one that is elsewhere: all paths begin with that.
fn folder(manifest: &str) -> String {
    let path = Path::new(manifest).strip_prefix(root()).ok();
    let folder = path.and_then(Path::parent);
    folder.map_or_else(String::new, |folder| format!("{}/", folder.display()))
}

/// Of each package, as its programs are called, the folders whose files it is made of: its own and those of all that it
/// uses, in tests too.
pub(crate) fn folders(packages: &[Package]) -> BTreeMap<String, Vec<String>> {
    let of = |name: &str| packages.iter().find(|package| package.name == name);
    let all_of = |package: &Package| {
        let (mut names, mut next) = (BTreeSet::new(), vec![package.name.as_str()]);
        while let Some(name) = next.pop() {
            let Some(package) = of(name).filter(|_| names.insert(name)) else {
                continue;
            };
            let ours = package.dependencies.iter().filter(|used| used.ours);
            next.extend(ours.map(|used| used.name.as_str()));
        }
        let folders = names.into_iter().filter_map(of);
        folders.map(|package| package.folder.clone()).collect()
    };
    packages
        .iter()
        .map(|package| (package.name.replace('-', "_"), all_of(package)))
        .collect()
}

pub(super) fn check(packages: &[Package], findings: &mut Findings) {
    let of = |table: &[(&str, &'static [&'static str])], name: &str| {
        table
            .iter()
            .find(|(package, _)| *package == name)
            .map(|(_, uses)| *uses)
    };
    for Package {
        name, dependencies, ..
    } in packages
    {
        let Some(allowed) = of(EDGES, name) else {
            findings.errors.push(format!(
                "{name}: a new crate needs its line in xtask/src/tidy/edges.rs"
            ));
            continue;
        };
        let in_tests = of(TEST_EDGES, name).unwrap_or_default();
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
    use super::{Findings, check, folders, packages, parse};

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
            errors("link", r#"{"name":"collective","path":"x"}"#).len(),
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
    fn a_package_is_made_of_its_folder_and_of_those_below() {
        let folders = folders(&packages().unwrap());
        let sidecar = &folders["hfreduce_sidecar"];
        for folder in [
            "hfreduce-sidecar/",
            "core/collective/",
            "core/topology/",
            "core/sim/",
        ] {
            assert!(
                sidecar.iter().any(|one| one == folder),
                "{folder} is not in {sidecar:?}"
            );
        }
        assert!(!sidecar.iter().any(|one| one == "core/scheduler/"));
        assert_eq!(folders["topology"], ["core/topology/"]);
    }

    #[test]
    fn a_new_crate_needs_its_line() {
        assert!(errors("cli", "")[0].contains("edges.rs"));
    }
}
