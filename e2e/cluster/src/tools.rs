//! The cluster's programs, built from the Go module in `e2e/tools`, which pins their versions. It is
//! one module and not one for each project, so that the libraries they share are built once.

mod go;
mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::command;
use crate::digest;
use crate::error::{Error, ErrorContext, Result};
use crate::paths;
use crate::progress::{ProgressFn, StepOutcome, step};
use crate::state::lock;

pub use program::{HELM, KWOK, Program, of_cluster, of_demo, of_tests};

/// Snapshots of btrfs would need a C compiler, and no node has that file system.
const TAGS: &str = "no_btrfs";

/// The folder of the programs that this clone's `e2e/tools` gives. It is named by a digest of all
/// that they are built from.
#[derive(Debug, Clone)]
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Builds those of the programs that are not in the cache yet.
    pub fn build(programs: &[Program], progress: ProgressFn<'_>) -> Result<Self> {
        step(progress, "tools", || {
            let recipe = Recipe::read()?;
            let tools = Self {
                folder: recipe.folder()?,
            };
            let start = Instant::now();
            let at = |done, all| progress("tools", StepOutcome::At(done, all), start.elapsed());
            let outcome = recipe.build(programs, &tools.folder, &at)?;
            Ok((tools, outcome))
        })
    }

    /// An error when programs have to be built and the Go to build them is not here: worth knowing before
    /// other things take minutes.
    pub fn can_build(programs: &[Program]) -> Result<()> {
        let recipe = Recipe::read()?;
        if missing(programs, &recipe.folder()?).is_empty() {
            return Ok(());
        }
        go::check(&recipe.go)
    }

    /// The programs that were built before.
    pub fn built() -> Result<Self> {
        let folder = Recipe::read()?.folder()?;
        Ok(Self { folder })
    }

    /// The path of a program; an error when it was not built.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
        Err(Error::new(format!(
            "{name} is not built: run `cargo xtask cluster tools`"
        )))
    }

    /// The folder of all programs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder as a `PATH`, before the machine's own.
    pub fn search_path(&self) -> String {
        format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.folder.display()
        )
    }
}

/// What the programs are built from.
struct Recipe {
    source: PathBuf,
    flags: Vec<String>,
    /// The oldest Go that will do.
    go: String,
    key: String,
}

impl Recipe {
    fn read() -> Result<Self> {
        let source = paths::repository().join("e2e/tools");
        let read = |name: &str| {
            let path = source.join(name);
            fs::read_to_string(&path).context(|| format!("failed to read {}", path.display()))
        };
        let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
        let flags = vec![
            "-trimpath".to_owned(),
            format!("-tags={TAGS}"),
            format!("-ldflags=-s -w {}", kubernetes_version(&go_mod)?),
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

    fn folder(&self) -> Result<PathBuf> {
        Ok(paths::cache()?.join("tools").join(&self.key))
    }

    /// Calls `at` with how many of how many Go packages are compiled.
    fn build(
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
