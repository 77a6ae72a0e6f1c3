//! The programs, the Go module and package of each, and which of them a task needs.

use crate::state::NodeEngine;

/// A Go module of this clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Module {
    /// The cluster's programs. It is one module and not one for each project, so that the libraries they share are built
    /// once.
    Cluster,
    /// What stands beside a CSI driver. In the cluster's module it would put newer libraries under Kubernetes than those
    /// that Kubernetes is released with.
    Csi,
}

impl Module {
    /// From the repository's root.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Cluster => "e2e/tools",
            Self::Csi => "e2e/tools/csi",
        }
    }

    /// What people read while it is built.
    pub(super) fn step(self) -> &'static str {
        match self {
            Self::Cluster => "tools",
            Self::Csi => "tools of CSI",
        }
    }
}

/// A program that is built from a Go package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Whose versions it is built with.
    pub(super) module: Module,
    /// Its file name.
    pub(super) name: &'static str,
    /// The import path of its package.
    pub(super) package: &'static str,
}

const fn program(name: &'static str, package: &'static str) -> Program {
    Program {
        module: Module::Cluster,
        name,
        package,
    }
}

const KUBECTL: Program = program("kubectl", "k8s.io/kubernetes/cmd/kubectl");
/// The chart's tool.
pub const HELM: Program = program("helm", "helm.sh/helm/v3/cmd/helm");
/// Simulated nodes.
pub const KWOK: Program = program("kwok", "sigs.k8s.io/kwok/cmd/kwok");

/// The store of clusters, and of what asks for one of its own.
pub const ETCD: Program = program("etcd", "go.etcd.io/etcd/server/v3");
/// Turns claims into calls of a CSI driver.
pub const CSI_PROVISIONER: Program = Program {
    module: Module::Csi,
    name: "csi-provisioner",
    package: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
};
/// Judges a CSI driver by what the specification asks for.
const CSI_SANITY: Program = Program {
    module: Module::Csi,
    name: "csi-sanity",
    package: "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
};

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
    ETCD,
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

/// What stands beside a CSI driver, and what tests one.
pub fn of_csi() -> Vec<Program> {
    vec![CSI_PROVISIONER, CSI_SANITY]
}

impl Program {
    /// Its file name.
    pub fn name(&self) -> &'static str {
        self.name
    }

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
    use super::{CSI_PROVISIONER, ETCD, KWOK, NodeEngine, of_csi, of_tests, program};
    use crate::paths;

    #[test]
    fn a_version_is_no_programs_name() {
        assert_eq!(ETCD.built_name(), "server");
        assert_eq!(KWOK.built_name(), "kwok");
        assert_eq!(CSI_PROVISIONER.built_name(), CSI_PROVISIONER.name());
        assert_eq!(program("vet", "example.dev/cmd/vet").built_name(), "vet");
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        let programs = [of_tests(NodeEngine::Native), of_csi()].concat();
        for program in programs {
            let path = paths::repository().join(program.module.folder());
            let go_mod = std::fs::read_to_string(path.join("go.mod")).unwrap();
            let package = program.package;
            assert!(
                go_mod.lines().any(|line| line.trim() == package),
                "{package} is no tool in {}/go.mod",
                program.module.folder()
            );
        }
    }
}
