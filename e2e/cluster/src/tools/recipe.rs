//! How the programs of a Go module are built, and where they lie.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::go;
use super::program::{Module, Program};
use crate::command;
use crate::digest;
use crate::error::{Error, ErrorContext, Result};
use crate::paths;
use crate::progress::StepOutcome;
use crate::state::lock;

/// Snapshots of btrfs would need a C compiler, and no node has that file system.
const TAGS: &str = "no_btrfs";

/// What the programs are built from.
pub(super) struct Recipe {
    source: PathBuf,
    flags: Vec<String>,
    /// The oldest Go that will do.
    go: String,
    key: String,
}

impl Recipe {
    pub(super) fn read(module: Module) -> Result<Self> {
        let source = paths::repository().join(module.folder());
        let read = |name: &str| {
            let path = source.join(name);
            fs::read_to_string(&path).context(|| format!("failed to read {}", path.display()))
        };
        let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
        let version = match module {
            Module::Cluster => kubernetes_version(&go_mod)?,
            Module::Csi => String::new(),
        };
        let flags = vec![
            "-trimpath".to_owned(),
            format!("-tags={TAGS}"),
            format!("-ldflags=-s -w {version}"),
        ];
        let go = go::required(&go_mod)?.to_owned();
        let digest = digest::bytes([go_mod, go_sum, flags.join(" ")].join("\0").as_bytes())?;
        let key = digest.get(..16).unwrap_or(&digest).to_owned();
        Ok(Self {
            source,
            flags,
            go,
            key,
        })
    }

    /// A command of Go in the module's folder, with nothing of the user's own settings.
    fn go(&self, verb: &str) -> Command {
        let mut go = Command::new("go");
        go.current_dir(&self.source).arg(verb);
        go.env("CGO_ENABLED", "0");
        go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
        go
    }

    /// Its name is a digest of all that the programs are built from.
    pub(super) fn folder(&self) -> Result<PathBuf> {
        Ok(paths::cache()?.join("tools").join(&self.key))
    }

    /// An error when one of the programs has to be built and the Go to build it is not here.
    pub(super) fn can_build(&self, programs: &[Program]) -> Result<()> {
        if missing(programs, &self.folder()?).is_empty() {
            return Ok(());
        }
        go::check(&self.go)
    }

    /// Builds those of the programs that are not in the folder. Calls `at` with how many of how many Go packages are
    /// compiled.
    pub(super) fn build(
        &self,
        programs: &[Program],
        folder: &Path,
        at: &dyn Fn(usize, usize),
    ) -> Result<StepOutcome> {
        if missing(programs, folder).is_empty() {
            return Ok(StepOutcome::Cached);
        }
        go::check(&self.go)?;
        fs::create_dir_all(folder).context(|| format!("failed to make {}", folder.display()))?;
        // One builder at a time: another would only make both slower, and may build the same.
        let _alone = lock(folder)?;
        let missing = missing(programs, folder);
        if missing.is_empty() {
            return Ok(StepOutcome::Cached);
        }
        // Built aside and moved when whole. What a builder that was ended left there is built over.
        let fresh = folder.join("new");
        fs::create_dir_all(&fresh).context(|| format!("failed to make {}", fresh.display()))?;
        let packages = || missing.iter().map(|program| program.package);
        let tags = format!("-tags={TAGS}");
        let all = command::run(self.go("list").args(["-deps", &tags]).args(packages()))?;
        let (all, mut done) = (all.lines().count(), 0);
        let mut go = self.go("build");
        // Prints each package that it compiles; those in Go's own cache are none.
        go.arg("-v").args(&self.flags);
        // The slash at its end says that it is a folder.
        go.arg("-o").arg(fresh.join("")).args(packages());
        command::watch(&mut go, |_| {
            done += 1;
            at(done, all.max(done));
        })?;
        for program in missing {
            fs::rename(fresh.join(program.built_name()), folder.join(program.name))
                .context(|| format!("failed to move {} to its place", program.name))?;
        }
        fs::remove_dir(&fresh).context(|| format!("failed to remove {}", fresh.display()))?;
        Ok(StepOutcome::Built)
    }
}

/// Those of the programs that are not in the folder.
fn missing<'a>(programs: &'a [Program], folder: &Path) -> Vec<&'a Program> {
    let absent = |program: &&Program| !folder.join(program.name).is_file();
    programs.iter().filter(absent).collect()
}

/// The linker's flags that set the version of Kubernetes programs.
fn kubernetes_version(go_mod: &str) -> Result<String> {
    let version = required_version(go_mod, "k8s.io/kubernetes")?;
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut next = || numbers.next().unwrap_or_default();
    let (major, minor) = (next(), next());
    let package = "-X k8s.io/component-base/version.";
    Ok(format!(
        "{package}gitVersion={version} {package}gitMajor={major} {package}gitMinor={minor}"
    ))
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
    use super::{kubernetes_version, required_version};

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
        let flags = kubernetes_version(go_mod).unwrap();
        assert!(flags.contains("gitVersion=v1.36.3"), "{flags}");
        assert!(flags.ends_with("gitMinor=36"), "{flags}");
    }
}
