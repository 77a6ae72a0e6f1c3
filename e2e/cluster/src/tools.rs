//! The cluster's programs and those beside a CSI driver, built from the Go modules that pin their versions. What is in which
//! module is in `program`, how they are built in `recipe`.

mod go;
mod program;
mod recipe;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::progress::{ProgressFn, StepOutcome, step};

use program::Module;
pub use program::{
    CSI_PROVISIONER, ETCD, HELM, KWOK, Program, of_cluster, of_csi, of_demo, of_tests,
};
use recipe::Recipe;

/// The folders of the programs that this clone's Go modules give, each named by a digest of all that they are built from.
#[derive(Debug, Clone)]
pub struct Tools {
    cluster: PathBuf,
    csi: PathBuf,
}

impl Tools {
    /// Builds those of the programs that are not in the cache yet.
    pub fn build(programs: &[Program], progress: ProgressFn<'_>) -> Result<Self> {
        for (module, programs) in by_module(programs) {
            step(progress, module.step(), || {
                let recipe = Recipe::read(module)?;
                let start = Instant::now();
                let at = |done, all| {
                    progress(module.step(), StepOutcome::At(done, all), start.elapsed());
                };
                let outcome = recipe.build(&programs, &recipe.folder()?, &at)?;
                Ok(((), outcome))
            })?;
        }
        Self::built()
    }

    /// An error when programs have to be built and the Go to build them is not here: worth knowing before
    /// other things take minutes.
    pub fn can_build(programs: &[Program]) -> Result<()> {
        by_module(programs)
            .into_iter()
            .try_for_each(|(module, programs)| Recipe::read(module)?.can_build(&programs))
    }

    /// The programs that were built before.
    pub fn built() -> Result<Self> {
        let folder = |module| Recipe::read(module)?.folder();
        Ok(Self {
            cluster: folder(Module::Cluster)?,
            csi: folder(Module::Csi)?,
        })
    }

    /// The path of a program; an error when it was not built.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let paths = [&self.cluster, &self.csi].map(|folder| folder.join(name));
        let found = paths.into_iter().find(|path| path.is_file());
        found.ok_or_else(|| {
            Error::new(format!(
                "{name} is not built: run `cargo xtask cluster tools`"
            ))
        })
    }

    /// The folder of the cluster's programs.
    pub fn folder(&self) -> &Path {
        &self.cluster
    }

    /// That folder as a `PATH`, before the machine's own.
    pub fn search_path(&self) -> String {
        format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.cluster.display()
        )
    }
}

/// The programs of each module that has some of them.
fn by_module(programs: &[Program]) -> Vec<(Module, Vec<Program>)> {
    let of = |module| {
        let programs = programs.iter().filter(|program| program.module == module);
        (module, programs.copied().collect::<Vec<_>>())
    };
    let modules = [Module::Cluster, Module::Csi].map(of).into_iter();
    modules
        .filter(|(_, programs)| !programs.is_empty())
        .collect()
}
