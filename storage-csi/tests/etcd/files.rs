//! Volumes, mounted by the real kernel. Programs use them in processes of their own: this one must have no file of a mount
//! open when it starts another process.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use kv::{EtcdEngine, KvStore, KvTransaction};
use storage_cell::{CellOptions, LIMIT, Mounted};

use crate::{start_cell, start_cell_with};

/// Runs a shell command in a mount; what it printed.
fn run(mounted: &Mounted, command: &str) -> String {
    let output = shell(mounted, command)
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    assert!(output.status.success(), "{command}: {}", output.status);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn shell(mounted: &Mounted, command: &str) -> Command {
    let mut shell = Command::new("bash");
    let strict = format!("set -eu -o pipefail; {command}");
    shell
        .args(["-c", &strict])
        .current_dir("/")
        .env("M", &mounted.at);
    shell
}

fn start(mounted: &Mounted, command: &str) -> Child {
    shell(mounted, command).spawn().unwrap()
}

/// Close-to-open: who opens a file after it was closed elsewhere reads what was written there.
pub(crate) fn two_mounts_share_what_is_closed(etcd: &Path) {
    let cell = start_cell(etcd);
    let (one, other) = (cell.mount("one", "shared"), cell.mount("other", "shared"));
    run(
        &one,
        "mkdir $M/d; head -c 5000000 /dev/urandom > $M/d/file; ln -s file $M/d/link",
    );
    let sum = run(&one, "sha256sum < $M/d/file");
    assert_eq!(run(&other, "sha256sum < $M/d/link"), sum);
    run(&other, "echo more >> $M/d/file; mv $M/d/file $M/moved");
    assert_eq!(
        run(&one, "stat -c %s $M/moved; tail -n 1 $M/moved | tail -c 5"),
        "5000005\nmore"
    );
    for round in 0..20 {
        let (writer, reader) = if round % 2 == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        run(writer, &format!("echo {round} > $M/value"));
        assert_eq!(run(reader, "cat $M/value"), round.to_string());
    }
    run(
        &one,
        "truncate -s 3000000 $M/moved; truncate -s 4000000 $M/moved",
    );
    let zeros = "tail -c 1000000 $M/moved | tr -d '\\0' | wc -c; stat -c %s $M/moved";
    assert_eq!(run(&other, zeros), "0\n4000000");
    assert_eq!(run(&one, "ls $M"), "d\nmoved\nvalue");
    // An open file outlives its name.
    assert_eq!(
        run(
            &one,
            "exec 3<> $M/gone; rm $M/gone; echo kept >&3; cat /dev/fd/3"
        ),
        "kept"
    );
}

/// Files come out whole, whoever is killed under them, and nobody sees an error.
pub(crate) fn everything_may_be_killed_while_files_are_written(etcd: &Path) {
    let mut cell = start_cell(etcd);
    let mounted = cell.mount("one", "volume");
    let writes = "for i in $(seq 40); do head -c 1500000 /dev/urandom | tee $M/file-$i | sha256sum > $M/sum-$i; \
        mkdir $M/dir-$i; mv $M/sum-$i $M/dir-$i/sum; done";
    let mut writer = start(&mounted, writes);
    let progress = |count: usize| {
        let reached = || {
            let last = mounted.at.join(format!("dir-{count}/sum"));
            Ok(last.exists().then_some(()))
        };
        cluster::until("files are written", 4 * LIMIT, reached).unwrap();
    };
    for (kill, reached) in [4, 8, 12, 16, 20, 24].into_iter().enumerate() {
        progress(reached);
        match kill {
            service @ 0..3 => {
                cell.kill_service(service);
                cell.start_service(service);
            }
            3 => cell.restart_manager(),
            4 => cell.restart_meta(),
            _ => {
                cell.etcd.kill();
                cell.etcd.start_again();
            }
        }
    }
    assert!(writer.wait().unwrap().success(), "a program saw an error");
    let other = cell.mount("other", "volume");
    let check =
        "for i in $(seq 40); do sha256sum < $M/file-$i | diff - $M/dir-$i/sum; done; ls $M | wc -l";
    assert_eq!(run(&other, check), "80");
}

/// Chunks of removed files go, also of those that were open in a mount that died.
pub(crate) fn what_is_deleted_is_free_again(etcd: &Path) {
    let cell = start_cell(etcd);
    let used = || {
        let list = cell.until(|list| list.targets.iter().all(|target| target.report.is_some()));
        list.targets
            .iter()
            .map(|target| target.report.as_ref().unwrap().used_bytes)
            .max()
            .unwrap()
    };
    let (one, other) = (cell.mount("one", "volume"), cell.mount("other", "volume"));
    run(
        &one,
        "head -c 20000000 /dev/zero > $M/removed; head -c 20000000 /dev/zero > $M/open",
    );
    let reaches = |what: &str, is_so: &dyn Fn(u64) -> bool| {
        let look = || Ok(is_so(used()).then_some(()));
        cluster::until(what, 2 * LIMIT, look).unwrap();
    };
    reaches("files take room", &|used| used >= 40_000_000);
    run(&one, "rm $M/removed");
    reaches("a removed file frees its room", &|used| used < 25_000_000);
    let mut holder = start(&other, "exec 3< $M/open; sleep 1000");
    let is_open = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", holder.id()));
        let mut names = fds
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        Ok(names.any(|name| name.ends_with("open")).then_some(()))
    };
    cluster::until("the file is open", LIMIT, is_open).unwrap();
    run(&one, "rm $M/open");
    other.kill();
    holder.kill().unwrap();
    holder.wait().unwrap();
    // Its session ends when its node opens another: here the same name never comes again, so somebody ends it.
    cell.end_session("other");
    reaches("what only a dead mount had open is freed", &|used| {
        used < 5_000_000
    });
}

/// A full disk refuses writes before deletes could fail.
pub(crate) fn a_full_disk_is_enospc_and_deletes_work(etcd: &Path) {
    let small = CellOptions {
        target_bytes: 160 << 20,
        volume_bytes: 64 << 20,
        ..CellOptions::default()
    };
    let cell = start_cell_with(etcd, small);
    let mounted = cell.mount("one", "volume");
    run(&mounted, "echo kept > $M/kept");
    let fill = "for i in $(seq 400); do head -c 1048576 /dev/zero > $M/full-$i || break; done 2>&1 | grep -c 'No space left'";
    assert_eq!(run(&mounted, fill), "1");
    assert_eq!(run(&mounted, "cat $M/kept"), "kept");
    run(
        &mounted,
        ": > $M/full-1; truncate -s 1000 $M/full-2; rm $M/full-*",
    );
    let writes = || {
        let mut again = shell(&mounted, "head -c 50000000 /dev/zero > $M/again");
        let status = again.stderr(Stdio::null()).status().unwrap();
        Ok(status.success().then_some(()))
    };
    cluster::until("there is room again", 2 * LIMIT, writes).unwrap();
    assert_eq!(run(&mounted, "stat -c %s $M/again"), "50000000");
}

/// Other keys fill etcd up to the part that is kept for removals.
pub(crate) fn names_are_refused_before_removals_could_fail(etcd: &Path) {
    const QUOTA: u64 = 32 << 20;
    let options = CellOptions {
        etcd_flags: &[
            "--quota-backend-bytes=33554432",
            // It says what each put has taken.
            "--backend-batch-limit=1",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1s",
        ],
        ..CellOptions::default()
    };
    let cell = start_cell_with(etcd, options);
    let mounted = cell.mount("one", "volume");
    run(
        &mounted,
        "for i in $(seq 200); do echo $i > $M/file-$i; done",
    );
    let store = {
        let _entered = cell.runtime.enter();
        KvStore::from(EtcdEngine::connect(&[cell.etcd.url()]).unwrap())
    };
    let commit = |transaction| {
        let commit = store.snapshot().commit(transaction);
        cell.runtime.block_on(commit).unwrap();
    };
    let key = |number: u32| format!("other/{number:04}").into_bytes();
    let mut number = 0;
    // To the middle of the eighth that is kept: what a commit has replaced counts until the next ones.
    let mut fill = || {
        while cell.runtime.block_on(store.usage()).unwrap().used_bytes <= QUOTA / 16 * 15 {
            let mut transaction = KvTransaction::default();
            transaction.put(key(number), vec![7; 60_000]);
            commit(transaction);
            number += 1;
            assert!(number < 1_000, "etcd takes more than its quota");
        }
    };
    let outcome = |command: &str| {
        let output = shell(&mounted, command).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    for (what, adds) in [
        ("a file", ": > $M/more && rm $M/more"),
        ("a folder", "mkdir $M/more && rmdir $M/more"),
        ("a link", "ln $M/file-1 $M/more && rm $M/more"),
    ] {
        let refused = || {
            fill();
            Ok(outcome(adds).contains("No space left").then_some(()))
        };
        cluster::until(what, LIMIT, refused).unwrap();
    }
    assert_eq!(
        run(&mounted, "echo more >> $M/file-1; cat $M/file-1"),
        "1\nmore"
    );
    run(
        &mounted,
        "mv $M/file-1 $M/moved; for i in $(seq 2 200); do rm $M/file-$i; done",
    );
    assert_eq!(run(&mounted, "ls $M"), "moved");
    for number in 0..number {
        let mut transaction = KvTransaction::default();
        transaction.delete(key(number));
        commit(transaction);
    }
    let added = || Ok(outcome(": > $M/more").is_empty().then_some(()));
    cluster::until("names are taken again", LIMIT, added).unwrap();
}

/// Bytes that have changed on one disk are noticed when they are read, and come from another member.
pub(crate) fn a_replica_that_is_spoiled_is_not_served_and_is_repaired(etcd: &Path) {
    let mut cell = start_cell(etcd);
    let mounted = cell.mount("one", "volume");
    run(
        &mounted,
        "(yes fireflyer || true) | head -c 4000000 > $M/file",
    );
    let sum = run(&mounted, "sha256sum < $M/file");
    cell.kill_service(1);
    let path = cell.target(1);
    let mut bytes = std::fs::read(&path).unwrap();
    let is_file = |page: &&mut [u8]| page.windows(10).take(10).any(|word| word == b"fireflyer\n");
    let spoiled = bytes
        .chunks_mut(4096)
        .filter(is_file)
        .map(|page| page[100] ^= 1)
        .count();
    assert!(spoiled > 900, "{spoiled}");
    std::fs::write(&path, &bytes).unwrap();
    cell.start_service(1);
    for _ in 0..10 {
        let drop_cache = "dd if=$M/file iflag=direct bs=1M status=none | sha256sum";
        assert_eq!(run(&mounted, drop_cache), sum);
    }
}

pub(crate) fn a_volume_that_is_not_there_is_refused_by_name(etcd: &Path) {
    let cell = start_cell(etcd);
    let text = cell.mount_error("nothing");
    assert!(
        text.contains("failed to mount nothing: there is no such volume"),
        "{text}"
    );
}
