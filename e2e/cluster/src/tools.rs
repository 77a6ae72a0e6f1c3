//! The cluster's programs, built from the Go modules in `e2e/tools`, which pin their versions. A
//! module is built once per content of its `go.mod`, `go.sum` and flags, into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::digest;
use crate::error::{Context, Error, Result};
use crate::paths;
use crate::progress::{Outcome, Progress, step};

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
    /// All that any cluster without Docker needs.
    pub const ALL: [Self; 6] = [
        Self::Kubernetes,
        Self::Etcd,
        Self::Containerd,
        Self::Cni,
        Self::Kwok,
        Self::Helm,
    ];

    /// What a cluster of real nodes needs.
    pub const REAL_NODES: [Self; 4] = [Self::Kubernetes, Self::Etcd, Self::Containerd, Self::Cni];

    fn folder(self) -> &'static str {
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
    fn programs(self) -> &'static [(&'static str, &'static str)] {
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
    fn flags(self, go_mod: &str) -> Result<Vec<String>> {
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

/// Where the built programs are.
#[derive(Debug, Clone)]
pub struct Tools {
    folders: Vec<(Module, PathBuf)>,
}

impl Tools {
    /// Builds what is not in the cache yet.
    pub fn build(modules: &[Module], progress: Progress<'_>) -> Result<Self> {
        let cache = paths::cache()?.join("tools");
        fs::create_dir_all(&cache).context(|| format!("failed to make {}", cache.display()))?;
        let mut folders = Vec::new();
        for &module in modules {
            let name = format!("tools {}", module.folder());
            let folder = step(progress, &name, || build_module(module, &cache))?;
            folders.push((module, folder));
        }
        Ok(Self { folders })
    }

    /// The programs of these modules where they were built before; an error names the first that is
    /// missing.
    pub fn built(modules: &[Module]) -> Result<Self> {
        let cache = paths::cache()?.join("tools");
        let mut folders = Vec::new();
        for &module in modules {
            let folder = cache.join(Recipe::read(module)?.key);
            if !folder.is_dir() {
                return Err(Error::new(format!(
                    "the tools of {} are not built",
                    module.folder()
                )));
            }
            folders.push((module, folder));
        }
        Ok(Self { folders })
    }

    /// The path of a program by its file name.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        for (module, folder) in &self.folders {
            if module
                .programs()
                .iter()
                .any(|(_, program)| *program == name)
            {
                return Ok(folder.join(name));
            }
        }
        Err(Error::new(format!(
            "no module that was built has a program {name}"
        )))
    }

    /// The folder of a module.
    pub fn folder(&self, module: Module) -> Result<&Path> {
        match self.folders.iter().find(|(built, _)| *built == module) {
            Some((_, folder)) => Ok(folder),
            None => Err(Error::new(format!(
                "the tools of {} were not built",
                module.folder()
            ))),
        }
    }

    /// The folders as a `PATH`, before the machine's own.
    pub fn search_path(&self) -> String {
        let folders: Vec<_> = self
            .folders
            .iter()
            .map(|(_, folder)| folder.display().to_string())
            .collect();
        format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            folders.join(":")
        )
    }
}

/// How a module is built, and under which name it is kept.
struct Recipe {
    source: PathBuf,
    flags: Vec<String>,
    key: String,
}

impl Recipe {
    fn read(module: Module) -> Result<Self> {
        let source = paths::repository().join("e2e/tools").join(module.folder());
        let read = |name: &str| {
            let path = source.join(name);
            fs::read_to_string(&path).context(|| format!("failed to read {}", path.display()))
        };
        let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
        let flags = module.flags(&go_mod)?;
        let packages: Vec<_> = module
            .programs()
            .iter()
            .map(|(package, _)| *package)
            .collect();
        let content = [go_mod, go_sum, flags.join(" "), packages.join(" ")].join("\0");
        let digest = digest::bytes(content.as_bytes())?;
        let key = format!(
            "{}-{}",
            module.folder(),
            digest.get(..16).unwrap_or(&digest)
        );
        Ok(Self { source, flags, key })
    }
}

fn build_module(module: Module, cache: &Path) -> Result<(PathBuf, Outcome)> {
    let recipe = Recipe::read(module)?;
    let folder = cache.join(&recipe.key);
    if folder.is_dir() {
        return Ok((folder, Outcome::Cached));
    }
    // Built aside and renamed when whole: two builders at once, or a broken one, leave nothing half
    // done.
    let fresh = cache.join(format!("{}.{}", recipe.key, std::process::id()));
    fs::create_dir_all(&fresh).context(|| format!("failed to make {}", fresh.display()))?;
    let mut packages = Vec::new();
    let mut target = format!("{}/", fresh.display());
    match module.programs() {
        // The last element of this package's path is a version, so the program's name has to be
        // given.
        [(package, name)] => {
            packages.push(*package);
            target.push_str(name);
        }
        programs => packages.extend(programs.iter().map(|(package, _)| *package)),
    }
    let mut go = Command::new("go");
    go.current_dir(&recipe.source)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "")
        .arg("build")
        .args(&recipe.flags)
        .args(["-o", &target])
        .args(packages);
    command::run(&mut go)?;
    if let Err(error) = fs::rename(&fresh, &folder)
        && !folder.is_dir()
    {
        return Err(error).context(|| format!("failed to move the tools to {}", folder.display()));
    }
    let _ = fs::remove_dir_all(&fresh);
    Ok((folder, Outcome::Built))
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
    use super::{Module, Recipe, required_version};

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
        for module in Module::ALL {
            let recipe = Recipe::read(module).unwrap();
            assert!(recipe.key.starts_with(module.folder()), "{}", recipe.key);
            let go_mod = std::fs::read_to_string(recipe.source.join("go.mod")).unwrap();
            for (package, _) in module.programs() {
                let listed = go_mod
                    .lines()
                    .any(|line| line.trim().trim_start_matches("tool ") == *package);
                assert!(
                    listed,
                    "{package} is not a tool in {}",
                    recipe.source.display()
                );
            }
        }
    }
}
