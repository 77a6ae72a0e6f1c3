//! The programs that a verb starts: their environment, and their end as that of the verb.

use std::env;
use std::ffi::OsStr;
use std::process::{Command, ExitCode, ExitStatus};

/// What cargo says about the package that it runs, which is this one. A cargo below must not see it: build scripts that
/// read these variables, ring's for one, would be built again each time, with everything that depends on them.
const ABOUT_THIS_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// A command that knows nothing of the cargo that started this program.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ABOUT_THIS_PACKAGE
            .iter()
            .any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// The exit status of a verb that is over when a program is.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn a_child_does_not_learn_of_this_package() {
        // Cargo sets these for its tests as for `cargo xtask`.
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
        let output = command("env").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            !text.contains("CARGO_PKG_") && !text.contains("CARGO_MANIFEST_"),
            "{text}"
        );
        assert!(text.contains("PATH="));
    }
}
