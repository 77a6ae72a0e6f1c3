//! What the release of 2026-11-22 (commit e7d0cdb1) stored, asked and answered. Services and mounts of that release run
//! beside those of this one: this one reads all of it, and what it writes has each of those fields.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

use metadata::{
    AttributeChange, Errno, InodeNumber, ListedName, MetaAnswer, MetaOperation, MetaReply,
    MetaRequest, MountId, NewNode, OpenedFile, RenameRule, Trim, Written,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fixture::{
    DONE, LAYOUT, MOUNT, SETTINGS, Tree, attributes, handle, name, reading, writing,
};
use crate::store::Store;

const STORE: &str = include_str!("kept/store.txt");
const REQUESTS: &str = include_str!("kept/requests.txt");
const ANSWERS: &str = include_str!("kept/answers.txt");

/// A file system with each kind of record, and a tree over it.
fn full() -> Tree {
    let mut tree = Tree::new();
    let root = tree.root;
    let folder = tree.directory(root, "folder");
    tree.directory(folder, "below");
    let target = b"folder/file".to_vec();
    attributes(tree.make(root, "link", NewNode::Symlink { target }));
    let device = 0x103;
    attributes(tree.make(root, "null", NewNode::CharacterDevice { device }));
    let file = tree.file(folder, "file");
    tree.open(file, writing(1, 9 << 20));
    let written = Written {
        length: 5 << 20,
        cut: 0,
        mtime_ns: 77,
    };
    let handle = handle(1);
    let sync = MetaOperation::Sync {
        inode: file,
        handle,
        written,
    };
    tree.call(sync).unwrap();
    let change = AttributeChange {
        size: Some(1 << 20),
        ..AttributeChange::default()
    };
    tree.set(file, change).unwrap();
    let gone = tree.file(root, "gone");
    tree.open(gone, writing(2, 3 << 20));
    assert_eq!(tree.unlink(root, "gone"), DONE);
    let waste = tree.file(root, "waste");
    tree.open(waste, writing(3, 3 << 20));
    assert_eq!(tree.unlink(root, "waste"), DONE);
    let close = MetaOperation::Close {
        inode: waste,
        handle: self::handle(3),
        written: None,
    };
    assert_eq!(tree.call(close), DONE);
    tree
}

/// A line for each key: its letters, its other bytes in hexadecimal, and its value.
fn lines(store: &Store) -> String {
    let mut text = String::new();
    for (key, value) in store.all() {
        let (letters, rest) = key.split_at(2);
        write!(text, "{} ", String::from_utf8_lossy(letters)).unwrap();
        for byte in rest {
            write!(text, "{byte:02x}").unwrap();
        }
        writeln!(text, " {}", String::from_utf8_lossy(value)).unwrap();
    }
    text
}

fn rows(text: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let row = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let mut part = || parts.next().unwrap();
        let (letters, rest, value) = (part(), part(), part());
        let byte = |at: usize| u8::from_str_radix(&rest[at..at + 2], 16).unwrap();
        let rest = (0..rest.len()).step_by(2).map(byte);
        (letters.bytes().chain(rest).collect(), value.into())
    };
    text.lines().map(row).collect()
}

/// Fails unless the new value has each field of the old one, with its value.
fn includes(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => old
            .iter()
            .all(|(field, old)| new.get(field).is_some_and(|new| includes(new, old))),
        _ => new == old,
    }
}

#[test]
fn what_an_earlier_release_stored_is_there_and_can_be_ended() {
    let mut tree = full();
    tree.store = Store::from_rows(rows(STORE));
    let root = tree.root;
    let folder = attributes(tree.lookup(root, "folder"));
    assert_eq!((folder.links, folder.layout), (3, Some(LAYOUT)));
    let file = attributes(tree.lookup(folder.inode, "file"));
    assert_eq!((file.size, file.cut, file.uid), (1 << 20, 1, 7));
    let link = attributes(tree.lookup(root, "link")).inode;
    let target = tree.call(MetaOperation::ReadLink { inode: link });
    assert_eq!(target, Ok(MetaReply::Target(b"folder/file".to_vec())));
    assert_eq!(attributes(tree.lookup(root, "null")).device, 0x103);
    assert_eq!((tree.usage().bytes, tree.usage().inodes), (1 << 20, 6));

    // The truncation is not over, and ends.
    let inode = file.inode;
    let trimmed = MetaOperation::Trimmed {
        inode,
        mount: MOUNT,
        cut: 1,
    };
    assert_eq!(tree.call(trimmed), DONE);
    let close = MetaOperation::Close {
        inode,
        handle: handle(1),
        written: None,
    };
    assert_eq!(tree.call(close), DONE);

    // Each file is collected, also the one that a mount had open which ends.
    assert_eq!(tree.collect_all().into_values().collect::<Vec<_>>(), [3]);
    let list = MetaOperation::ListHandles {
        mount: MOUNT,
        after: None,
        limit: 9,
    };
    let Ok(MetaReply::Handles(handles)) = tree.call(list) else {
        panic!("no handles");
    };
    let &[(gone, 2)] = handles.as_slice() else {
        panic!("{handles:?}");
    };
    let close = MetaOperation::Close {
        inode: gone,
        handle: handle(2),
        written: None,
    };
    assert_eq!(tree.call(close), DONE);
    assert_eq!(tree.collect_all().into_values().collect::<Vec<_>>(), [3]);
}

#[test]
fn what_this_release_stores_has_each_field_of_the_earlier_one() {
    let tree = full();
    let (now, kept) = (rows(&lines(&tree.store)), rows(STORE));
    let json = |value: &[u8]| serde_json::from_slice::<Value>(value);
    for (key, old) in &kept {
        let new = now.get(key);
        let new = new.unwrap_or_else(|| panic!("{}\n{}", key.escape_ascii(), lines(&tree.store)));
        let is_same = match (json(new), json(old)) {
            (Ok(new), Ok(old)) => includes(&new, &old),
            _ => new == old,
        };
        assert!(is_same, "{}\n{}", key.escape_ascii(), lines(&tree.store));
    }
    assert!(!kept.is_empty(), "{}", lines(&tree.store));
}

/// Each kind of request.
fn requests(tree: &mut Tree) -> Vec<MetaRequest> {
    let (parent, inode, name) = (tree.root, InodeNumber(9), name("n"));
    let (handle, written) = (
        handle(4),
        Written {
            length: 5,
            cut: 2,
            mtime_ns: -3,
        },
    );
    let make = |node, open| MetaOperation::Make {
        parent,
        name: name.clone(),
        node,
        mode: 0o644,
        uid: 7,
        gid: 8,
        open,
    };
    let operations = [
        MetaOperation::Lookup {
            parent,
            name: name.clone(),
        },
        MetaOperation::GetAttributes { inode },
        MetaOperation::SetAttributes {
            inode,
            change: AttributeChange {
                mode: Some(1),
                uid: Some(2),
                gid: Some(3),
                size: Some(4),
                atime_ns: Some(5),
                mtime_ns: None,
            },
        },
        make(NewNode::File, Some(writing(4, 1 << 20))),
        make(NewNode::Directory, None),
        make(NewNode::Symlink { target: vec![b'x'] }, None),
        make(NewNode::Fifo, None),
        make(NewNode::Socket, None),
        make(NewNode::CharacterDevice { device: 1 }, None),
        make(NewNode::BlockDevice { device: 2 }, None),
        MetaOperation::ReadLink { inode },
        MetaOperation::Link {
            inode,
            parent,
            name: name.clone(),
        },
        MetaOperation::Unlink {
            parent,
            name: name.clone(),
        },
        MetaOperation::RemoveDirectory {
            parent,
            name: name.clone(),
        },
        MetaOperation::Rename {
            parent,
            name: name.clone(),
            new_parent: inode,
            new_name: name.clone(),
            rule: RenameRule::NoReplace,
        },
        MetaOperation::ReadDirectory {
            inode,
            after: Some(name.clone()),
            limit: 100,
            with_attributes: true,
        },
        MetaOperation::Open {
            inode,
            open: reading(4),
        },
        MetaOperation::Extend {
            inode,
            handle,
            cut: 2,
            bound: 1 << 21,
        },
        MetaOperation::Sync {
            inode,
            handle,
            written,
        },
        MetaOperation::Close {
            inode,
            handle,
            written: Some(written),
        },
        MetaOperation::Trimmed {
            inode,
            mount: MOUNT,
            cut: 2,
        },
        MetaOperation::TakeTrim {
            inode,
            from: MOUNT,
            to: MountId(2),
        },
        MetaOperation::EndMount { mount: MOUNT },
        MetaOperation::ListHandles {
            mount: MOUNT,
            after: Some((inode, 4)),
            limit: 256,
        },
        MetaOperation::NextMount { after: MOUNT },
        MetaOperation::MakeVolume {
            name: "v".to_owned(),
            settings: SETTINGS,
            layout: LAYOUT,
            most_promised: 1 << 40,
        },
        MetaOperation::DeleteVolume {
            name: "v".to_owned(),
        },
        MetaOperation::GetVolume {
            name: "v".to_owned(),
        },
        MetaOperation::GetPromised,
    ];
    let requests = operations.into_iter();
    requests.map(|one| tree.request(MOUNT, one)).collect()
}

/// Each kind of answer, and each refusal that says something.
fn answers(tree: &mut Tree) -> Vec<MetaAnswer> {
    let root = tree.root;
    let attributes = tree.get(root);
    let trim = Some(Trim {
        cut: 2,
        from: 5,
        reach: 1 << 20,
        layout: LAYOUT,
    });
    let volume = tree.call(MetaOperation::GetVolume {
        name: "one".to_owned(),
    });
    vec![
        DONE,
        Ok(MetaReply::Attributes(attributes.clone())),
        Ok(MetaReply::Changed {
            attributes: attributes.clone(),
            trim,
        }),
        Ok(MetaReply::Opened(OpenedFile {
            attributes: attributes.clone(),
            bound: Some(7),
            trim,
            is_new: true,
        })),
        Ok(MetaReply::Target(vec![b'x'])),
        Ok(MetaReply::Names(vec![ListedName {
            name: name("n"),
            inode: root,
            kind: attributes.kind,
            attributes: Some(attributes),
        }])),
        Ok(MetaReply::Extent {
            size: 1,
            cut: 2,
            bound: Some(3),
        }),
        Ok(MetaReply::Trim(trim)),
        Ok(MetaReply::Handles(vec![(root, 4)])),
        Ok(MetaReply::Mount(Some(MOUNT))),
        Ok(MetaReply::More(true)),
        volume,
        Ok(MetaReply::Promised { bytes: 9 }),
        Err(Errno::NotFound),
        Err(Errno::Cut {
            cut: 1,
            size: 2,
            bound: 3,
            layout: LAYOUT,
        }),
        Err(Errno::Damaged {
            key: "mi".to_owned(),
        }),
    ]
}

/// Both releases read these values alike.
fn are_read_alike<T>(values: &[T], kept: &str)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let text = |value: &T| serde_json::to_string(value).unwrap();
    let now = values.iter().map(text).collect::<Vec<_>>().join("\n");
    assert_eq!(kept.lines().count(), values.len(), "{now}");
    for (value, line) in values.iter().zip(kept.lines()) {
        assert_eq!(serde_json::from_str::<T>(line).unwrap(), *value);
        let old = serde_json::from_str(line).unwrap();
        assert!(includes(&json!(value), &old), "{line}\n{now}");
    }
}

#[test]
fn each_request_and_answer_reads_as_an_earlier_release_wrote_it() {
    let mut tree = Tree::new();
    are_read_alike(&requests(&mut tree), REQUESTS);
    are_read_alike(&answers(&mut tree), ANSWERS);
}
