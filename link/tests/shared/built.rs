//! Stand-ins for libraries, which cargo builds with all tests of the package and not with one of them. Used by `#[path]`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The file of a stand-in that was built after its `sources`, which are named from the package on, were last changed.
pub(crate) fn built(file: &str, sources: &[&str]) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    // target/debug/deps/rdma-123 and target/debug/examples.
    let built = here.ancestors().nth(2).unwrap().join("examples").join(file);
    let modified = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified());
    let age = modified(&built).unwrap_or(SystemTime::UNIX_EPOCH);
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    for source in sources.iter().map(|source| package.join(source)) {
        assert!(
            modified(&source).unwrap() <= age,
            "{} is missing or old: run cargo build -p {} --examples",
            built.display(),
            env!("CARGO_PKG_NAME")
        );
    }
    built
}
