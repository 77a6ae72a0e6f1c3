//! Decides what a panic ends. Our programs unwind, so that a mount can answer one request with an
//! error and go on. Everything else of ours stops with the thread that panics: what it held may be
//! half changed, and nobody would do its work.

use std::panic;
use std::process;

/// Makes a panic on any thread end the process, after its message. Call it first in `main`.
pub fn end_process() {
    end_process_unless(|| false);
}

/// The same, but for a thread of which `is_survived` says, when it panics, that whoever runs it goes on.
pub fn end_process_unless(is_survived: fn() -> bool) {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !is_survived() {
            process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, ExitStatus, Stdio};
    use std::{env, thread};

    use super::*;

    const CASE: &str = "PANICS_CASE";
    const SIGABRT: i32 = 6;

    /// Runs the test below once more, in a process of its own that panics.
    fn ended(case: &str) -> ExitStatus {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args([
            "--exact",
            "panics::tests::a_panic_of_any_thread_ends_the_process",
        ]);
        child
            .env(CASE, case)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        child.status().unwrap()
    }

    #[test]
    fn a_panic_of_any_thread_ends_the_process() {
        match env::var(CASE).as_deref() {
            Ok("ended") => end_process(),
            Ok("survived") => {
                end_process_unless(|| thread::current().name() == Some("survived"));
            }
            Ok(_) | Err(_) => {
                assert_eq!(ended("ended").signal(), Some(SIGABRT));
                assert!(ended("survived").success());
                return;
            }
        }
        let survived = thread::Builder::new().name("survived".to_owned());
        let survived = survived.spawn(|| panic!("as a test wants it")).unwrap();
        assert!(survived.join().is_err());
    }
}
