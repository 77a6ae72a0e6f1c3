//! Volumes, numbers of inodes, and what conflicts with what.

use metadata::{
    Changes, Errno, Given, INODE_BLOCK, InodeNumber, MetaAnswer, MetaOperation, MetaReply, NewNode,
    NextStep, RenameRule, VolumeSettings, allocate, step,
};

use crate::fixture::{DONE, LAYOUT, MOUNT, SETTINGS, Tree, name, run, writing};
use crate::store::{Snapshot, Store};

fn make(name: &str, bytes: u64, most_promised: u64) -> MetaOperation {
    MetaOperation::MakeVolume {
        name: name.to_owned(),
        settings: VolumeSettings { bytes, ..SETTINGS },
        layout: LAYOUT,
        most_promised,
    }
}

#[test]
fn a_volume_is_made_and_deleted_as_often_as_somebody_asks() {
    let mut tree = Tree::new();
    let made = tree.call(make("two", 10, u64::MAX));
    assert!(matches!(made, Ok(MetaReply::Volume(_))));
    assert_eq!(tree.call(make("two", 10, u64::MAX)), made);
    assert_eq!(tree.call(make("two", 11, u64::MAX)), Err(Errno::Exists));
    let delete = MetaOperation::DeleteVolume {
        name: "two".to_owned(),
    };
    assert_eq!(tree.call(delete.clone()), DONE);
    assert_eq!(tree.call(delete), DONE);
    let name = "two".to_owned();
    let gone = tree.call(MetaOperation::GetVolume { name });
    assert_eq!(gone, Err(Errno::NotFound));
}

#[test]
fn volumes_promise_no_more_than_there_is() {
    let mut tree = Tree::new();
    let there = SETTINGS.bytes + 100;
    assert!(tree.call(make("two", 100, there)).is_ok());
    assert_eq!(tree.call(make("three", 1, there)), Err(Errno::NoSpace));
    let promised = MetaReply::Promised { bytes: there };
    assert_eq!(tree.call(MetaOperation::GetPromised), Ok(promised));
    for bad in ["", "a b", &"a".repeat(129)] {
        assert_eq!(tree.call(make(bad, 1, u64::MAX)), Err(Errno::Invalid));
    }
}

/// META-7.
#[test]
fn nothing_is_left_of_a_deleted_volume() {
    let mut tree = Tree::new();
    let root = tree.root;
    let mut at = root;
    for depth in 0..4 {
        at = tree.directory(at, "directory");
        for number in 0..20 {
            let file = tree.file(at, &format!("file {number}"));
            tree.link(file, root, &format!("link {depth} {number}"))
                .unwrap();
            let open = writing(1, 100);
            tree.open(file, open);
            tree.call(MetaOperation::Close {
                inode: file,
                handle: open.handle,
                written: None,
            })
            .unwrap();
        }
    }
    let target = b"x".to_vec();
    tree.make(at, "link", NewNode::Symlink { target }).unwrap();
    let name = "one".to_owned();
    assert_eq!(tree.call(MetaOperation::DeleteVolume { name }), DONE);
    assert_eq!(tree.make(root, "new", NewNode::File), Err(Errno::Stale));
    assert_eq!(tree.collect_all().len(), 80);
    while tree.call(MetaOperation::EndMount { mount: MOUNT }) == Ok(MetaReply::More(true)) {}
    let left: Vec<_> = tree.store.all().map(|(key, _)| &key[..2]).collect();
    assert_eq!(left, [b"mm", b"mp"]);
}

#[test]
fn blocks_of_numbers_do_not_overlap() {
    let mut store = Store::default();
    let mut take = |meanwhile: bool| {
        let mut snapshot = store.snapshot();
        let NextStep::Commit(changes, Ok(first)) = run(&mut snapshot, allocate) else {
            panic!("there are numbers");
        };
        if meanwhile {
            let mut other = store.snapshot();
            let NextStep::Commit(changes, _) = run(&mut other, allocate) else {
                panic!("there are numbers");
            };
            assert!(store.commit(&other, &changes));
        }
        store.commit(&snapshot, &changes).then_some(first.0)
    };
    let taken = [take(false), take(true), take(false)];
    assert_eq!(taken, [Some(INODE_BLOCK), None, Some(3 * INODE_BLOCK)]);
}

/// An operation that is ready to commit.
struct Ready {
    snapshot: Snapshot,
    changes: Changes,
}

impl Tree {
    fn ready(&mut self, operation: MetaOperation) -> Ready {
        let request = self.request(MOUNT, operation);
        let given: Given = self.given();
        let mut snapshot = self.store.snapshot();
        match run(&mut snapshot, |seen| step(&request, &given, seen)) {
            NextStep::Commit(changes, _) => Ready { snapshot, changes },
            other => panic!("{other:?}"),
        }
    }

    /// Whether the second can commit after the first.
    fn both(&mut self, one: MetaOperation, two: MetaOperation) -> bool {
        let (one, two) = (self.ready(one), self.ready(two));
        assert!(self.store.commit(&one.snapshot, &one.changes));
        self.store.commit(&two.snapshot, &two.changes)
    }
}

fn make_in(parent: InodeNumber, called: &str) -> MetaOperation {
    MetaOperation::Make {
        parent,
        name: name(called),
        node: NewNode::File,
        mode: 0,
        uid: 0,
        gid: 0,
        open: None,
    }
}

/// META-1.
#[test]
fn who_makes_names_in_one_directory_does_not_conflict_but_with_its_removal() {
    let mut tree = Tree::new();
    let root = tree.root;
    let directory = tree.directory(root, "directory");
    tree.file(directory, "old");
    assert!(tree.both(make_in(directory, "one"), make_in(directory, "two")));
    let unlink = |called| MetaOperation::Unlink {
        parent: directory,
        name: name(called),
    };
    assert!(tree.both(unlink("one"), make_in(directory, "three")));
    assert!(!tree.both(make_in(directory, "same"), make_in(directory, "same")));
    for called in ["old", "two", "three", "same"] {
        tree.call(unlink(called)).unwrap();
    }
    let remove = MetaOperation::RemoveDirectory {
        parent: root,
        name: name("directory"),
    };
    assert!(!tree.both(make_in(directory, "new"), remove.clone()));
    tree.call(unlink("new")).unwrap();
    assert!(!tree.both(remove, make_in(directory, "new")));
}

/// META-2.
#[test]
fn two_directories_do_not_move_into_each_other() {
    let mut tree = Tree::new();
    let root = tree.root;
    let (a, b) = (tree.directory(root, "a"), tree.directory(root, "b"));
    let below = tree.directory(b, "below");
    let rename = |called, new_parent| MetaOperation::Rename {
        parent: root,
        name: name(called),
        new_parent,
        new_name: name("moved"),
        rule: RenameRule::Replace,
    };
    assert!(!tree.both(rename("b", a), rename("a", below)));
}

#[test]
fn a_file_that_is_opened_meanwhile_is_not_collected() {
    let mut tree = Tree::new();
    let root = tree.root;
    let inode = tree.file(root, "file");
    let unlink = MetaOperation::Unlink {
        parent: root,
        name: name("file"),
    };
    let open = writing(1, 10);
    assert!(!tree.both(MetaOperation::Open { inode, open }, unlink.clone()));
    let other = writing(2, 10);
    assert!(!tree.both(unlink, MetaOperation::Open { inode, open: other }));
    let answer: MetaAnswer = tree.call(MetaOperation::GetAttributes { inode });
    assert!(answer.is_ok());
}
