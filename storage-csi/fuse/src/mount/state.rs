//! What the table of mounts and the kernel say of a folder.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Error, FILE_SYSTEM_TYPE};

/// The table of this process's mounts. Read whole: some 100 bytes a mount.
const TABLE: &str = "/proc/self/mountinfo";

/// What is mounted at a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountState {
    /// Nothing.
    Absent,
    /// A file system of ours, whose process answers.
    Live {
        /// The source that it was mounted with.
        source: String,
    },
    /// A file system of ours that nobody can answer for any more: detach it.
    Dead {
        /// The source that it was mounted with.
        source: String,
    },
    /// Somebody else's.
    Foreign {
        /// What the table of mounts calls it.
        file_system_type: String,
    },
}

/// A line of the table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where, as the kernel names it.
    pub folder: PathBuf,
    /// The file system's number, major and minor, which all its mounts have.
    pub device: (u32, u32),
    /// What the kernel calls the file system.
    pub file_system_type: String,
    /// The source that it was mounted with.
    pub source: String,
    /// Nobody writes through this mount, or nobody to the file system.
    pub is_read_only: bool,
}

impl MountEntry {
    /// Whether a process of ours serves it, or served it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.file_system_type == FILE_SYSTEM_TYPE
    }
}

/// The table of mounts, in the order in which they were made. Nobody is asked, so that this never
/// waits; a mount of ours in it may be dead.
pub fn table() -> Result<Vec<MountEntry>, Error> {
    let table = fs::read(TABLE).map_err(|source| Error::State {
        folder: PathBuf::from("/"),
        doing: "the table of mounts",
        source,
    })?;
    Ok(entries(&table).collect())
}

/// What is mounted last at a folder. A mount of ours is asked, so that this waits while its process
/// is busy or being replaced. That process itself must not ask: if it is killed while it waits for
/// its own answer, neither it nor the mount ever ends.
pub fn state(folder: &Path) -> Result<MountState, Error> {
    let failed = |doing: &'static str| {
        move |source: std::io::Error| Error::State {
            folder: folder.to_owned(),
            doing,
            source,
        }
    };
    let place = place(folder).map_err(failed("where it is"))?;
    let Some(place) = place else {
        return Ok(MountState::Absent);
    };
    let table = fs::read(TABLE).map_err(failed("the table of mounts"))?;
    let Some(mounted) = last_at(&table, &place) else {
        return Ok(MountState::Absent);
    };
    if !mounted.is_ours() {
        return Ok(MountState::Foreign {
            file_system_type: mounted.file_system_type,
        });
    }
    let source = mounted.source;
    match rustix::fs::statfs(&place) {
        Ok(_) => Ok(MountState::Live { source }),
        Err(Errno::NOTCONN | Errno::CONNABORTED) => Ok(MountState::Dead { source }),
        Err(errno) => Err(failed("its file system")(errno.into())),
    }
}

/// The folder as the table names it. The folder itself is not looked at: what is mounted there may
/// not answer. None where it cannot be.
fn place(folder: &Path) -> Result<Option<PathBuf>, std::io::Error> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        // The root, or something that ends in `..`.
        return fs::canonicalize(folder).map(Some);
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last line for a place: it hides those before.
fn last_at(table: &[u8], place: &Path) -> Option<MountEntry> {
    entries(table).filter(|entry| entry.folder == place).last()
}

fn entries(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(entry)
}

/// None where a line is not as the kernel writes it.
fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (major, minor) = str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let folder = unescape(fields.nth(1)?);
    let of_mount = fields.next()?;
    // A dash ends the optional fields.
    fields.find(|field| field == b"-")?;
    let mut text = || {
        let field = fields.next().map(unescape)?;
        Some(String::from_utf8_lossy(&field).into_owned())
    };
    let (file_system_type, source) = (text()?, text()?);
    let of_file_system = fields.next()?;
    // Each list begins with one of the two.
    let is_read_only =
        |options: &[u8]| options.split(|byte| *byte == b',').next() == Some(b"ro".as_slice());
    Some(MountEntry {
        folder: PathBuf::from(OsStr::from_bytes(&folder)),
        device,
        file_system_type,
        source,
        is_read_only: is_read_only(of_mount) || is_read_only(of_file_system),
    })
}

/// The kernel writes blanks and backslashes as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let code = match after {
            [a, b, c, ..] if *first == b'\\' => octal([*a, *b, *c]),
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

fn octal(digits: [u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0u8, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        number.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
22 1 0:21 / / rw,relatime - ext4 /dev/root rw
40 22 0:50 / /mnt/a\\040b rw,nosuid shared:7 master:1 - fuse.fireflyer volume\\0341 rw,user_id=0
41 22 0:51 / /mnt/c rw - tmpfs tmpfs rw
42 22 0:52 / /mnt/c rw - fuse.fireflyer over rw
43 22 0:53 / /mnt/broken
";

    fn at(place: &str) -> Option<(String, String)> {
        last_at(LINES.as_bytes(), Path::new(place))
            .map(|mounted| (mounted.file_system_type, mounted.source))
    }

    #[test]
    fn a_mount_is_found_by_its_whole_unescaped_name() {
        let found = |kind: &str, source: &str| Some((kind.to_owned(), source.to_owned()));
        assert_eq!(at("/mnt/a b"), found(FILE_SYSTEM_TYPE, "volume\u{1c}1"));
        assert_eq!(at("/"), found("ext4", "/dev/root"));
        for absent in ["/mnt", "/mnt/a", "/mnt/a\\040b", "/mnt/broken"] {
            assert_eq!(at(absent), None, "{absent}");
        }
    }

    #[test]
    fn the_mount_on_top_counts() {
        assert_eq!(
            at("/mnt/c"),
            Some((FILE_SYSTEM_TYPE.to_owned(), "over".to_owned()))
        );
    }

    #[test]
    fn mounts_of_one_file_system_have_its_number() {
        let device = |place| last_at(LINES.as_bytes(), Path::new(place)).map(|it| it.device);
        assert_eq!(device("/mnt/a b"), Some((0, 50)));
        assert_eq!(
            entries(b"1 1 0;1 / /a rw - fuse.fireflyer a rw\n").count(),
            0
        );
    }

    #[test]
    fn a_mount_or_its_file_system_is_read_only() {
        let lines = b"1 1 0:1 / /a ro,nosuid - fuse.fireflyer a rw\n\
            2 1 0:1 / /b rw,nosuid - fuse.fireflyer a ro,user_id=0\n\
            3 1 0:1 / /c rw,ro - fuse.fireflyer a rw,roving\n";
        let read_only: Vec<bool> = entries(lines).map(|entry| entry.is_read_only).collect();
        assert_eq!(read_only, [true, true, false]);
    }

    #[test]
    fn what_is_no_escape_stays() {
        for (field, text) in [
            (&br"\134"[..], &br"\"[..]),
            (br"\13", br"\13"),
            (br"\999", br"\999"),
            (br"\777", br"\777"),
            (br"a\040", b"a "),
            (b"", b""),
        ] {
            assert_eq!(unescape(field), text);
        }
    }
}
