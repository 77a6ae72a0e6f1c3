//! Open files: how long they live, and how long they are.

use metadata::{
    AttributeChange, Errno, HandleId, InodeNumber, MetaAnswer, MetaOperation, MetaReply, MountId,
    Trim, WantedHandle, Written,
};

use crate::fixture::{DONE, MOUNT, Tree, handle, reading, writing};

const OTHER: MountId = MountId(2);

fn other(number: u64, bound: u64) -> WantedHandle {
    let mount = OTHER;
    WantedHandle {
        handle: HandleId { mount, number },
        ..writing(number, bound)
    }
}

fn written(length: u64, cut: u64, mtime_ns: i64) -> Written {
    Written {
        length,
        cut,
        mtime_ns,
    }
}

impl Tree {
    fn close(
        &mut self,
        inode: InodeNumber,
        handle: HandleId,
        written: Option<Written>,
    ) -> MetaAnswer {
        self.call(MetaOperation::Close {
            inode,
            handle,
            written,
        })
    }

    fn sync(&mut self, inode: InodeNumber, handle: HandleId, written: Written) -> MetaAnswer {
        self.call(MetaOperation::Sync {
            inode,
            handle,
            written,
        })
    }

    fn extend(&mut self, inode: InodeNumber, handle: HandleId, cut: u64, bound: u64) -> MetaAnswer {
        self.call(MetaOperation::Extend {
            inode,
            handle,
            cut,
            bound,
        })
    }

    fn resize(&mut self, inode: InodeNumber, size: u64) -> Option<Trim> {
        let change = AttributeChange {
            size: Some(size),
            ..AttributeChange::default()
        };
        match self.set(inode, change) {
            Ok(MetaReply::Changed { trim, .. }) => trim,
            other => panic!("{other:?}"),
        }
    }

    fn trimmed(&mut self, inode: InodeNumber, trim: Option<Trim>) {
        let (mount, cut) = (MOUNT, trim.unwrap().cut);
        let done = self.call(MetaOperation::Trimmed { inode, mount, cut });
        assert_eq!(done, DONE);
    }
}

#[test]
fn an_open_file_outlives_its_name_and_its_chunks_go_with_the_last_handle() {
    let mut tree = Tree::new();
    let root = tree.root;
    let file = tree.file(root, "file");
    tree.open(file, writing(1, 3 << 20));
    tree.open(file, reading(2));
    assert_eq!(tree.unlink(root, "file"), DONE);
    assert_eq!(tree.get(file).links, 0);
    assert_eq!(tree.close(file, handle(1), Some(written(5, 0, 1))), DONE);
    assert_eq!(tree.usage().bytes, 5);
    assert_eq!(tree.garbage(), []);
    assert_eq!(tree.link(file, root, "back"), Err(Errno::NotFound));
    assert_eq!(tree.close(file, handle(2), None), DONE);
    assert_eq!(tree.garbage(), [file]);
    assert_eq!(
        tree.call(MetaOperation::GetAttributes { inode: file }),
        Err(Errno::Stale)
    );
    assert_eq!((tree.usage().bytes, tree.usage().inodes), (0, 0));
    assert_eq!(
        tree.collect_all().into_iter().collect::<Vec<_>>(),
        [(file, 3)]
    );
    assert_eq!(tree.store.count(b"mh") + tree.store.count(b"mo"), 0);
}

#[test]
fn a_file_that_nobody_could_write_is_gone_at_once() {
    let mut tree = Tree::new();
    tree.file(tree.root, "file");
    assert_eq!(tree.unlink(tree.root, "file"), DONE);
    assert_eq!(tree.garbage(), []);
    assert_eq!(tree.store.count(b"mi"), 1);
}

/// META-4.
#[test]
fn size_and_usage_are_exact_after_sync_and_close() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, writing(1, 100));
    tree.open(file, writing(2, 1000));
    assert_eq!(tree.get(file).size, 0);
    let synced = tree.sync(file, handle(1), written(80, 0, 5000));
    let (size, cut, bound) = (80, 0, Some(100));
    assert_eq!(synced, Ok(MetaReply::Extent { size, cut, bound }));
    assert_eq!((tree.get(file).size, tree.get(file).mtime_ns), (80, 5000));
    assert_eq!(
        tree.close(file, handle(2), Some(written(60, 0, 4000))),
        DONE
    );
    assert_eq!((tree.get(file).size, tree.get(file).mtime_ns), (80, 5000));
    assert_eq!(tree.usage().bytes, 80);
    assert_eq!(tree.close(file, handle(2), None), DONE);
    let again = tree.sync(file, handle(2), written(1, 0, 0));
    assert_eq!(again, Err(Errno::BadHandle));
    let beyond = tree.close(file, handle(1), Some(written(101, 0, 0)));
    assert_eq!(beyond, Err(Errno::Invalid));
}

#[test]
fn a_writer_asks_before_it_writes_further() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, writing(1, 100));
    tree.open(file, reading(2));
    let (size, cut) = (0, 0);
    for (asked, bound) in [(300, 300), (200, 300)] {
        let bound = Some(bound);
        let extended = tree.extend(file, handle(1), 0, asked);
        assert_eq!(extended, Ok(MetaReply::Extent { size, cut, bound }));
    }
    assert_eq!(tree.extend(file, handle(2), 0, 10), Err(Errno::BadHandle));
    assert_eq!(
        tree.extend(file, handle(1), 0, 1 << 61),
        Err(Errno::TooLarge)
    );
    assert_eq!(tree.close(file, handle(1), Some(written(300, 0, 0))), DONE);
}

/// META-5.
#[test]
fn a_length_from_before_a_truncation_does_not_undo_it() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, other(1, 2 << 20));
    let trim = tree.resize(file, 0);
    assert_eq!(
        trim.map(|trim| (trim.cut, trim.from, trim.reach)),
        Some((1, 0, 2 << 20))
    );
    // While chunks are cut off nobody can say which bytes there are.
    let late = other(1, 0).handle;
    let close = |written| MetaOperation::Close {
        inode: file,
        handle: late,
        written: Some(written),
    };
    let refused = tree.call(close(written(10, 0, 0)));
    assert_eq!(refused, Err(Errno::Trimming));
    tree.trimmed(file, trim);
    let refused = tree.call(close(written(10, 0, 0)));
    let Err(Errno::Cut {
        cut: 1,
        size: 0,
        bound,
        ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(bound, 2 << 20);
    // What was written since is in the chunks.
    assert_eq!(tree.call(close(written(4, 1, 0))), DONE);
    assert_eq!(tree.get(file).size, 4);
}

#[test]
fn nobody_opens_for_writing_reaches_further_or_cuts_while_chunks_are_cut_off() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, writing(1, 100));
    let trim = tree.resize(file, 50);
    assert!(trim.is_some());
    let open = writing(2, 10);
    let opened = tree.call(MetaOperation::Open { inode: file, open });
    assert_eq!(opened, Err(Errno::Trimming));
    assert_eq!(tree.extend(file, handle(1), 0, 200), Err(Errno::Trimming));
    let change = AttributeChange {
        size: Some(70),
        ..AttributeChange::default()
    };
    assert_eq!(tree.set(file, change), Err(Errno::Trimming));
    tree.open(file, reading(3));
    tree.trimmed(file, trim);
    tree.open(file, open);
    assert_eq!(tree.usage().bytes, 50);
    // That all is cut off can be said once more, also while the next truncation is not over.
    let next = tree.resize(file, 20);
    tree.trimmed(file, trim);
    assert_eq!(tree.set(file, change), Err(Errno::Trimming));
    tree.trimmed(file, next);
    assert!(tree.set(file, change).is_ok());
}

#[test]
fn a_size_beyond_all_bytes_cuts_nothing_off() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, writing(1, 100));
    assert_eq!(tree.resize(file, 100), None);
    assert_eq!(tree.close(file, handle(1), Some(written(90, 0, 0))), DONE);
    assert_eq!(tree.get(file).size, 100);
    let change = AttributeChange {
        size: Some(1 << 61),
        ..AttributeChange::default()
    };
    assert_eq!(tree.set(file, change), Err(Errno::TooLarge));
}

#[test]
fn opening_with_truncation_cuts_off_before_the_open_is_answered() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, writing(1, 100));
    assert_eq!(tree.close(file, handle(1), Some(written(100, 0, 0))), DONE);
    let mut open = writing(2, 100);
    open.is_truncating = true;
    let opened = tree.open(file, open);
    assert_eq!((opened.attributes.size, opened.attributes.cut), (0, 1));
    tree.trimmed(file, opened.trim);
    assert_eq!(tree.close(file, handle(2), Some(written(1, 1, 0))), DONE);
    assert_eq!((tree.get(file).size, tree.usage().bytes), (1, 1));
}

#[test]
fn a_file_is_not_collected_while_somebody_cuts_it_off() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, writing(1, 100));
    let trim = tree.resize(file, 0);
    assert_eq!(tree.unlink(tree.root, "file"), DONE);
    assert_eq!(tree.close(file, handle(1), None), DONE);
    assert_eq!(tree.garbage(), []);
    tree.trimmed(file, trim);
    assert_eq!(tree.garbage(), [file]);
}

#[test]
fn a_time_that_was_set_stays_when_older_writes_are_closed() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, writing(1, 100));
    let wrote_ns = tree.now_ns;
    let change = AttributeChange {
        mtime_ns: Some(3),
        ..AttributeChange::default()
    };
    tree.set(file, change).unwrap();
    let old = written(1, 0, wrote_ns);
    assert!(tree.sync(file, handle(1), old).is_ok());
    assert_eq!(tree.get(file).mtime_ns, 3);
    let new = written(1, 0, tree.now_ns);
    assert_eq!(tree.close(file, handle(1), Some(new)), DONE);
    assert_eq!(tree.get(file).mtime_ns, new.mtime_ns);
}

#[test]
fn mounts_that_left_something_are_found() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    tree.open(file, other(1, 100));
    let next = |after| MetaOperation::NextMount {
        after: MountId(after),
    };
    let found = [0, 1, 2].map(|after| tree.call(next(after)));
    let expected = [Some(MOUNT), Some(OTHER), None].map(|mount| Ok(MetaReply::Mount(mount)));
    assert_eq!(found, expected);
}

#[test]
fn what_a_mount_had_open_is_listed_when_it_has_ended() {
    let mut tree = Tree::new();
    let (one, two) = (tree.file(tree.root, "one"), tree.file(tree.root, "two"));
    tree.open(two, writing(7, 100));
    tree.open(one, reading(9));
    tree.open(one, other(9, 100));
    let trim = tree.resize(two, 10);
    let mount = MOUNT;
    let list = |after| MetaOperation::ListHandles {
        mount,
        after,
        limit: 2,
    };
    let first = vec![(one, 9), (two, 0)];
    assert_eq!(tree.call(list(None)), Ok(MetaReply::Handles(first)));
    let rest = vec![(two, 7)];
    assert_eq!(
        tree.call(list(Some((two, 0)))),
        Ok(MetaReply::Handles(rest))
    );
    let take = |inode, to| MetaOperation::TakeTrim {
        inode,
        from: mount,
        to: MountId(to),
    };
    assert_eq!(tree.call(take(two, 3)), Ok(MetaReply::Trim(None)));
    tree.call(MetaOperation::EndMount { mount }).unwrap();
    assert_eq!(tree.call(take(one, 3)), Ok(MetaReply::Trim(None)));
    assert_eq!(tree.call(take(two, 3)), Ok(MetaReply::Trim(trim)));
    let gone = take(InodeNumber(5), 3);
    assert_eq!(tree.call(gone), Ok(MetaReply::Trim(None)));
    // Only one has it.
    assert_eq!(tree.call(take(two, 4)), Ok(MetaReply::Trim(None)));
    assert_eq!(tree.call(take(two, 1)), Err(Errno::Ended));
    let cut = trim.unwrap().cut;
    let trimmed = |mount| MetaOperation::Trimmed {
        inode: two,
        mount: MountId(mount),
        cut,
    };
    // The one before has nothing to say any more.
    assert_eq!(tree.call(trimmed(1)), DONE);
    assert_eq!(tree.call(trimmed(3)), DONE);
    assert_eq!(tree.call(take(two, 4)), Ok(MetaReply::Trim(None)));
}
