//! The cluster's programs, built from the Go modules in `e2e/tools`, which pin their versions. A
//! module is built once per content of its `go.mod`, `go.sum` and flags, into the cache.

mod module;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::digest;
use crate::error::{Context, Error, Result};
use crate::paths;
use crate::prerequisites::found;
use crate::progress::{Outcome, Progress, step};
use crate::state::lock;

pub use module::Module;

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
                    "the tools of {} are not built: run `cargo xtask cluster tools`",
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
    if !found("go") {
        return Err(Error::new(
            "the cluster's programs are built with Go, which is not in the PATH: install Go 1.26.3 or later",
        ));
    }
    // One builder at a time: another would only make both slower, and may be at this very module.
    let _alone = lock(cache)?;
    if folder.is_dir() {
        return Ok((folder, Outcome::Cached));
    }
    // Built aside and renamed when whole. What a builder that was ended left there is built over.
    let fresh = cache.join(format!("{}.new", recipe.key));
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
    fs::rename(&fresh, &folder)
        .context(|| format!("failed to move the tools to {}", folder.display()))?;
    Ok((folder, Outcome::Built))
}
