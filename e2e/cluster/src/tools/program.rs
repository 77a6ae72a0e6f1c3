//! The cluster's programs, the Go package of each, and which of them a task needs.

use crate::state::NodeEngine;

/// A program that is built from a Go package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its file name.
    pub(super) name: &'static str,
    /// The import path of its package.
    pub(super) package: &'static str,
}

const fn program(name: &'static str, package: &'static str) -> Program {
    Program { name, package }
}

const KUBECTL: Program = program("kubectl", "k8s.io/kubernetes/cmd/kubectl");
/// The chart's tool.
pub const HELM: Program = program("helm", "helm.sh/helm/v3/cmd/helm");
/// Simulated nodes.
pub const KWOK: Program = program("kwok", "sigs.k8s.io/kwok/cmd/kwok");

/// What a cluster of our own is made of.
const NATIVE: [Program; 14] = [
    KUBECTL,
    program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    program(
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    program("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    program("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    program("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    program("etcd", "go.etcd.io/etcd/server/v3"),
    program(
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd",
    ),
    program(
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    program("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    program(
        "ptp",
        "github.com/containernetworking/plugins/plugins/main/ptp",
    ),
    program(
        "loopback",
        "github.com/containernetworking/plugins/plugins/main/loopback",
    ),
    program(
        "host-local",
        "github.com/containernetworking/plugins/plugins/ipam/host-local",
    ),
    program(
        "portmap",
        "github.com/containernetworking/plugins/plugins/meta/portmap",
    ),
];

/// What a cluster of real nodes is made of; kind brings all but kubectl.
pub fn of_cluster(engine: NodeEngine) -> Vec<Program> {
    match engine {
        NodeEngine::Native => NATIVE.to_vec(),
        NodeEngine::Kind => vec![KUBECTL],
    }
}

/// What the demo needs: a cluster and our chart on it.
pub fn of_demo(engine: NodeEngine) -> Vec<Program> {
    let mut programs = of_cluster(engine);
    programs.push(HELM);
    programs
}

/// What the tests need: simulated nodes besides, where there is a place for them.
pub fn of_tests(engine: NodeEngine) -> Vec<Program> {
    let mut programs = of_demo(engine);
    if engine == NodeEngine::Native {
        programs.push(KWOK);
    }
    programs
}

impl Program {
    /// The file name that `go build` gives it: the package's last element that is no version.
    pub(super) fn built_name(&self) -> &'static str {
        let is_version = |element: &&str| {
            element
                .strip_prefix('v')
                .is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let mut elements = self.package.rsplit('/');
        elements
            .find(|element| !is_version(element))
            .unwrap_or(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::{KWOK, NodeEngine, of_tests, program};
    use crate::paths;

    #[test]
    fn a_version_is_no_programs_name() {
        let etcd = program("etcd", "go.etcd.io/etcd/server/v3");
        assert_eq!(etcd.built_name(), "server");
        assert_eq!(KWOK.built_name(), "kwok");
        assert_eq!(program("vet", "example.dev/cmd/vet").built_name(), "vet");
    }

    #[test]
    fn every_program_is_a_tool_of_the_module() {
        let path = paths::repository().join("e2e/tools/go.mod");
        let go_mod = std::fs::read_to_string(path).unwrap();
        for program in of_tests(NodeEngine::Native) {
            let package = program.package;
            assert!(
                go_mod.lines().any(|line| line.trim() == package),
                "{package} is no tool in e2e/tools/go.mod"
            );
        }
    }
}
