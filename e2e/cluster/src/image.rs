//! Container images without a container engine: an [`Image`] is a list of files and a
//! configuration, from which an archive that containerd imports is written here. Which images there
//! are, and their Containerfiles, is the business of `xtask`.

mod archive;
mod tar;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::digest;
use crate::error::{Error, ErrorContext, Result};
use crate::paths;
use crate::progress::StepOutcome;

pub use archive::write as write_archive;

/// The version of this clone's images.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Something that an image holds. Paths are absolute, as the container sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder; the parents of other entries need not be listed.
    Folder {
        /// Where it is.
        path: String,
        /// Its permission bits.
        mode: u32,
    },
    /// A copy of a file of this machine.
    File {
        /// Where it is.
        path: String,
        /// Where it comes from.
        source: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file with these words in it.
    Text {
        /// Where it is.
        path: String,
        /// All it holds.
        text: String,
    },
    /// A symbolic link.
    Link {
        /// Where it is.
        path: String,
        /// What it points to.
        target: String,
    },
}

/// How a container of the image starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// The full name: `localhost/fireflyer/operator:0.1.0`.
    pub reference: String,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Numeric, so that Kubernetes can see that it is not root.
    pub user: Option<u32>,
}

/// An image of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// How a container of it starts.
    pub config: ImageConfig,
    /// What it holds.
    pub entries: Vec<Entry>,
}

impl Image {
    /// The name between the last `/` and the tag: what its files are called.
    pub fn name(&self) -> &str {
        name(&self.config.reference)
    }

    /// Writes the archive into the cache, unless an archive of the same content is there.
    pub fn build(&self) -> Result<(PathBuf, StepOutcome)> {
        let folder = images_folder()?;
        let archive = folder.join(format!("{}-{}.tar", self.name(), self.key()?));
        if archive.exists() {
            return Ok((archive, StepOutcome::Cached));
        }
        let layer = folder.join(format!("{}.{}.layer", self.name(), std::process::id()));
        tar::write_layer(&layer, &self.entries)?;
        archive::write(&archive, &self.config, std::slice::from_ref(&layer))?;
        fs::remove_file(&layer).context(|| format!("failed to remove {}", layer.display()))?;
        forget_others(&archive, self.name())?;
        Ok((archive, StepOutcome::Built))
    }

    /// What the archive depends on, in few characters.
    fn key(&self) -> Result<String> {
        let mut content = format!("{:?}", self.config);
        for entry in &self.entries {
            content += &match entry {
                Entry::File { path, source, mode } => {
                    format!("\n{path} {mode:o} {}", digest::file(source)?)
                }
                Entry::Folder { .. } | Entry::Text { .. } | Entry::Link { .. } => {
                    format!("\n{entry:?}")
                }
            };
        }
        short_key(content.as_bytes())
    }
}

/// Sixteen digits of a digest: enough to separate the versions of one image.
pub fn short_key(content: &[u8]) -> Result<String> {
    let mut digest = digest::bytes(content)?;
    digest.truncate(16);
    Ok(digest)
}

/// Where archives are kept.
pub fn images_folder() -> Result<PathBuf> {
    let folder = paths::cache()?.join("images");
    fs::create_dir_all(&folder).context(|| format!("failed to make {}", folder.display()))?;
    Ok(folder)
}

/// Removes the older archives of an image, which nobody asks for again once its content has
/// changed.
pub fn forget_others(archive: &Path, name: &str) -> Result<()> {
    const KEY_DIGITS: usize = 16;
    let folder = images_folder()?;
    let entries =
        fs::read_dir(&folder).context(|| format!("failed to list {}", folder.display()))?;
    for path in entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path != archive)
    {
        let file = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let key = file
            .strip_prefix(name)
            .and_then(|tail| tail.strip_prefix('-')?.strip_suffix(".tar"));
        if key.is_some_and(|key| {
            key.len() == KEY_DIGITS && key.bytes().all(|b| b.is_ascii_hexdigit())
        }) {
            fs::remove_file(&path).context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// A name of ours with this clone's version: `localhost/fireflyer/NAME:VERSION`.
pub fn reference(name: &str) -> String {
    format!("localhost/fireflyer/{name}:{VERSION}")
}

/// The folder of our release programs, which `cargo xtask images` builds for an explicit target:
/// see there.
pub fn release_folder() -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| paths::repository().join("target"));
    Ok(target.join(host()?).join("release"))
}

/// A program of ours as the images hold it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let path = release_folder()?.join(name);
    if path.exists() {
        return Ok(path);
    }
    Err(Error::new(format!(
        "{} is not built: run `cargo xtask images`",
        path.display()
    )))
}

/// The target that rustc builds for by default.
pub fn host() -> Result<String> {
    let text = command::run(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| Error::new("`rustc -vV` names no host"))
}

/// busybox with all its commands, for jobs that only smoke.
pub fn busybox() -> Result<Image> {
    let program = busybox_program()?;
    let listed = command::run(Command::new(&program).arg("--list"))?;
    let mut entries = vec![
        Entry::File {
            path: "/bin/busybox".into(),
            source: program,
            mode: 0o755,
        },
        Entry::Folder {
            path: "/tmp".into(),
            mode: 0o1777,
        },
        Entry::Text {
            path: "/etc/passwd".into(),
            text: "root:x:0:0:root:/:/bin/sh\n".into(),
        },
    ];
    let commands = listed
        .lines()
        .filter(|name| !name.is_empty() && *name != "busybox");
    entries.extend(commands.map(|name| Entry::Link {
        path: format!("/bin/{name}"),
        target: "busybox".into(),
    }));
    let config = ImageConfig {
        reference: reference("busybox"),
        entrypoint: vec!["/bin/sh".into()],
        environment: vec!["PATH=/bin".into()],
        user: None,
    };
    Ok(Image { config, entries })
}

/// The image that holds a pod's namespaces open: a program that sleeps.
pub fn pause() -> Result<Image> {
    let source = busybox_program()?;
    let config = ImageConfig {
        reference: reference("pause"),
        entrypoint: vec!["/busybox".into(), "sleep".into(), "infinity".into()],
        environment: Vec::new(),
        user: Some(65_532),
    };
    let entries = vec![Entry::File {
        path: "/busybox".into(),
        source,
        mode: 0o755,
    }];
    Ok(Image { config, entries })
}

fn busybox_program() -> Result<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| Error::new("there is no busybox: install the package busybox-static"))
}

/// The name between the last `/` and the tag of a reference.
pub fn name(reference: &str) -> &str {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    last.split(':').next().unwrap_or(last)
}

/// `trainer` of `.../trainer-0123456789abcdef.tar`.
pub(crate) fn of_archive(archive: &Path) -> String {
    let stem = archive.file_stem().unwrap_or_default().to_string_lossy();
    let name = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    name.to_owned()
}
