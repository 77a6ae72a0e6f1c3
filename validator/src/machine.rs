//! The node as the kernel describes it: cores, NUMA nodes, caches, memory, versions. Also threads
//! that stay on a core. What is missing in a container or a virtual machine is left out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use health::Fingerprint;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the kernel describes cores and NUMA nodes.
pub(crate) const SYSTEM: &str = "/sys/devices/system";
/// Most of such a file that is read: `/proc/cpuinfo` says about the first core what it says about
/// all.
const FILE_BYTES: u64 = 16 << 10;
/// NUMA nodes that are looked for. Two sockets in eight parts each are 16.
const MAX_NUMA: usize = 16;
/// Cache of a core where the kernel says nothing.
const CACHE_BYTES: u64 = 32 << 20;
/// Our own limit of memory and what is used of it: in version 2 of cgroups, then in version 1.
const CGROUP_FILES: [[&str; 2]; 2] = [
    ["memory.max", "memory.current"],
    [
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
    ],
];

/// A NUMA node, and those of its cores that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NumaNode {
    pub(crate) index: usize,
    pub(crate) cores: Vec<usize>,
}

/// The start of a file of the kernel, without blanks around it; empty if there is none.
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    let mut bytes = Vec::new();
    let _missing = File::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The cores that this process may use.
pub(crate) fn cores() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("failed to ask which cores may be used")?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect())
}

/// Keeps this thread on a core.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Does work on each core at once, and returns what came out, in the order of the cores.
pub(crate) fn on_each<T: Send>(
    cores: &[usize],
    work: impl Fn(usize) -> T + Sync,
) -> anyhow::Result<Vec<T>> {
    thread::scope(|scope| {
        let start = |&core: &usize| {
            let work = &work;
            scope.spawn(move || pin(core).map(|()| work(core)))
        };
        let threads: Vec<_> = cores.iter().map(start).collect();
        let ends = threads.into_iter().zip(cores).map(|(thread, core)| {
            let end = thread
                .join()
                .map_err(|_| io::Error::other("its thread panicked"));
            end.flatten()
                .with_context(|| format!("failed to use core {core}"))
        });
        ends.collect()
    })
}

/// Rounds that some threads do at the same time.
pub(crate) struct Rounds {
    together: Barrier,
    are_over: AtomicBool,
}

impl Rounds {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            together: Barrier::new(threads),
            are_over: AtomicBool::new(false),
        }
    }

    /// Waits for all threads, and says whether there is another round: one thread decides for all.
    pub(crate) fn have_another(&self, are_over: impl FnOnce() -> bool) -> bool {
        if self.together.wait().is_leader() {
            self.are_over.store(are_over(), Ordering::Relaxed);
        }
        self.together.wait();
        !self.are_over.load(Ordering::Relaxed)
    }
}

/// How long the best round took, of what each thread took for each. A round takes as long as its
/// slowest thread.
pub(crate) fn best_round(times: &[Vec<Duration>]) -> Duration {
    let rounds = times.iter().map(Vec::len).min().unwrap_or_default();
    let longest = |round: usize| times.iter().map(|times| times[round]).max();
    let best = (0..rounds).filter_map(longest).min();
    best.unwrap_or_default().max(Duration::from_nanos(1))
}

/// The NUMA nodes that have some of the cores; one with all of them where the kernel names none.
pub(crate) fn numa(system: &Path, allowed: &[usize]) -> Vec<NumaNode> {
    let of_node = |index: usize| {
        let cores = list(&text(system.join(format!("node/node{index}/cpulist"))));
        let cores = cores
            .into_iter()
            .filter(|core| allowed.contains(core))
            .collect();
        NumaNode { index, cores }
    };
    let mut nodes: Vec<_> = (0..MAX_NUMA).map(of_node).collect();
    nodes.retain(|node| !node.cores.is_empty());
    if nodes.is_empty() {
        let cores = allowed.to_vec();
        nodes.push(NumaNode { index: 0, cores });
    }
    nodes
}

/// Size of the last level of cache of these cores, all parts together.
pub(crate) fn cache_bytes(system: &Path, cores: &[usize]) -> u64 {
    let mut parts = BTreeMap::new();
    for core in cores {
        let of_level = |level: usize| {
            let cache = system.join(format!("cpu/cpu{core}/cache/index{level}"));
            let bytes = size(&text(cache.join("size")))?;
            Some((text(cache.join("shared_cpu_list")), bytes))
        };
        // 0 to 2 are the first level, of data and of instructions, and the second.
        if let Some((shared_by, bytes)) = of_level(3).or_else(|| of_level(2)) {
            parts.insert(shared_by, bytes);
        }
    }
    match parts.is_empty() {
        true => CACHE_BYTES,
        false => parts.values().sum(),
    }
}

/// Memory that can be used without taking it from others: the node's, within our own limit.
pub(crate) fn available_bytes() -> u64 {
    let meminfo = text("/proc/meminfo");
    let of_node = meminfo
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemAvailable:")?
                .trim()
                .strip_suffix(" kB")
        })
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or_default()
        << 10;
    match unused_bytes(Path::new("/sys/fs/cgroup")) {
        Some(unused) => of_node.min(unused),
        None => of_node,
    }
}

/// What our own limit leaves, if there is one.
fn unused_bytes(cgroup: &Path) -> Option<u64> {
    let number = |file: &str| text(cgroup.join(file)).parse::<u64>().ok();
    let unused = |[limit, used]: [&str; 2]| Some(number(limit)?.saturating_sub(number(used)?));
    CGROUP_FILES.into_iter().find_map(unused)
}

/// What the node's values depend on.
pub(crate) fn fingerprint() -> Fingerprint {
    let cpuinfo = text("/proc/cpuinfo");
    let cpu = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        // Arm's cores have no names, only numbers of vendor and part.
        .filter(|(key, _)| matches!(key.trim(), "model name" | "CPU implementer" | "CPU part"))
        .map(|(_, value)| value.trim())
        .collect::<Vec<_>>();
    let cpu = match cpu.as_slice() {
        [model, next, ..] if model == next => (*model).to_owned(),
        [first, second, ..] if first.starts_with("0x") => format!("{first} {second}"),
        [first, ..] => (*first).to_owned(),
        [] => String::new(),
    };
    Fingerprint {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        cpu,
        driver: text("/sys/module/nvidia/version"),
        firmware: text("/sys/class/dmi/id/bios_version"),
        validator: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The kernel's lists: `0-3,8`.
fn list(text: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            numbers.extend(first..=last.min(CpuSet::MAX_CPU));
        }
    }
    numbers
}

/// The kernel's sizes of caches: `32768K`.
fn size(text: &str) -> Option<u64> {
    Some(text.strip_suffix('K')?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read_and_nonsense_is_nothing() {
        assert_eq!(list("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(list("5"), [5]);
        assert_eq!(list(""), [0; 0]);
        assert_eq!(list("3-1,x,9-"), [0; 0]);
        assert!(list("0-99999999999").len() <= CpuSet::MAX_CPU + 1);
    }

    #[test]
    fn nodes_have_their_allowed_cores_and_caches_count_once() {
        let system = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(numa(system.path(), &[4, 5])[0].cores, [4, 5]);
        assert_eq!(cache_bytes(system.path(), &[0]), CACHE_BYTES);
        write("node/node0/cpulist", "0-3\n");
        write("node/node1/cpulist", "4-7\n");
        for core in 0..4 {
            let shared = if core < 2 { "0-1" } else { "2-3" };
            write(&format!("cpu/cpu{core}/cache/index3/size"), "16384K\n");
            write(
                &format!("cpu/cpu{core}/cache/index3/shared_cpu_list"),
                shared,
            );
        }
        let nodes = numa(system.path(), &[1, 2, 3, 5]);
        let cores: Vec<_> = nodes.iter().map(|node| node.cores.clone()).collect();
        assert_eq!(cores, [vec![1, 2, 3], vec![5]]);
        assert_eq!(cache_bytes(system.path(), &[0, 1, 2]), 32 << 20);
    }

    #[test]
    fn a_limit_of_either_version_of_cgroups_counts_and_none_is_none() {
        for [limit, used] in CGROUP_FILES {
            let cgroup = tempfile::tempdir().unwrap();
            let write = |file: &str, text: &str| fs::write(cgroup.path().join(file), text).unwrap();
            fs::create_dir(cgroup.path().join("memory")).unwrap();
            assert_eq!(unused_bytes(cgroup.path()), None);
            write(used, "300\n");
            write(limit, "max\n");
            assert_eq!(unused_bytes(cgroup.path()), None);
            write(limit, "1000\n");
            assert_eq!(unused_bytes(cgroup.path()), Some(700));
            write(limit, "200\n");
            assert_eq!(unused_bytes(cgroup.path()), Some(0));
        }
    }

    #[test]
    fn all_threads_do_the_same_rounds_and_the_slowest_counts() {
        let rounds = Rounds::new(3);
        let counts: Vec<u32> = thread::scope(|scope| {
            let work = |limit: u32| {
                let rounds = &rounds;
                move || {
                    let mut count = 0;
                    while rounds.have_another(|| count >= limit) {
                        count += 1;
                    }
                    count
                }
            };
            // Whoever decides, has its own limit.
            let threads = [3, 4, 5].map(|limit| scope.spawn(work(limit)));
            threads.map(|thread| thread.join().unwrap()).to_vec()
        });
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
        assert!((3..=5).contains(&counts[0]), "{counts:?}");
        let times = [[5, 2, 4], [1, 6, 4]].map(|times| times.map(Duration::from_millis).to_vec());
        assert_eq!(best_round(&times), Duration::from_millis(4));
    }

    #[test]
    fn this_machine_has_cores_memory_and_a_name() {
        assert!(available_bytes() > 0);
        assert!(!fingerprint().kernel.is_empty());
        let cores = cores().unwrap();
        assert_eq!(on_each(&cores, |core| core).unwrap(), cores);
        let error = on_each(&[1023], |core| core).unwrap_err();
        assert!(format!("{error:#}").starts_with("failed to use core 1023: "));
    }
}
