//! What a legal node is, and how an illegal one is explained.

use super::*;

fn address(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

/// The smallest node that has everything: two bridged GPUs and an adapter.
fn parts() -> HardwareParts {
    let gpu = |index: u32| Gpu {
        uuid: format!("GPU-{index}"),
        address: address(&format!("0000:0{}:00.0", index + 1)),
        minor: index,
        numa: 0,
        root_port: address(&format!("0000:00:0{}.1", index + 1)),
    };
    HardwareParts {
        numa_nodes: vec![0],
        gpu_model: Some(GpuModel {
            product: "NVIDIA-A100-PCIE-40GB".to_owned(),
            memory_mib: 40_960,
        }),
        gpus: vec![gpu(0), gpu(1)],
        nvlinks: vec![(1, 0)],
        hcas: vec![Hca {
            name: "mlx5_0".to_owned(),
            guid: Guid(1),
            port: 1,
            rate_gbps: 200,
            numa: 0,
            root_port: address("0000:20:01.1"),
            relaxed_ordering: true,
            slots: 8,
        }],
        prefer_near_hca: false,
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut HardwareParts), expected: &str) {
    let mut parts = parts();
    change(&mut parts);
    let error = Hardware::new(parts).expect_err("the node is refused");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_bridge_is_the_same_from_either_end() {
    let node = Hardware::new(parts()).expect("the node is legal");
    assert_eq!(node.nvlinks(), [(0, 1)]);
}

#[test]
fn gpus_on_one_root_port_are_a_group() {
    let mut parts = parts();
    parts.gpus[1].root_port = parts.gpus[0].root_port;
    let node = Hardware::new(parts).expect("the node is legal");
    assert_eq!(node.shared_root_ports(), [[0, 1]]);
}

#[test]
fn every_refusal_says_where_what_and_what_to_do() {
    refused(
        |parts| parts.numa_nodes.clear(),
        "numaNodes: a node has at least one NUMA node; list their numbers, for example [0, 1]",
    );
    refused(
        |parts| parts.numa_nodes.push(0),
        "numaNodes[1]: NUMA node 0 is listed twice; remove one",
    );
    refused(
        |parts| parts.gpu_model = None,
        "gpuModel: there are GPUs, and nothing says what they are; give product and memoryMib",
    );
    refused(
        |parts| parts.gpus[1].numa = 2,
        "gpus[1].numa: NUMA node 2 is not in numaNodes; add it there, or correct the number",
    );
    refused(
        |parts| parts.gpus[1].uuid = parts.gpus[0].uuid.clone(),
        "gpus[1].uuid: GPU-0 is the UUID of another GPU too; give each GPU its own",
    );
    refused(
        |parts| parts.gpus[1].uuid = "GPU,1".to_owned(),
        "gpus[1].uuid: `GPU,1` cannot name a device; \
         use 1 to 56 of the characters A-Z a-z 0-9 - _ starting with a letter",
    );
    refused(
        |parts| parts.gpus[1].minor = 0,
        "gpus[1].minor: 0 is the minor of another GPU too; give each GPU its own",
    );
    refused(
        |parts| parts.gpus.swap(0, 1),
        "gpus[1].address: 0000:01:00.0 does not follow its predecessor's; \
         list GPUs in the order of their PCI addresses, each address once",
    );
    refused(
        |parts| parts.nvlinks.push((0, 0)),
        "nvlinks[1]: GPU 0 is bridged to itself; name two different GPUs",
    );
    refused(
        |parts| parts.nvlinks[0] = (0, 2),
        "nvlinks[0]: there is no GPU 2, the node has 2; name GPUs by their position in gpus, from 0",
    );
    refused(
        |parts| parts.nvlinks.push((0, 1)),
        "nvlinks[1]: GPU 0 is in another bridge too; a GPU has one bridge, to one other GPU",
    );
    refused(
        |parts| parts.hcas.push(parts.hcas[0].clone()),
        "hcas[1].port: mlx5_0 port 1 is listed twice; list each port once",
    );
    refused(
        |parts| parts.hcas[0].port = 0,
        "hcas[0].port: ports count from 1; correct it",
    );
    refused(
        |parts| parts.hcas[0].slots = 100,
        "hcas[0].slots: 100 slots are not between 1 and 99; use as many as the node has GPUs",
    );
    refused(
        |parts| parts.hcas[0].numa = 7,
        "hcas[0].numa: NUMA node 7 is not in numaNodes; add it there, or correct the number",
    );
}

#[test]
fn a_node_too_large_to_choose_in_is_refused() {
    let mut parts = parts();
    parts.nvlinks.clear();
    let first = parts.gpus[0].clone();
    parts.gpus = (0..17)
        .map(|index| Gpu {
            uuid: format!("GPU-{index}"),
            minor: index,
            address: address(&format!("0000:{index:02x}:00.0")),
            ..first.clone()
        })
        .collect();
    let error = Hardware::new(parts).expect_err("seventeen GPUs are refused");
    assert_eq!(error.at, "gpus");
}

#[test]
fn addresses_print_as_the_kernel_writes_them() {
    for (given, printed) in [
        ("0000:c1:00.0", "0000:c1:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("10000:01:1f.7", "10000:01:1f.7"),
    ] {
        assert_eq!(address(given).to_string(), printed);
    }
    for given in [
        "",
        "c1:00.0",
        "0000:c1:20.0",
        "0000:c1:00.8",
        "0000:+1:00.0",
    ] {
        assert!(given.parse::<PciAddress>().is_err(), "{given}");
    }
}

#[test]
fn guids_print_as_they_were_read() {
    let text = "b859:9f03:00d4:1c2a";
    assert_eq!(text.parse::<Guid>().expect("a GUID").to_string(), text);
    for given in [
        "",
        "b859:9f03:00d4",
        "b859:9f03:00d4:1c2g",
        "b8599f0300d41c2a",
    ] {
        assert!(given.parse::<Guid>().is_err(), "{given}");
    }
}
