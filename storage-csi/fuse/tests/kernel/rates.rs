//! How fast the mount of a file system in memory is: printed, since it is the machine's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sim::Rng;

use super::mounted::Mounted;

const FILE_BYTES: usize = 64 << 20;
const SPAN: Duration = Duration::from_millis(700);

/// Calls a second, each at the next or at a random place of the file.
fn calls(
    bytes: usize,
    random: bool,
    seed: u64,
    mut call: impl FnMut(&mut [u8], u64) -> io::Result<()>,
) -> f64 {
    // Direct reads and writes want memory that begins at a page.
    let mut memory = vec![0u8; bytes + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let buffer = &mut memory[start..start + bytes];
    let (mut rng, started) = (Rng::new(seed), Instant::now());
    let places = FILE_BYTES / bytes;
    let mut count = 0;
    while started.elapsed() < SPAN {
        let place = if random {
            rng.below(places)
        } else {
            count % places
        };
        call(buffer, (place * bytes) as u64).unwrap();
        count += 1;
    }
    count as f64 / started.elapsed().as_secs_f64()
}

pub(crate) fn rates() {
    let mounted = Mounted::keeping(Duration::from_secs(3600));
    let path = mounted.path("file");
    let open = || -> File {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let direct = OFlags::DIRECT.bits().cast_signed();
        options.custom_flags(direct).open(&path).unwrap()
    };
    let file = open();
    file.set_len(FILE_BYTES as u64).unwrap();
    let writes = calls(1 << 20, false, 0, |buffer, at| {
        file.write_all_at(buffer, at)
    });
    let reads = calls(1 << 20, false, 0, |buffer, at| {
        file.read_exact_at(buffer, at)
    });
    println!("1 MiB direct, in order: write {writes:.0} MiB/s, read {reads:.0} MiB/s");
    for jobs in [1, 2, 4] {
        let total: f64 = thread::scope(|scope| {
            let job = |seed| {
                let file = open();
                calls(4096, true, seed, |buffer, at| {
                    file.read_exact_at(buffer, at)
                })
            };
            let jobs: Vec<_> = (0..jobs)
                .map(|seed| scope.spawn(move || job(seed)))
                .collect();
            jobs.into_iter().map(|job| job.join().unwrap()).sum()
        });
        println!("4 KiB direct, random, {jobs} jobs: {total:.0} reads/s");
    }
}
