//! Single operations on names and attributes.

use metadata::{
    AttributeChange, EntryName, Errno, InodeKind, InodeNumber, MetaAnswer, MetaOperation,
    MetaReply, NewNode,
};

use crate::fixture::{DONE, LAYOUT, Tree, attributes, name, reading, writing};

#[test]
fn what_is_made_is_found_with_owner_times_and_layout() {
    let mut tree = Tree::new();
    let root = tree.root;
    let made = attributes(tree.make(root, "file", NewNode::File));
    assert_eq!(
        (made.mode, made.uid, made.gid, made.links),
        (0o644, 7, 8, 1)
    );
    assert_eq!(made.atime_ns, made.ctime_ns);
    let layout = made.layout.unwrap();
    assert_eq!((layout.stripe, layout.seed), (LAYOUT.stripe, made.inode.0));
    assert_eq!(attributes(tree.lookup(root, "file")), made);
    assert_eq!(tree.lookup(root, "other"), Err(Errno::NotFound));
    assert_eq!(tree.make(root, "file", NewNode::File), Err(Errno::Exists));
    assert_eq!(tree.get(root).mtime_ns, made.ctime_ns);
}

#[test]
fn a_directory_has_two_links_and_one_for_each_directory_in_it() {
    let mut tree = Tree::new();
    let root = tree.root;
    let directory = tree.directory(root, "directory");
    tree.directory(directory, "one");
    tree.directory(directory, "two");
    tree.file(directory, "file");
    assert_eq!(tree.get(directory).links, 4);
    assert_eq!(tree.get(directory).parent, Some(root));
    assert_eq!(tree.get(root).parent, Some(root));
    assert_eq!(tree.rmdir(directory, "one"), DONE);
    assert_eq!(tree.get(directory).links, 3);
}

#[test]
fn only_an_empty_directory_is_removed() {
    let mut tree = Tree::new();
    let root = tree.root;
    let directory = tree.directory(root, "directory");
    let file = tree.file(directory, "file");
    assert_eq!(tree.rmdir(root, "directory"), Err(Errno::NotEmpty));
    assert_eq!(tree.unlink(root, "directory"), Err(Errno::IsDirectory));
    assert_eq!(tree.rmdir(directory, "file"), Err(Errno::NotDirectory));
    assert_eq!(tree.unlink(directory, "file"), DONE);
    assert_eq!(tree.rmdir(root, "directory"), DONE);
    for inode in [directory, file] {
        let gone = tree.call(MetaOperation::GetAttributes { inode });
        assert_eq!(gone, Err(Errno::Stale));
    }
    assert_eq!(
        tree.make(directory, "new", NewNode::File),
        Err(Errno::Stale)
    );
    assert_eq!(tree.usage().inodes, 0);
}

#[test]
fn a_set_group_id_directory_gives_its_group_and_directories_the_bit() {
    let mut tree = Tree::new();
    let directory = tree.directory(tree.root, "directory");
    let change = AttributeChange {
        mode: Some(0o2775),
        gid: Some(99),
        ..AttributeChange::default()
    };
    tree.set(directory, change).unwrap();
    let file = attributes(tree.make(directory, "file", NewNode::File));
    let below = attributes(tree.make(directory, "below", NewNode::Directory));
    assert_eq!((file.gid, file.mode), (99, 0o644));
    assert_eq!((below.gid, below.mode), (99, 0o2644));
}

#[test]
fn links_count_and_the_last_one_takes_the_inode() {
    let mut tree = Tree::new();
    let root = tree.root;
    let file = tree.file(root, "file");
    let directory = tree.directory(root, "directory");
    let linked = attributes(tree.link(file, directory, "other"));
    assert_eq!((linked.inode, linked.links), (file, 2));
    assert_eq!(tree.link(directory, root, "no"), Err(Errno::NotPermitted));
    assert_eq!(tree.link(file, root, "file"), Err(Errno::Exists));
    assert_eq!(tree.unlink(root, "file"), DONE);
    assert_eq!(tree.get(file).links, 1);
    assert_eq!(tree.unlink(directory, "other"), DONE);
    assert_eq!(tree.link(file, root, "again"), Err(Errno::Stale));
}

#[test]
fn an_inode_has_65000_names_at_most() {
    let mut tree = Tree::new();
    let root = tree.root;
    let file = tree.file(root, "0");
    tree.store
        .replace(b"mi", "\"links\":1,\"device", "\"links\":64999,\"device");
    tree.link(file, root, "last").unwrap();
    assert_eq!(tree.link(file, root, "more"), Err(Errno::TooManyLinks));
}

#[test]
fn a_link_into_another_volume_is_refused() {
    let mut tree = Tree::new();
    let other = tree.volume("two");
    let file = tree.file(tree.root, "file");
    assert_eq!(tree.link(file, other, "file"), Err(Errno::CrossesVolumes));
}

#[test]
fn a_symbolic_link_keeps_its_target_byte_by_byte() {
    let mut tree = Tree::new();
    let root = tree.root;
    let target = b"../\xff/there".to_vec();
    let symlink = NewNode::Symlink {
        target: target.clone(),
    };
    let made = attributes(tree.make(root, "link", symlink));
    assert_eq!((made.kind, made.size), (InodeKind::Symlink, 10));
    let inode = made.inode;
    let read = tree.call(MetaOperation::ReadLink { inode });
    assert_eq!(read, Ok(MetaReply::Target(target)));
    for length in [0, 4096] {
        let target = vec![b'a'; length];
        let made = tree.make(root, "long", NewNode::Symlink { target });
        assert_eq!(made, Err(Errno::Invalid));
    }
    assert_eq!(tree.unlink(root, "link"), DONE);
    assert_eq!(tree.store.count(b"ms"), 0);
}

#[test]
fn devices_keep_their_numbers() {
    let mut tree = Tree::new();
    let node = NewNode::BlockDevice { device: 0x0801 };
    let made = attributes(tree.make(tree.root, "disk", node));
    assert_eq!((made.kind, made.device), (InodeKind::BlockDevice, 0x0801));
    let inode = made.inode;
    let opened = tree.call(MetaOperation::Open {
        inode,
        open: reading(1),
    });
    assert_eq!(opened, Err(Errno::Invalid));
}

fn names(answer: MetaAnswer) -> Vec<(EntryName, InodeNumber)> {
    match answer {
        Ok(MetaReply::Names(names)) => names.into_iter().map(|one| (one.name, one.inode)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_is_listed_in_pages_in_the_order_of_bytes() {
    let mut tree = Tree::new();
    let root = tree.root;
    let mut made = Vec::new();
    for called in ["a", "b", "ab", "B", "c"] {
        made.push((name(called), tree.file(root, called)));
    }
    made.sort();
    let page = |after: Option<&str>| MetaOperation::ReadDirectory {
        inode: root,
        after: after.map(name),
        limit: 2,
        with_attributes: false,
    };
    let mut listed = names(tree.call(page(None)));
    listed.extend(names(tree.call(page(Some("a")))));
    listed.extend(names(tree.call(page(Some("b")))));
    assert_eq!(listed, made);
    let file = tree.call(MetaOperation::ReadDirectory {
        inode: made[0].1,
        after: None,
        limit: 2,
        with_attributes: false,
    });
    assert_eq!(file, Err(Errno::NotDirectory));
}

#[test]
fn a_list_with_attributes_says_what_each_lookup_says() {
    let mut tree = Tree::new();
    let root = tree.root;
    tree.file(root, "file");
    let directory = tree.directory(root, "directory");
    tree.directory(directory, "below");
    let listed = tree.call(MetaOperation::ReadDirectory {
        inode: root,
        after: None,
        limit: 256,
        with_attributes: true,
    });
    let Ok(MetaReply::Names(listed)) = listed else {
        panic!("{listed:?}");
    };
    for called in ["directory", "file"] {
        let found = attributes(tree.lookup(root, called));
        let one = listed.iter().find(|one| one.name == name(called)).unwrap();
        assert_eq!(one.attributes, Some(found));
    }
}

#[test]
fn times_that_are_set_stay_until_the_next_change() {
    let mut tree = Tree::new();
    let root = tree.root;
    let directory = tree.directory(root, "directory");
    let file = tree.file(root, "file");
    let change = AttributeChange {
        atime_ns: Some(-5),
        mtime_ns: Some(7),
        ..AttributeChange::default()
    };
    for inode in [directory, file] {
        let set = attributes(tree.set(inode, change));
        assert_eq!((set.atime_ns, set.mtime_ns), (-5, 7));
        assert_eq!(set.ctime_ns, tree.now_ns);
        assert_eq!(tree.get(inode), set);
    }
    tree.file(directory, "new");
    let (now_ns, after) = (tree.now_ns, tree.get(directory));
    assert_eq!((after.mtime_ns, after.ctime_ns), (now_ns, now_ns));
}

#[test]
fn opening_a_name_that_exists_opens_it_unless_it_has_to_be_new() {
    let mut tree = Tree::new();
    let root = tree.root;
    let make = |called, open| MetaOperation::Make {
        parent: root,
        name: name(called),
        node: NewNode::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        open: Some(open),
    };
    let Ok(MetaReply::Opened(new)) = tree.call(make("file", writing(1, 4096))) else {
        panic!("it is made");
    };
    let Ok(MetaReply::Opened(again)) = tree.call(make("file", reading(2))) else {
        panic!("it is opened");
    };
    assert!(new.is_new && !again.is_new);
    assert_eq!(again.attributes.inode, new.attributes.inode);
    let mut exclusive = reading(3);
    exclusive.is_exclusive = true;
    assert_eq!(tree.call(make("file", exclusive)), Err(Errno::Exists));
    tree.directory(root, "directory");
    let directory = tree.call(make("directory", reading(3)));
    assert_eq!(directory, Err(Errno::IsDirectory));
    let target = b"file".to_vec();
    tree.make(root, "link", NewNode::Symlink { target })
        .unwrap();
    assert_eq!(tree.call(make("link", reading(3))), Err(Errno::Stale));
}
