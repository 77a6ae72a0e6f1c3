//! Names, links and lists of directories.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Error;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use fuse::Errno;
use rustix::fs::{CWD, RenameFlags};

use super::memory::BLOCKS;
use super::mounted::Mounted;

/// What a call failed with.
fn failed<T: std::fmt::Debug>(result: Result<T, Error>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

pub(crate) fn names_that_are_there_and_are_not_get_their_errors() {
    let mounted = Mounted::new();
    let [there, absent, folder] = ["there", "absent", "folder"].map(|name| mounted.path(name));
    fs::write(&there, b"").unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("in"), b"").unwrap();
    assert_eq!(failed(fs::read(&absent)), Errno::NOENT);
    assert_eq!(failed(fs::remove_file(&absent)), Errno::NOENT);
    assert_eq!(failed(File::create_new(&there)), Errno::EXIST);
    assert_eq!(failed(fs::create_dir(&there)), Errno::EXIST);
    assert_eq!(failed(fs::read(there.join("in"))), Errno::NOTDIR);
    assert_eq!(failed(fs::remove_dir(&folder)), Errno::NOTEMPTY);
    assert_eq!(failed(fs::read(&folder)), Errno::ISDIR);
    let longest = mounted.path(&"n".repeat(255));
    fs::write(&longest, b"long").unwrap();
    assert_eq!(fs::read(&longest).unwrap(), b"long");
    let longer = mounted.path(&"n".repeat(256));
    assert_eq!(failed(fs::write(&longer, b"")), Errno::NAMETOOLONG);
    assert_eq!(failed(fs::create_dir(&longer)), Errno::NAMETOOLONG);
    assert_eq!(failed(fs::rename(&there, &longer)), Errno::NAMETOOLONG);
    let before = mounted.connection.refusals().unsupported;
    let flags = rustix::fs::ioctl_getflags(File::open(&there).unwrap());
    assert_eq!(flags.unwrap_err(), Errno::NOTTY, "the transport answers it");
    assert_eq!(mounted.connection.refusals().unsupported, before + 1);
}

pub(crate) fn a_rename_replaces_exchanges_or_refuses() {
    let mounted = Mounted::new();
    let [one, other, folder] = ["one", "other", "folder"].map(|name| mounted.path(name));
    let write = || [(&one, "1"), (&other, "2")].map(|(path, text)| fs::write(path, text).unwrap());
    let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &other, flags);
    let read = |path: &Path| fs::read_to_string(path).ok();
    write();
    fs::rename(&one, &other).unwrap();
    assert_eq!((read(&one), read(&other)), (None, Some("1".to_owned())));
    write();
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (read(&one), read(&other)),
        (Some("2".to_owned()), Some("1".to_owned()))
    );
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(Errno::INVAL));
    fs::create_dir(&folder).unwrap();
    fs::rename(&one, folder.join("moved")).unwrap();
    assert_eq!(read(&folder.join("moved")), Some("2".to_owned()));
    fs::rename(&folder, &one).unwrap();
    assert_eq!(read(&one.join("moved")), Some("2".to_owned()));
}

pub(crate) fn links_lead_where_they_were_made() {
    let mounted = Mounted::new();
    let [file, soft, hard] = ["file", "soft", "hard"].map(|name| mounted.path(name));
    fs::write(&file, b"content").unwrap();
    symlink("file", &soft).unwrap();
    fs::hard_link(&file, &hard).unwrap();
    assert_eq!(fs::read_link(&soft).unwrap(), Path::new("file"));
    assert_eq!(fs::read(&soft).unwrap(), b"content");
    assert!(fs::symlink_metadata(&soft).unwrap().is_symlink());
    let [file, hard] = [file, hard].map(|path| fs::metadata(path).unwrap());
    assert_eq!((file.ino(), file.nlink()), (hard.ino(), 2));
}

pub(crate) fn a_list_of_ten_thousand_names_is_complete() {
    let mounted = Mounted::new();
    let folder = mounted.path("folder");
    fs::create_dir(&folder).unwrap();
    let names: BTreeSet<String> = (0..10_000).map(|number| format!("name-{number}")).collect();
    for name in &names {
        File::create_new(folder.join(name)).unwrap();
    }
    // Twice: the kernel asks for lookups with the list at first, and for the bare list later.
    for _ in 0..2 {
        let entries = fs::read_dir(&folder).unwrap();
        let listed: Vec<_> = entries.map(|entry| entry.unwrap()).collect();
        assert!(
            listed
                .iter()
                .all(|entry| entry.file_type().unwrap().is_file())
        );
        assert_eq!(listed.len(), names.len(), "each name once");
        let listed = listed
            .iter()
            .map(|entry| entry.file_name().into_string().unwrap());
        assert_eq!(listed.collect::<BTreeSet<_>>(), names);
    }
}

pub(crate) fn statfs_tells_what_the_file_system_says() {
    let mounted = Mounted::new();
    let status = rustix::fs::statvfs(mounted.folder()).unwrap();
    assert_eq!((status.f_blocks, status.f_bfree), (BLOCKS, BLOCKS / 2));
    assert_eq!((status.f_bavail, status.f_frsize), (BLOCKS / 4, 4096));
    assert_eq!(status.f_namemax, 255);
}
