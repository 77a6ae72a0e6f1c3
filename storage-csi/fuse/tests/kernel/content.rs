//! What is written into files is what is read from them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fuse::request::FileOperation;
use sim::Rng;

use super::mounted::{Mounted, wait_until};

/// The largest file of these tests.
const FILE_BYTES: usize = 8 << 20;

fn bytes(rng: &mut Rng, count: usize) -> Vec<u8> {
    let words = (0..count.div_ceil(8)).flat_map(|_| rng.next_u64().to_ne_bytes());
    words.take(count).collect()
}

pub(crate) fn files_of_any_size_and_offset_read_back_what_was_written() {
    let mounted = Mounted::new();
    let mut rng = Rng::new(1);
    for size in [0, 1, 4095, 4097, 131_073, (1 << 20) + 1, FILE_BYTES] {
        let path = mounted.path(&format!("file-{size}"));
        let content = bytes(&mut rng, size);
        fs::write(&path, &content).unwrap();
        assert!(fs::read(&path).unwrap() == content, "{size} bytes");
        assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
    }
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true);
    let file = options.open(mounted.path("parts")).unwrap();
    let mut expected = Vec::new();
    for _ in 0..200 {
        let offset = rng.below(FILE_BYTES - 1);
        let most = 1 << rng.range(1..21);
        let size = 1 + rng.below(most.min(FILE_BYTES - offset));
        let part = bytes(&mut rng, size);
        expected.resize(expected.len().max(offset + size), 0);
        expected[offset..offset + size].copy_from_slice(&part);
        file.write_all_at(&part, offset as u64).unwrap();
        let offset = rng.below(expected.len());
        let mut read = vec![0; (1 + rng.below(300_000)).min(expected.len() - offset)];
        file.read_exact_at(&mut read, offset as u64).unwrap();
        assert!(read == expected[offset..offset + read.len()], "{offset}");
    }
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(mounted.path("parts")).unwrap() == expected);
}

pub(crate) fn a_write_comes_whole_up_to_the_limit() {
    let largest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&largest);
    let mounted = Mounted::with(Duration::ZERO, move |memory, request, replier| {
        if let FileOperation::Write { data, .. } = request.operation {
            seen.fetch_max(data.len(), Ordering::Relaxed);
        }
        memory.handle(&request, replier);
    });
    let limit = mounted.connection.negotiated().max_write_bytes as usize;
    assert_eq!(limit, 1 << 20);
    let content = vec![7; 2 * limit];
    fs::write(mounted.path("file"), &content).unwrap();
    assert_eq!(largest.load(Ordering::Relaxed), limit);
    assert!(fs::read(mounted.path("file")).unwrap() == content);
}

/// Bytes that are written and read at once.
const BLOCK_BYTES: usize = 64 << 10;
const BLOCKS: usize = 16;

const ROUNDS: u8 = 100;

/// Each writer fills the blocks of its own with the number of the round. A reader sees no byte that
/// is older than what was written before it read, and none that nobody has begun to write.
pub(crate) fn readers_see_what_writers_have_written() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, vec![0; BLOCKS * BLOCK_BYTES]).unwrap();
    let stop = AtomicBool::new(false);
    let written: [AtomicU8; BLOCKS] = Default::default();
    thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            let (path, written) = (&path, &written);
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                for round in 1..=ROUNDS {
                    for block in (writer..BLOCKS).step_by(2) {
                        let at = (block * BLOCK_BYTES) as u64;
                        file.write_all_at(&[round; BLOCK_BYTES], at).unwrap();
                        written[block].store(round, Ordering::SeqCst);
                    }
                }
            })
        });
        for reader in 0..2 {
            let (path, written, stop) = (&path, &written, &stop);
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                let (mut rng, mut read) = (Rng::new(reader), vec![0; BLOCK_BYTES]);
                while !stop.load(Ordering::Relaxed) {
                    let block = rng.below(BLOCKS);
                    let oldest = written[block].load(Ordering::SeqCst);
                    let at = (block * BLOCK_BYTES) as u64;
                    file.read_exact_at(&mut read, at).unwrap();
                    let newest = written[block].load(Ordering::SeqCst) + 1;
                    let wrong = read.iter().find(|byte| !(oldest..=newest).contains(byte));
                    assert_eq!(wrong, None, "block {block}: {oldest} to {newest}");
                }
            });
        }
        let written = writers.map(thread::ScopedJoinHandle::join);
        stop.store(true, Ordering::Relaxed);
        assert!(written.iter().all(Result::is_ok));
    });
    assert!(fs::read(&path).unwrap() == [ROUNDS; BLOCKS * BLOCK_BYTES]);
}

pub(crate) fn a_file_is_cut_off_and_filled_up() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, [1; 10_000]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(7_000).unwrap();
    let expected = [[1; 5_000].as_slice(), &[0; 2_000]].concat();
    assert!(fs::read(&path).unwrap() == expected);
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    appending.write_all(b"end").unwrap();
    assert_eq!(fs::read(&path).unwrap()[7_000..], *b"end");
    File::create(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
}

pub(crate) fn a_file_without_a_name_is_there_until_it_is_closed() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    let mut file = OpenOptions::new();
    let mut file = file
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(mounted.memory.unlinked(), 1);
    file.write_all(b" and after").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "before and after");
    assert!(!path.exists());
    drop(file);
    wait_until("the kernel forgets it", || mounted.memory.unlinked() == 0);
}
