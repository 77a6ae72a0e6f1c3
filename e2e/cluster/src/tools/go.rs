//! The Go that the programs are built with: which one is needed, and whether it is here.

use std::process::Command;

use crate::command;
use crate::error::{Error, Result};
use crate::prerequisites::found;

/// The version that a `go.mod` asks for: the line `go 1.2.3`.
pub(super) fn required(go_mod: &str) -> Result<&str> {
    let version = go_mod.lines().find_map(|line| line.strip_prefix("go "));
    version
        .map(str::trim)
        .ok_or_else(|| Error::new("go.mod has no line `go VERSION`"))
}

/// An error when there is no Go in the PATH, or only one that is older.
pub(super) fn check(required: &str) -> Result<()> {
    let wanted =
        format!("the cluster's programs are built with Go: install Go {required} or later");
    if !found("go") {
        return Err(Error::new(format!("{wanted}; there is none in the PATH")));
    }
    // Outside of any module, whose own wishes would be looked at first.
    let here = command::run(
        Command::new("go")
            .args(["env", "GOVERSION"])
            .current_dir("/")
            .env("GOTOOLCHAIN", "local"),
    )?;
    let here = here.trim();
    if is_enough(here, required) {
        return Ok(());
    }
    Err(Error::new(format!(
        "{wanted}; the one in the PATH is {here}"
    )))
}

/// Compares `go1.26.8` with `1.26.3`. What has no version is somebody's own build, and they know.
fn is_enough(here: &str, required: &str) -> bool {
    let Some(here) = here.strip_prefix("go") else {
        return true;
    };
    numbers(here) >= numbers(required)
}

/// The numbers up to the first that is none: a release candidate counts as its release.
fn numbers(version: &str) -> Vec<u32> {
    let digits = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_digit());
        part[..end.unwrap_or(part.len())].parse().ok()
    };
    version.split('.').map_while(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::{is_enough, required};

    #[test]
    fn an_older_go_is_not_enough_and_numbers_are_no_text() {
        for enough in ["go1.26.3", "go1.26.10", "go1.27rc1", "go2", "devel +abc"] {
            assert!(is_enough(enough, "1.26.3"), "{enough}");
        }
        for old in ["go1.26.2", "go1.26", "go1.9.9", "go1.25rc2"] {
            assert!(!is_enough(old, "1.26.3"), "{old}");
        }
        assert!(is_enough("go1.26.3-custom X:boringcrypto", "1.26.3"));
    }

    #[test]
    fn the_required_version_is_that_of_the_module() {
        let go_mod = "module m\n\ngo 1.26.3\n\nrequire (\n\tgo.etcd.io/etcd v3.0.0\n)\n";
        assert_eq!(required(go_mod).unwrap(), "1.26.3");
        assert!(required("module m\n").is_err());
    }
}
