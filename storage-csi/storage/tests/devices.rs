//! Block devices as targets: loop devices, where this machine has them. Elsewhere the tests count as ignored.

#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::panic,
    reason = "test harness"
)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use storage::disk::{DiskFound, look};
use tempfile::NamedTempFile;

const BYTES: u64 = 70 << 20;

/// A device over a file of zeros. It goes with this value.
struct LoopDevice {
    path: PathBuf,
    file: NamedTempFile,
}

impl LoopDevice {
    fn new() -> Result<Self, String> {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES).unwrap();
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show"]).arg(file.path());
        let output = attach
            .output()
            .map_err(|error| format!("there is no losetup: {error}"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!("no loop device: {why}"));
        }
        let path = String::from_utf8_lossy(&output.stdout).trim().into();
        Ok(Self { path, file })
    }

    fn refusal(&self) -> String {
        look(&self.path).unwrap_err().to_string()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detach = Command::new("losetup").arg("-d").arg(&self.path).status();
        assert!(detach.unwrap().success());
    }
}

fn a_blank_device_becomes_a_target_that_keeps_its_name(device: &LoopDevice) {
    let DiskFound::Empty(blank) = look(&device.path).unwrap() else {
        panic!("a blank device is taken for a target");
    };
    // Without a size it is all of the device.
    let disk = blank.format(0xabc, None).unwrap();
    let text = device.refusal();
    assert!(text.contains("another process uses it"), "{text}");
    drop(disk);
    let DiskFound::Target(disk) = look(&device.path).unwrap() else {
        panic!("a target is taken for a blank device");
    };
    assert_eq!(disk.uuid(), 0xabc);
    let (store, summary) = disk.recover().unwrap();
    assert_eq!((summary.chunks, summary.lost), (0, 0));
    let room = store.usage().blocks as u64 * (64 << 10);
    assert!(room <= BYTES && room > BYTES / 100 * 90, "{room}");
}

fn a_device_that_somebody_needs_is_refused(device: &LoopDevice) {
    // Where ext4 has its superblock.
    let disk = OpenOptions::new().write(true).open(&device.path).unwrap();
    disk.write_all_at(b"somebody's", 1024).unwrap();
    disk.sync_all().unwrap();
    drop(disk);
    let before = fs::read(device.file.path()).unwrap();
    let text = device.refusal();
    assert!(
        text.contains(
            "it is not empty. Wipe it (wipefs, blkdiscard) if nobody needs what is on it"
        ),
        "{text}"
    );
    assert!(
        fs::read(device.file.path()).unwrap() == before,
        "it was written to"
    );
}

type Test = (&'static str, fn(&LoopDevice));

const TESTS: [Test; 2] = [
    (
        "a_blank_device_becomes_a_target_that_keeps_its_name",
        a_blank_device_becomes_a_target_that_keeps_its_name,
    ),
    (
        "a_device_that_somebody_needs_is_refused",
        a_device_that_somebody_needs_is_refused,
    ),
];

fn main() -> ExitCode {
    sim::run_tests(TESTS.map(|(name, test)| {
        let device = LoopDevice::new();
        let run = device.map(|device| move || test(&device));
        (name.to_owned(), run)
    }))
}
