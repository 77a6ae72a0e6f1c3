//! The policy against a slow, independent reading of it, and against the cases it was made for.

use proptest::strategy::Strategy as _;

use super::*;
use crate::node::{Gpu, GpuModel, Guid, HardwareParts, Hca, PciAddress};

fn address(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

/// The paper's node: eight GPUs, NUMA 0 holds GPU 0-3 and the adapter, GPU 5 and 6 share a port.
fn node(nvlinks: Vec<(usize, usize)>, prefer_near_hca: bool) -> Hardware {
    let gpu = |index: u32| {
        let port = if index == 6 { 5 } else { index };
        Gpu {
            uuid: format!("GPU-{index}"),
            address: address(&format!("0000:{:02x}:00.0", index * 0x10 + 1)),
            minor: index,
            numa: index / 4,
            root_port: address(&format!("0000:{:02x}:01.1", port * 0x10)),
        }
    };
    Hardware::new(HardwareParts {
        numa_nodes: vec![0, 1],
        gpu_model: Some(GpuModel {
            product: "NVIDIA-A100-PCIE-40GB".to_owned(),
            memory_mib: 40_960,
        }),
        gpus: (0..8).map(gpu).collect(),
        nvlinks,
        hcas: vec![Hca {
            name: "mlx5_0".to_owned(),
            guid: Guid(1),
            port: 1,
            rate_gbps: 200,
            numa: 0,
            root_port: address("0000:80:01.1"),
            relaxed_ordering: true,
            slots: 8,
        }],
        prefer_near_hca,
    })
    .expect("the node is legal")
}

fn paired() -> Hardware {
    node(vec![(0, 1), (2, 3), (4, 5), (6, 7)], false)
}

fn set(indices: &[usize]) -> GpuSet {
    indices.iter().copied().collect()
}

#[track_caller]
fn check(node: &Hardware, available: &[usize], must: &[usize], size: usize, expected: &[usize]) {
    let chosen = prefer(node, set(available), set(must), GpuSet::default(), size);
    assert_eq!(chosen, Ok(set(expected)));
}

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn one_gpu_is_an_orphan_if_there_is_one() {
    check(&paired(), &[0, 1, 3, 4, 5, 6, 7], &[], 1, &[3]);
    check(&paired(), &[0, 1, 2, 3, 4, 5, 7], &[], 1, &[7]);
    check(&paired(), &ALL, &[], 1, &[0]);
}

#[test]
fn two_gpus_are_a_whole_pair_if_there_is_one() {
    check(&paired(), &ALL, &[], 2, &[0, 1]);
    check(&paired(), &[1, 2, 4, 6, 7], &[], 2, &[6, 7]);
    check(&paired(), &[1, 2, 4, 6], &[], 2, &[1, 2]);
    check(&paired(), &ALL, &[5], 2, &[4, 5]);
}

#[test]
fn three_gpus_are_a_pair_and_an_orphan_before_one_half_of_another_pair() {
    check(&paired(), &[0, 1, 2, 3, 5], &[], 3, &[0, 1, 5]);
}

#[test]
fn a_shared_root_port_is_avoided_until_it_is_needed() {
    let bare = node(vec![], false);
    check(&bare, &[5, 6, 7], &[], 2, &[5, 7]);
    check(&bare, &[0, 5, 6], &[], 2, &[0, 5]);
    check(&bare, &[5, 6], &[], 2, &[5, 6]);
    check(&bare, &ALL, &[], 7, &[0, 1, 2, 3, 4, 5, 7]);
}

#[test]
fn a_set_stays_on_one_numa_node_and_near_the_adapter_if_the_node_asks() {
    let bare = node(vec![], false);
    check(&bare, &[3, 4, 5, 7], &[], 3, &[4, 5, 7]);
    check(&node(vec![], true), &[2, 3, 4, 5], &[], 2, &[2, 3]);
    check(&node(vec![], true), &[0, 4, 5], &[0], 2, &[0, 4]);
}

#[test]
fn a_faulty_gpu_is_taken_last_and_makes_its_pair_worthless() {
    let chosen = |size| prefer(&paired(), set(&ALL), GpuSet::default(), set(&[0]), size);
    assert_eq!(chosen(1), Ok(set(&[1])));
    assert_eq!(chosen(2), Ok(set(&[2, 3])));
    assert_eq!(chosen(8), Ok(set(&ALL)));
}

#[test]
fn what_cannot_be_answered_is_explained() {
    let refused = |available: &[usize], must: &[usize], size| {
        prefer(
            &paired(),
            set(available),
            set(must),
            GpuSet::default(),
            size,
        )
        .expect_err("no answer")
        .to_string()
    };
    assert_eq!(
        refused(&[0, 1], &[], 3),
        "3 GPUs were asked for and 2 are available"
    );
    assert_eq!(
        refused(&[0, 1, 2], &[0, 1], 1),
        "1 GPUs were asked for and 2 must be among them"
    );
    assert_eq!(
        refused(&[0, 1], &[2], 1),
        "GPU 2 must be in the answer and is not available"
    );
}

/// The policy once more, as a person would read it aloud: a list of numbers per set, lowest wins.
fn read_aloud(node: &Hardware, available: GpuSet, chosen: GpuSet) -> Vec<usize> {
    let has = |gpu: &usize| chosen.contains(*gpu);
    let intact = |pair: &&(usize, usize)| available.contains(pair.0) && available.contains(pair.1);
    let halves = |pair: &(usize, usize)| usize::from(has(&pair.0)) + usize::from(has(&pair.1));
    let pairs_with = |n| {
        let pairs = node.nvlinks().iter().filter(intact);
        pairs.filter(|pair| halves(pair) == n).count()
    };
    let both = usize::from(has(&5) && has(&6));
    let left = (0..4).any(|gpu| has(&gpu));
    let right = (4..8).any(|gpu| has(&gpu));
    let mut numbers = vec![
        pairs_with(1),
        8 - pairs_with(2),
        both,
        usize::from(left) + usize::from(right),
        if node.prefers_near_hca() {
            (4..8).filter(has).count()
        } else {
            0
        },
    ];
    numbers.extend(chosen.indices());
    numbers
}

#[test]
fn the_answer_is_the_best_of_all_for_every_question() {
    for near in [false, true] {
        for nvlinks in [vec![], vec![(0, 1), (2, 3), (4, 5), (6, 7)]] {
            let node = node(nvlinks, near);
            for mask in 0..256_u32 {
                let available = GpuSet(mask);
                for size in 1..=available.len() {
                    for must in [0, 1, 1 << 5, 1 << 5 | 1 << 6, 1 << 2 | 1 << 7] {
                        best_of_all(&node, available, GpuSet(mask & must), size);
                    }
                }
            }
        }
    }
}

fn best_of_all(node: &Hardware, available: GpuSet, must: GpuSet, size: usize) {
    let chosen = prefer(node, available, must, GpuSet::default(), size);
    let best = (0..256)
        .map(GpuSet)
        .filter(|set| set.len() == size)
        .filter(|set| set.without(available).is_empty() && must.without(*set).is_empty())
        .min_by_key(|set| read_aloud(node, available, *set));
    assert_eq!(chosen.ok(), best, "{available:?} {must:?} {size}");
}

proptest::proptest! {
    #[test]
    fn the_order_of_the_lists_never_shows(
        shuffled in proptest::sample::subsequence(ALL.to_vec(), 1..=8).prop_shuffle(),
        size in 1_usize..=8,
    ) {
        let mut sorted = shuffled.clone();
        sorted.sort_unstable();
        let ask = |list: &[usize]| prefer(&paired(), set(list), GpuSet::default(), GpuSet::default(), size);
        proptest::prop_assert_eq!(ask(&shuffled), ask(&sorted));
    }
}
