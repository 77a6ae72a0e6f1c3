//! Processes of a gang, which end with it however it ends, and the folder that they share.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// A process and its group, which end with this value.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) log: PathBuf,
}

impl Process {
    /// Starts it in a group of its own; what it says goes into `log`.
    pub(crate) fn start(command: &Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log).context("failed to make a log")?;
        let copy = file.try_clone().context("failed to share a log")?;
        // However this program ends, the processes end with it.
        let mut bound = Command::new("setpriv");
        bound
            .args(["--pdeathsig", "KILL"])
            .arg(command.get_program());
        bound.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(name, value),
                None => bound.env_remove(name),
            };
        }
        let child = bound
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .process_group(0)
            .spawn()
            .with_context(|| format!("failed to start {}", command.get_program().display()))?;
        Ok(Self { child, log })
    }

    /// The last words of its log.
    pub(crate) fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            // Less the frames of a backtrace without names.
            .filter(|line| !line.is_empty() && !line.ends_with("<unknown>"))
            .collect();
        let from = lines.len().saturating_sub(3);
        lines.get(from..).unwrap_or_default().join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The whole group: what it has started too. That nobody is left is as good.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("sh")
            .args(["-c", "kill -KILL -- \"$0\" 2>/dev/null", &group])
            .status();
        // A launcher may have left for a group of its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that ends with this value.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Result<Self> {
        static GANGS: AtomicU32 = AtomicU32::new(0);
        let gang = GANGS.fetch_add(1, Ordering::Relaxed);
        let name = format!("fireflyer-bench-{}-{gang}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).with_context(|| format!("failed to make {}", path.display()))?;
        Ok(Self { path })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("conductor.sock")
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is only room, in a folder that the system empties.
        let _ = fs::remove_dir_all(&self.path);
    }
}
