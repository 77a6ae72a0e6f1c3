//! Operations that are sent again.

use metadata::{Errno, MetaOperation, MetaReply, MetaRequest, NewNode};

use crate::fixture::{DONE, MOUNT, Tree, name};

fn unlink(tree: &Tree) -> MetaOperation {
    MetaOperation::Unlink {
        parent: tree.root,
        name: name("file"),
    }
}

/// META-3.
#[test]
fn an_operation_that_is_sent_again_gets_its_answer_and_is_not_done_again() {
    let mut tree = Tree::new();
    tree.file(tree.root, "file");
    let request = tree.request(MOUNT, unlink(&tree));
    assert_eq!(tree.send(&request), DONE);
    let second = tree.file(tree.root, "file");
    assert_eq!(tree.send(&request), DONE);
    assert_eq!(tree.get(second).links, 1);
}

#[test]
fn a_refusal_of_an_operation_that_was_sent_before_stays() {
    let mut tree = Tree::new();
    let first = tree.request(MOUNT, unlink(&tree));
    let again = MetaRequest {
        is_repeated: true,
        ..first.clone()
    };
    assert_eq!(tree.send(&again), Err(Errno::NotFound));
    tree.file(tree.root, "file");
    // The first one comes late.
    assert_eq!(tree.send(&first), Err(Errno::NotFound));
}

#[test]
fn answers_that_nobody_waits_for_are_deleted_and_their_operations_refused() {
    let mut tree = Tree::new();
    let file = tree.file(tree.root, "file");
    let early = tree.request(MOUNT, unlink(&tree));
    for number in 0..1000 {
        tree.link(file, tree.root, &format!("name {number}"))
            .unwrap();
    }
    let kept = tree.store.count(b"mr");
    assert!(kept <= 64 + 8, "{kept}");
    assert_eq!(tree.send(&early), Err(Errno::Ended));
}

#[test]
fn an_ended_mount_changes_nothing_and_leaves_no_answers() {
    let mut tree = Tree::new();
    for number in 0..50 {
        tree.file(tree.root, &number.to_string());
    }
    let request = tree.request(MOUNT, unlink(&tree));
    while tree.call(MetaOperation::EndMount { mount: MOUNT }) == Ok(MetaReply::More(true)) {}
    assert_eq!(tree.store.count(b"mr"), 0);
    assert_eq!(tree.send(&request), Err(Errno::Ended));
    let made = tree.make(tree.root, "new", NewNode::File);
    assert_eq!(made, Err(Errno::Ended));
}

#[test]
fn a_change_without_an_id_is_refused() {
    let mut tree = Tree::new();
    tree.file(tree.root, "file");
    let request = MetaRequest::reading(unlink(&tree));
    assert_eq!(tree.send(&request), Err(Errno::Invalid));
}
