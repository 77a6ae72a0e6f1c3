//! What may become a target and what may not, on real folders.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

use std::fs;
use std::path::Path;

use storage::disk::{DiskFound, EmptyDisk, TargetDisk, look};

const BYTES: u64 = 70 << 20;

fn empty(path: &Path) -> EmptyDisk {
    match look(path).unwrap() {
        DiskFound::Empty(empty) => empty,
        DiskFound::Target(disk) => panic!("{disk:?}"),
    }
}

fn target(path: &Path) -> TargetDisk {
    match look(path).unwrap() {
        DiskFound::Target(disk) => disk,
        DiskFound::Empty(empty) => panic!("{empty:?}"),
    }
}

fn refusal(path: &Path) -> String {
    let error = look(path).unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

#[test]
fn an_empty_folder_becomes_a_target_that_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    drop(empty(folder.path()).format(0xabc, Some(BYTES)).unwrap());
    let disk = target(folder.path());
    assert_eq!(disk.uuid(), 0xabc);
    let (store, summary) = disk.recover().unwrap();
    assert_eq!((summary.chunks, summary.lost), (0, 0));
    let usage = store.usage();
    assert_eq!(usage.free_blocks, usage.blocks);
    let room = usage.blocks as u64 * (64 << 10);
    assert!(room <= BYTES && room > BYTES / 100 * 95, "{room}");
}

#[test]
fn a_target_that_was_not_finished_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("fireflyer-target.new"), "half").unwrap();
    fs::create_dir(folder.path().join("lost+found")).unwrap();
    empty(folder.path()).format(1, Some(BYTES)).unwrap();
    assert_eq!(target(folder.path()).uuid(), 1);
}

#[test]
fn a_folder_with_foreign_files_is_refused_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "").unwrap();
    let text = refusal(folder.path());
    assert!(
        text.contains("it holds thesis.tex, which are not ours. Name an empty folder"),
        "{text}"
    );
}

#[test]
fn a_target_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let disk = empty(folder.path()).format(1, Some(BYTES)).unwrap();
    let text = refusal(folder.path());
    assert!(text.contains("another process uses it"), "{text}");
    drop(disk);
    target(folder.path());
}

#[test]
fn a_newer_format_and_a_damaged_one_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    empty(folder.path()).format(1, Some(BYTES)).unwrap();
    let path = folder.path().join("fireflyer-target");
    let whole = fs::read(&path).unwrap();
    // In both copies of the superblock the version is behind the magic, and a checksum behind all.
    let [mut damaged, mut newer] = [whole.clone(), whole.clone()];
    for at in [0, 64 << 10] {
        (damaged[at + 8], newer[at + 8]) = (9, 9);
        let sum = chunk_store::checksum(&newer[at..at + 48]);
        newer[at + 48..at + 52].copy_from_slice(&sum.to_le_bytes());
    }
    fs::write(&path, &damaged).unwrap();
    let text = refusal(folder.path());
    assert!(
        text.contains("both damaged") && text.contains("fill it from its chain"),
        "{text}"
    );
    fs::write(&path, &newer).unwrap();
    let text = refusal(folder.path());
    assert!(
        text.contains("its format is 9, this program reads up to 1"),
        "{text}"
    );
    let mut one = whole.clone();
    one[8] = 9;
    fs::write(&path, &one).unwrap();
    drop(target(folder.path()));
    assert_eq!(fs::read(&path).unwrap()[..4096], whole[..4096], "repaired");
    fs::write(&path, &whole[..1 << 20]).unwrap();
    let text = refusal(folder.path());
    assert!(text.contains("it has 1048576 bytes"), "{text}");
}

#[test]
fn what_is_too_small_or_no_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = empty(folder.path()).format(1, Some(1 << 20)).unwrap_err();
    assert!(
        error.to_string().contains("needs 67108864 at least"),
        "{error}"
    );
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refusal(&file).contains("neither a folder nor a block device"));
    let text = refusal(&folder.path().join("nowhere"));
    assert!(
        text.contains("failed to look at") && text.contains("No such file"),
        "{text}"
    );
}
