//! Single renames.

use metadata::{Errno, MOST_ANCESTORS, NewNode, RenameRule};

use crate::fixture::{DONE, Tree, attributes};

use RenameRule::{Exchange, NoReplace, Replace};

#[test]
fn a_name_moves_and_what_it_replaces_is_gone() {
    let mut tree = Tree::new();
    let root = tree.root;
    let directory = tree.directory(root, "directory");
    let (file, other) = (tree.file(root, "file"), tree.file(directory, "other"));
    let to = (directory, "other");
    assert_eq!(
        tree.rename((root, "file"), to, NoReplace),
        Err(Errno::Exists)
    );
    assert_eq!(tree.rename((root, "file"), to, Replace), DONE);
    assert_eq!(tree.lookup(root, "file"), Err(Errno::NotFound));
    assert_eq!(attributes(tree.lookup(directory, "other")).inode, file);
    assert_eq!(tree.link(other, root, "other"), Err(Errno::Stale));
    assert_eq!(tree.usage().inodes, 2);
    assert_eq!(tree.get(file).ctime_ns, tree.get(root).ctime_ns);
}

#[test]
fn two_names_of_one_inode_both_stay() {
    let mut tree = Tree::new();
    let root = tree.root;
    let file = tree.file(root, "one");
    tree.link(file, root, "two").unwrap();
    assert_eq!(tree.rename((root, "one"), (root, "two"), Replace), DONE);
    assert_eq!(attributes(tree.lookup(root, "one")).links, 2);
}

#[test]
fn directories_replace_empty_directories_only_and_files_files() {
    let mut tree = Tree::new();
    let root = tree.root;
    let (one, two) = (tree.directory(root, "one"), tree.directory(root, "two"));
    tree.file(root, "file");
    tree.file(two, "inside");
    let mut replace = |from, to| tree.rename((root, from), (root, to), Replace);
    assert_eq!(replace("one", "two"), Err(Errno::NotEmpty));
    assert_eq!(replace("one", "file"), Err(Errno::NotDirectory));
    assert_eq!(replace("file", "one"), Err(Errno::IsDirectory));
    assert_eq!(replace("two", "one"), DONE);
    assert_eq!(attributes(tree.lookup(root, "one")).inode, two);
    assert_eq!(tree.get(root).links, 3);
    assert_eq!(tree.link(one, root, "x"), Err(Errno::Stale));
}

/// META-2.
#[test]
fn a_directory_does_not_move_below_itself() {
    let mut tree = Tree::new();
    let root = tree.root;
    let a = tree.directory(root, "a");
    let b = tree.directory(a, "b");
    let c = tree.directory(b, "c");
    for to in [a, b, c] {
        let moved = tree.rename((root, "a"), (to, "new"), Replace);
        assert_eq!(moved, Err(Errno::Invalid));
    }
    assert_eq!(
        tree.rename((root, "a"), (b, "c"), Exchange),
        Err(Errno::Invalid)
    );
    assert_eq!(
        tree.rename((b, "c"), (root, "a"), Exchange),
        Err(Errno::Invalid)
    );
    assert_eq!(tree.rename((b, "c"), (root, "c"), Replace), DONE);
    assert_eq!(tree.rename((root, "a"), (c, "a"), Replace), DONE);
    assert_eq!(tree.get(a).parent, Some(c));
    let links = [root, a, b, c].map(|inode| tree.get(inode).links);
    assert_eq!(links, [3, 3, 2, 3]);
}

#[test]
fn an_exchange_moves_both_and_counts_directories() {
    let mut tree = Tree::new();
    let root = tree.root;
    let (one, two) = (tree.directory(root, "one"), tree.directory(root, "two"));
    let (directory, file) = (tree.directory(one, "x"), tree.file(two, "y"));
    assert_eq!(
        tree.rename((one, "x"), (two, "z"), Exchange),
        Err(Errno::NotFound)
    );
    assert_eq!(tree.rename((one, "x"), (two, "y"), Exchange), DONE);
    assert_eq!(attributes(tree.lookup(one, "x")).inode, file);
    assert_eq!(attributes(tree.lookup(two, "y")).inode, directory);
    assert_eq!((tree.get(one).links, tree.get(two).links), (2, 3));
    assert_eq!(tree.get(directory).parent, Some(two));
}

#[test]
fn a_directory_below_very_many_others_has_to_be_copied() {
    let mut tree = Tree::new();
    let root = tree.root;
    tree.directory(root, "moved");
    tree.file(root, "file");
    let mut deep = root;
    for _ in 1..MOST_ANCESTORS {
        deep = tree.directory(deep, "deep");
    }
    assert_eq!(tree.rename((root, "moved"), (deep, "moved"), Replace), DONE);
    let too_deep = tree.directory(deep, "deep");
    let moved = tree.rename((deep, "moved"), (too_deep, "moved"), Replace);
    assert_eq!(moved, Err(Errno::CrossesVolumes));
    assert_eq!(
        tree.rename((root, "file"), (too_deep, "file"), Replace),
        DONE
    );
}

#[test]
fn nothing_moves_into_another_volume() {
    let mut tree = Tree::new();
    let (root, other) = (tree.root, tree.volume("two"));
    tree.make(root, "file", NewNode::File).unwrap();
    let moved = tree.rename((root, "file"), (other, "file"), Replace);
    assert_eq!(moved, Err(Errno::CrossesVolumes));
}
