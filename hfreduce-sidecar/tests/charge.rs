//! Trap T28: whose memory inputs and results are, as the kernel's cgroups count it. Needs root and a memory controller:
//! where they are not, the test counts as ignored, with the reason.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use gang::processes::{Sidecars, loopback};
use gang::{PATIENCE, sum, wait_until};
use sim::run_tests;

/// Where the memory controller is: of version 1, and of 2.
const CONTROLLERS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
/// Of the input of each rank, and of the result of each node.
const BYTES: u64 = 32 << 20;

fn main() -> ExitCode {
    let name = "inputs_and_results_are_charged_to_the_sidecar_whoever_writes_them_first".to_owned();
    let test = inputs_and_results_are_charged_to_the_sidecar_whoever_writes_them_first as fn();
    run_tests([(name, Cgroup::new("tried").map(|_tried| test))])
}

/// A cgroup of this process's making, which ends with the value when nobody is in it any more.
struct Cgroup {
    path: PathBuf,
    root: PathBuf,
}

impl Cgroup {
    fn new(name: &str) -> Result<Self, String> {
        let name = format!("fireflyer-test-{}-{name}", std::process::id());
        let mut why = "there is no memory controller".to_owned();
        for root in CONTROLLERS.map(PathBuf::from) {
            let path = root.join(&name);
            match fs::create_dir(&path) {
                Ok(()) => {
                    let cgroup = Self { path, root };
                    if cgroup.stat().is_some() {
                        return Ok(cgroup);
                    }
                }
                Err(error) => why = format!("{}: {error}", path.display()),
            }
        }
        Err(why)
    }

    /// Bytes of shared memory that are charged to it; none if it does not count them.
    fn stat(&self) -> Option<u64> {
        let text = fs::read_to_string(self.path.join("memory.stat")).ok()?;
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix("shmem ")?.parse().ok())
    }

    fn shared_memory(&self) -> u64 {
        self.stat().unwrap()
    }

    /// From now on what it touches first is charged here.
    fn take(&self, process: u32) {
        fs::write(self.path.join("cgroup.procs"), process.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Whoever is left goes back, or the cgroup would stay.
        let left = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for process in left.lines() {
            fs::write(self.root.join("cgroup.procs"), process).ok();
        }
        fs::remove_dir(&self.path).ok();
    }
}

fn inputs_and_results_are_charged_to_the_sidecar_whoever_writes_them_first() {
    let cgroup = |name| Cgroup::new(name).unwrap();
    let (trainer, of_sidecars) = (cgroup("trainer"), [cgroup("first"), cgroup("second")]);
    let sidecars = Sidecars::start(loopback(2), 1);
    for (node, cgroup) in of_sidecars.iter().enumerate() {
        cgroup.take(sidecars.process(node));
    }
    trainer.take(std::process::id());
    let clients = [0, 1].map(|node| sidecars.client(node, 0));
    let tickets = clients.each_ref().map(|client| {
        let mut input = client.buffer(BYTES as usize, PATIENCE).unwrap();
        input.fill(0);
        let call = sum(BYTES / 4);
        client.submit(call, Some(input), PATIENCE).unwrap()
    });
    let waited = clients.iter().zip(tickets);
    let outputs: Vec<_> = waited
        .map(|(client, ticket)| client.wait(ticket, PATIENCE).unwrap())
        .collect();
    for cgroup in &of_sidecars {
        // The kernel adds up what its processors have counted now and then.
        wait_until(|| cgroup.shared_memory() >= 2 * BYTES);
    }
    let charged = trainer.shared_memory();
    assert!(charged < BYTES / 8, "{charged} bytes are the trainer's");
    drop(outputs);
}
