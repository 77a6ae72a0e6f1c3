//! What sysfs and procfs say of the machine and of this process's part of it. Every function takes the root of the file
//! system, so that tests can invent a machine.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use topology::numa::{NumaNode, Numbers};
use topology::placement::NumaMachine;

use super::NumaAdapter;

/// How deep bonds and bridges are followed to the devices below them.
const DEPTH: usize = 3;

/// Memory that is free for this process: of the machine, and of its control group.
pub fn free_bytes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let meminfo = read("/proc/meminfo")?;
    let available = meminfo.lines().find_map(|line| {
        let kib = line.strip_prefix("MemAvailable:")?.trim();
        kib.strip_suffix(" kB")?.parse::<u64>().ok()
    })?;
    let limit = number("/sys/fs/cgroup/memory.max");
    let left = limit
        .map(|limit| limit.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    Some(left.unwrap_or(u64::MAX).min(available << 10))
}

/// The machine, but for its adapter and for what the kernel lets this process say.
pub(super) fn seen(root: &Path) -> NumaMachine {
    let sys = root.join("sys/devices/system/node");
    let nodes = list(&sys.join("online")).unwrap_or_default();
    let nodes = nodes.iter().filter_map(|number| {
        let cpus = list(&sys.join(format!("node{number}/cpulist")))?;
        Some(NumaNode { number, cpus })
    });
    // Of the thread: the settings of other threads do not matter.
    let status = fs::read_to_string(root.join("proc/thread-self/status")).unwrap_or_default();
    let allowed = |field: &str| -> Numbers {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.parse().ok()).unwrap_or_default()
    };
    let memory = allowed("Mems_allowed_list:");
    let has_memory = list(&sys.join("has_memory"));
    NumaMachine {
        nodes: nodes.collect(),
        memory: has_memory.map_or(memory.clone(), |there| memory.and(&there)),
        cpus: allowed("Cpus_allowed_list:"),
        adapter: None,
        may_set_policy: false,
    }
}

fn list(path: &Path) -> Option<Numbers> {
    fs::read_to_string(path).ok()?.parse().ok()
}

/// The NUMA node of the RDMA device, else that of the interface with the node's address. Devices that are at
/// different nodes, and none of which is named, say nothing.
pub(super) fn adapter_node(root: &Path, adapter: &NumaAdapter) -> Option<u32> {
    let devices = root.join("sys/class/infiniband");
    let rdma = match (adapter.uses_rdma, &adapter.rdma) {
        (false, _) => None,
        (true, Some(name)) => device_node(&devices.join(name)),
        (true, None) => agreed(children(&devices).filter_map(|device| device_node(&device))),
    };
    rdma.or_else(|| {
        let name = interface(root, adapter.address)?;
        interface_node(&root.join("sys/class/net").join(name), DEPTH)
    })
}

/// What sysfs says of a device. Machines without NUMA say -1.
fn device_node(device: &Path) -> Option<u32> {
    let text = fs::read_to_string(device.join("device/numa_node")).ok()?;
    text.trim().parse().ok()
}

/// An interface's own device, or those of the interfaces that it is made of.
fn interface_node(interface: &Path, depth: usize) -> Option<u32> {
    device_node(interface).or_else(|| {
        let depth = depth.checked_sub(1)?;
        let lower = children(interface).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("lower_"))
        });
        agreed(lower.filter_map(|lower| interface_node(&lower, depth)))
    })
}

fn children(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The only one of them.
fn agreed(mut nodes: impl Iterator<Item = u32>) -> Option<u32> {
    let first = nodes.next()?;
    nodes.all(|node| node == first).then_some(first)
}

/// The interface that a node is reached over, by its network. Without a crate that asks the kernel for addresses, the
/// tables that it writes have to do: connected networks for IPv4, addresses for IPv6.
fn interface(root: &Path, address: IpAddr) -> Option<String> {
    match address {
        IpAddr::V4(address) => {
            let routes = fs::read_to_string(root.join("proc/net/route")).ok()?;
            let network = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let word = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
                // In the order of the bytes in memory.
                let (to, gateway, mask) = (word(1)?, word(2)?, word(7)?);
                let ours = u32::from_ne_bytes(address.octets());
                let is_ours = gateway == 0 && mask != 0 && ours & mask == to;
                is_ours.then(|| (mask.count_ones(), words[0].to_owned()))
            };
            routes
                .lines()
                .skip(1)
                .filter_map(network)
                .max()
                .map(|(_, name)| name)
        }
        IpAddr::V6(address) => {
            let addresses = fs::read_to_string(root.join("proc/net/if_inet6")).ok()?;
            let ours = format!("{:032x}", u128::from(address));
            let line = addresses.lines().find(|line| line.starts_with(&ours))?;
            line.split_whitespace().last().map(str::to_owned)
        }
    }
}

/// Whether shared memory has huge pages, or what keeps it from them.
pub(super) fn huge_pages(root: &Path, got: bool) -> String {
    if got {
        return "yes".to_owned();
    }
    let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
    let setting = text.split(['[', ']']).nth(1).unwrap_or("not there");
    match setting {
        "always" | "within_size" | "advise" => {
            format!("none: shmem_enabled is {setting}, and the kernel had none to give")
        }
        _ => format!("none: /{file} is {setting}; `advise` allows them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system with the paper's machine: two sockets, the adapter at the second.
    fn paper() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/devices/system/node/has_memory", "0-1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-31\n"),
            ("sys/devices/system/node/node1/cpulist", "32-63\n"),
            (
                "proc/thread-self/status",
                "Name:\tx\nCpus_allowed_list:\t8-15,32-35\nMems_allowed_list:\t0-1\n",
            ),
            ("sys/class/net/eth0/device/numa_node", "0\n"),
            ("sys/class/net/ib0/device/numa_node", "1\n"),
            ("sys/class/net/bond0/lower_ib0/device/numa_node", "1\n"),
            ("sys/class/net/veth0/carrier", "1\n"),
            (
                "proc/net/route",
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                 eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n\
                 eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\n\
                 ib0\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                 bond0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                 veth0\t0003000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n",
            ),
            (
                "proc/net/if_inet6",
                "fd000000000000000000000000000007 03 40 00 80      ib0\n",
            ),
        ] {
            put(root.path(), path, text);
        }
        root
    }

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn at(root: &Path, address: &str, rdma: Option<&str>, uses_rdma: bool) -> Option<u32> {
        let adapter = NumaAdapter {
            address: address.parse().unwrap(),
            rdma: rdma.map(str::to_owned),
            uses_rdma,
        };
        adapter_node(root, &adapter)
    }

    #[test]
    fn the_machine_is_what_sysfs_and_the_cpuset_say() {
        let root = paper();
        let machine = seen(root.path());
        assert_eq!(machine.nodes.len(), 2);
        assert_eq!(machine.runs_on(0).to_string(), "8-15");
        assert_eq!(machine.runs_on(1).to_string(), "32-35");
        assert_eq!(machine.memory.to_string(), "0-1");
        put(root.path(), "sys/devices/system/node/has_memory", "0\n");
        assert_eq!(seen(root.path()).memory.to_string(), "0");
    }

    #[test]
    fn what_is_not_there_is_a_machine_without_numa() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(seen(root.path()), NumaMachine::default());
        assert_eq!(at(root.path(), "10.0.1.7", None, true), None);
    }

    #[test]
    fn the_adapter_is_that_of_the_network_with_the_nodes_address() {
        let root = paper();
        let root = root.path();
        assert_eq!(at(root, "10.9.9.9", None, false), Some(0));
        assert_eq!(at(root, "10.0.1.7", None, false), Some(1));
        assert_eq!(at(root, "fd00::7", None, false), Some(1));
        assert_eq!(at(root, "10.0.2.7", None, false), Some(1), "a bond");
        assert_eq!(at(root, "10.0.3.7", None, false), None, "a pod's own");
        assert_eq!(at(root, "192.0.2.1", None, false), None);
    }

    #[test]
    fn an_rdma_device_comes_before_the_interface() {
        let root = paper();
        let root = root.path();
        put(root, "sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
        assert_eq!(at(root, "10.9.9.9", None, true), Some(1));
        assert_eq!(at(root, "10.9.9.9", None, false), Some(0));
        put(root, "sys/class/infiniband/mlx5_1/device/numa_node", "0\n");
        assert_eq!(at(root, "10.0.3.7", None, true), None, "which of them?");
        assert_eq!(at(root, "10.0.3.7", Some("mlx5_1"), true), Some(0));
        put(root, "sys/class/infiniband/rxe0/device/numa_node", "-1\n");
        assert_eq!(at(root, "10.0.1.7", Some("rxe0"), true), Some(1));
    }

    #[test]
    fn what_keeps_huge_pages_away_is_said() {
        let root = paper();
        let root = root.path();
        let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
        put(root, file, "always within_size advise [never] deny force\n");
        let said = huge_pages(root, false);
        assert!(said.contains("is never") && said.contains(file), "{said}");
        put(root, file, "always within_size [advise] never deny force\n");
        let said = huge_pages(root, false);
        assert!(said.contains("none to give"), "{said}");
        assert_eq!(huge_pages(root, true), "yes");
    }
}
