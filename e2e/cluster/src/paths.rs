//! Where things live outside the clone: what may be thrown away (cache) and what a running cluster
//! needs (state).

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Built tools and images: `$XDG_CACHE_HOME/fireflyer`, by default `~/.cache/fireflyer`.
pub fn cache() -> Result<PathBuf> {
    folder("XDG_CACHE_HOME", ".cache")
}

/// The folders of the clusters: `$XDG_STATE_HOME/fireflyer/clusters`, by default below
/// `~/.local/state`.
pub fn clusters() -> Result<PathBuf> {
    Ok(folder("XDG_STATE_HOME", ".local/state")?.join("clusters"))
}

/// The clone that this crate was built from.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

fn folder(variable: &str, below_home: &str) -> Result<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)));
    match base {
        Some(base) => Ok(base.join("fireflyer")),
        None => Err(Error::new(format!(
            "neither ${variable} nor $HOME is an absolute path: set one"
        ))),
    }
}
