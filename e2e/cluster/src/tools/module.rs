//! The Go modules of the cluster's programs: which programs each holds and how they are built.

use crate::error::{Error, Result};
use crate::state::Engine;

/// One Go module of `e2e/tools`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// The control plane, kubelet, kube-proxy and kubectl.
    Kubernetes,
    /// kubectl alone, of the same module: all that a cluster of kind needs.
    Kubectl,
    /// etcd.
    Etcd,
    /// containerd, its shim and `ctr`.
    Containerd,
    /// The network plugins.
    Cni,
    /// Simulated nodes.
    Kwok,
    /// The chart's tool.
    Helm,
}

impl Module {
    /// What a cluster of real nodes is made of.
    pub fn of_cluster(engine: Engine) -> Vec<Self> {
        match engine {
            Engine::Native => vec![Self::Kubernetes, Self::Etcd, Self::Containerd, Self::Cni],
            Engine::Kind => vec![Self::Kubectl],
        }
    }

    /// What the demo needs: a cluster and our chart on it.
    pub fn of_demo(engine: Engine) -> Vec<Self> {
        let mut modules = Self::of_cluster(engine);
        modules.push(Self::Helm);
        modules
    }

    /// What the tests need: simulated nodes besides, where there is a place for them.
    pub fn of_tests(engine: Engine) -> Vec<Self> {
        let mut modules = Self::of_demo(engine);
        if engine == Engine::Native {
            modules.push(Self::Kwok);
        }
        modules
    }

    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Kubernetes | Self::Kubectl => "kubernetes",
            Self::Etcd => "etcd",
            Self::Containerd => "containerd",
            Self::Cni => "cni",
            Self::Kwok => "kwok",
            Self::Helm => "helm",
        }
    }

    /// The programs of the module: the package of each, and the file name it gets.
    pub(super) fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Kubernetes => &[
                ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
                (
                    "k8s.io/kubernetes/cmd/kube-controller-manager",
                    "kube-controller-manager",
                ),
                ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
                ("k8s.io/kubernetes/cmd/kube-proxy", "kube-proxy"),
                ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
                ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
            ],
            Self::Kubectl => &[("k8s.io/kubernetes/cmd/kubectl", "kubectl")],
            Self::Etcd => &[("go.etcd.io/etcd/server/v3", "etcd")],
            Self::Containerd => &[
                (
                    "github.com/containerd/containerd/v2/cmd/containerd",
                    "containerd",
                ),
                (
                    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                    "containerd-shim-runc-v2",
                ),
                ("github.com/containerd/containerd/v2/cmd/ctr", "ctr"),
            ],
            Self::Cni => &[
                (
                    "github.com/containernetworking/plugins/plugins/main/ptp",
                    "ptp",
                ),
                (
                    "github.com/containernetworking/plugins/plugins/main/loopback",
                    "loopback",
                ),
                (
                    "github.com/containernetworking/plugins/plugins/ipam/host-local",
                    "host-local",
                ),
                (
                    "github.com/containernetworking/plugins/plugins/meta/portmap",
                    "portmap",
                ),
            ],
            Self::Kwok => &[("sigs.k8s.io/kwok/cmd/kwok", "kwok")],
            Self::Helm => &[("helm.sh/helm/v3/cmd/helm", "helm")],
        }
    }

    /// Flags for `go build`. Kubernetes programs learn their version from the linker.
    pub(super) fn flags(self, go_mod: &str) -> Result<Vec<String>> {
        let mut flags = vec!["-trimpath".to_owned()];
        if self == Self::Containerd {
            flags.extend(["-tags".to_owned(), "no_btrfs".to_owned()]);
        }
        let mut linker = "-s -w".to_owned();
        if matches!(self, Self::Kubernetes | Self::Kubectl) {
            let version = required_version(go_mod, "k8s.io/kubernetes")?;
            let mut numbers = version.trim_start_matches('v').split('.');
            let (major, minor) = (
                numbers.next().unwrap_or_default(),
                numbers.next().unwrap_or_default(),
            );
            let package = "-X k8s.io/component-base/version.";
            linker = format!(
                "{linker} {package}gitVersion={version} {package}gitMajor={major} {package}gitMinor={minor}"
            );
        }
        flags.extend(["-ldflags".to_owned(), linker]);
        Ok(flags)
    }
}

/// The version that a `go.mod` requires of a module.
fn required_version<'a>(go_mod: &'a str, module: &str) -> Result<&'a str> {
    let versions = go_mod.lines().filter_map(|line| {
        let mut words = line
            .trim()
            .trim_start_matches("require ")
            .split_whitespace();
        (words.next() == Some(module))
            .then(|| words.next())
            .flatten()
    });
    match versions
        .into_iter()
        .find(|version| version.starts_with('v'))
    {
        Some(version) => Ok(version),
        None => Err(Error::new(format!(
            "go.mod requires no version of {module}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Engine, Module, required_version};
    use crate::paths;

    #[test]
    fn the_version_is_the_required_one_and_not_a_longer_path() {
        let go_mod = "module m\n\nrequire (\n\tk8s.io/kubernetes/x v1.0.0 // indirect\n\tk8s.io/kubernetes v1.36.3\n)\n";
        assert_eq!(
            required_version(go_mod, "k8s.io/kubernetes").unwrap(),
            "v1.36.3"
        );
        assert!(required_version(go_mod, "k8s.io/api").is_err());
        let single = "require k8s.io/kubernetes v1.2.3\n";
        assert_eq!(
            required_version(single, "k8s.io/kubernetes").unwrap(),
            "v1.2.3"
        );
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        let modules = [Engine::Native, Engine::Kind]
            .map(Module::of_tests)
            .concat();
        for module in modules {
            let path = paths::repository().join("e2e/tools").join(module.folder());
            let go_mod = std::fs::read_to_string(path.join("go.mod")).unwrap();
            for (package, _) in module.programs() {
                let listed = go_mod
                    .lines()
                    .any(|line| line.trim().trim_start_matches("tool ") == *package);
                assert!(listed, "{package} is not a tool in {}", path.display());
            }
        }
    }
}
