//! Trap T3: what the compiler has made of the kernels in the program that ships. Needs `objdump` and an x86-64: where they
//! are not, the test counts as ignored, with the reason.
#![expect(clippy::unwrap_used, reason = "test harness")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};

use sim::run_tests;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hfreduce-sidecar");

fn main() -> ExitCode {
    let name = "kernels_prefetch_into_the_caches_and_never_past_them".to_owned();
    let run = match missing() {
        None => Ok(kernels_prefetch_into_the_caches_and_never_past_them as fn()),
        Some(why) => Err(why),
    };
    run_tests([(name, run)])
}

fn missing() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the instructions of this processor are not known to the test".to_owned());
    }
    let tried = Command::new("objdump")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    let missing = tried.is_err();
    missing.then(|| "there is no objdump; it comes with binutils".to_owned())
}

fn kernels_prefetch_into_the_caches_and_never_past_them() {
    let mut objdump = Command::new("objdump")
        .args(["--disassemble", "--demangle", "--no-show-raw-insn", PROGRAM])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut in_kernel, mut into_caches) = (false, 0);
    for line in BufReader::new(objdump.stdout.take().unwrap()).split(b'\n') {
        let line = line.unwrap();
        let line = String::from_utf8_lossy(&line);
        if line.ends_with(">:") {
            // Where nothing is inlined the instruction has a function of its own.
            let of_kernels = ["collective::kernels", "_mm_prefetch"];
            in_kernel = of_kernels.iter().any(|name| line.contains(name));
        } else if in_kernel {
            assert!(!line.contains("prefetchnta"), "{line}");
            into_caches += u64::from(line.contains("prefetcht"));
        }
    }
    assert!(objdump.wait().unwrap().success());
    assert!(into_caches > 0, "else this shows nothing");
}
