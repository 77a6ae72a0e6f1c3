//! What the kernel keeps, and what makes it look again.

use std::fs::{self, File};
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use fuse::init::ConnectionOptions;
use fuse::notification::Notification;
use fuse::request::{FileName, Inode};

use super::memory::Memory;
use super::mounted::{Folder, Mounted};

const LONG: Duration = Duration::from_secs(3600);

pub(crate) fn a_notification_makes_a_change_elsewhere_visible() {
    let mounted = Mounted::keeping(LONG);
    // Without stat(2), which asks for the time of access after each read.
    let read = |name: &str| {
        let mut content = [0; 16];
        let count = File::open(mounted.path(name)).unwrap().read(&mut content);
        String::from_utf8_lossy(&content[..count.unwrap()]).into_owned()
    };
    let notify = |notification| mounted.connection.notify(&notification).unwrap();
    let inode = mounted.memory.put("file", b"old");
    assert_eq!(read("file"), "old");
    mounted.memory.put("file", b"newer");
    assert_eq!(read("file"), "old", "the kernel keeps it");
    notify(Notification::InvalidateInode {
        inode,
        offset: 0,
        length: None,
    });
    assert_eq!(read("file"), "newer");
    mounted.memory.put("another", b"other");
    assert_eq!(read("another"), "other");
    mounted.memory.exchange("file", "another");
    assert_eq!(read("file"), "newer", "the kernel keeps the name");
    assert!(!mounted.path("later").exists());
    mounted.memory.put("later", b"there");
    assert!(
        !mounted.path("later").exists(),
        "it keeps that there is none"
    );
    for name in [&b"file"[..], b"another", b"later", b"unknown"] {
        let (parent, name) = (Inode::ROOT, FileName::new(name).unwrap());
        notify(Notification::InvalidateName { parent, name });
    }
    let all = ["file", "another", "later"].map(read);
    assert_eq!(all, ["other", "newer", "there"]);
    let unknown = Inode(1 << 40);
    notify(Notification::InvalidateInode {
        inode: unknown,
        offset: 0,
        length: Some(1),
    });
}

pub(crate) fn a_file_that_is_opened_again_shows_a_change_elsewhere() {
    let options = ConnectionOptions {
        drops_changed_content: true,
        ..ConnectionOptions::default()
    };
    let (folder, connection) = Folder::mount_with(&options);
    let memory = Arc::new(Memory::new(Duration::ZERO));
    let mounted = Mounted::serving(folder, connection, memory, |memory, request, replier| {
        memory.handle(&request, replier);
    });
    let read = || fs::read_to_string(mounted.path("file")).unwrap();
    for content in ["one", "two", "longer", "a"] {
        mounted.memory.put("file", content.as_bytes());
        assert_eq!(read(), content);
    }
}
