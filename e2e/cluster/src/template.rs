//! Configuration files of the cluster's programs: texts with `@NAME@` where a value goes.

use std::fs;
use std::path::Path;

use crate::error::{ErrorContext, Result};

pub(crate) const INIT: &str = include_str!("templates/init.sh");
pub(crate) const KUBELET: &str = include_str!("templates/kubelet.yaml");
pub(crate) const CONTAINERD: &str = include_str!("templates/containerd.toml");
pub(crate) const CNI: &str = include_str!("templates/cni.conflist");
pub(crate) const AUDIT: &str = include_str!("templates/audit.yaml");
pub(crate) const STORAGE: &str = include_str!("templates/storage.yaml");
pub(crate) const VOLUME: &str = include_str!("templates/volume.yaml");
pub(crate) const KWOK: &str = include_str!("templates/kwok.yaml");
pub(crate) const STAGES: &str = include_str!("templates/stages.yaml");
pub(crate) const FAKE_NODE: &str = include_str!("templates/fake-node.yaml");

/// Replaces each name by its value.
pub(crate) fn render(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    text
}

/// Writes a file of the cluster's state.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{CNI, CONTAINERD, FAKE_NODE, KUBELET, VOLUME, render};

    #[test]
    fn every_place_of_a_value_is_filled() {
        assert_eq!(
            render("a: @A@, @A@\nb: @B@", &[("A", "1"), ("B", "2")]),
            "a: 1, 1\nb: 2"
        );
    }

    #[test]
    fn templates_name_only_values_that_are_given() {
        let known = [
            "CGROUP",
            "CGROUP_V1",
            "PKI",
            "NODE",
            "LEASE_SECONDS",
            "PAUSE",
            "CNI",
            "PODS",
            "NUMBER",
            "NAME",
            "ZONE",
            "LEAF",
        ];
        let values: Vec<_> = known.iter().map(|name| (*name, "x")).collect();
        for template in [KUBELET, CONTAINERD, CNI, VOLUME, FAKE_NODE] {
            assert!(!render(template, &values).contains('@'), "{template}");
        }
    }
}
