//! What every placement keeps, in pools of random shapes: no two replicas in one domain, as many chains as possible, equal
//! shares of chains and of roles, and no change of what exists.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};

use chain_placement::{PlacementError, PoolShape, PoolTarget, missing_chains};
use sim::{Rng, explore};

fn targets(sizes: &[usize]) -> Vec<PoolTarget<u32>> {
    let domains = sizes.iter().enumerate();
    let named = domains.flat_map(|(domain, size)| (0..*size).map(move |at| (domain, at)));
    named
        .map(|(domain, at)| PoolTarget {
            target: (domain * 1000 + at) as u32,
            domain: format!("node-{domain}"),
        })
        .collect()
}

fn domain(target: u32) -> u32 {
    target / 1000
}

/// The most chains that any choice could make: each takes at most one slot of a domain.
fn most(slots: &[usize], replicas: usize) -> usize {
    let is_possible = |chains: usize| {
        let usable: usize = slots.iter().map(|slots| (*slots).min(chains)).sum();
        usable >= chains * replicas
    };
    (0..)
        .take_while(|chains| is_possible(*chains))
        .last()
        .unwrap()
}

fn count(chains: &[Vec<u32>], of: impl Fn(&Vec<u32>) -> Vec<u32>) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for target in chains.iter().flat_map(of) {
        *counts.entry(target).or_default() += 1;
    }
    counts
}

fn check(sizes: &[usize], shape: PoolShape, existing: &[Vec<u32>], rng: &mut Rng) -> Vec<Vec<u32>> {
    let mut pool = targets(sizes);
    let chains = missing_chains(&pool, shape, existing).unwrap();
    rng.shuffle(&mut pool);
    assert_eq!(missing_chains(&pool, shape, existing).unwrap(), chains);
    for chain in &chains {
        let domains: BTreeSet<_> = chain.iter().map(|target| domain(*target)).collect();
        assert_eq!(
            (chain.len(), domains.len()),
            (shape.replicas, shape.replicas)
        );
    }
    let had = count(existing, Vec::clone);
    let all = [existing, &chains].concat();
    let has = count(&all, Vec::clone);
    assert!(
        has.values()
            .all(|chains| *chains <= shape.chains_per_target)
    );
    let free = |target: &u32| shape.chains_per_target - had.get(target).unwrap_or(&0);
    let mut slots = vec![0; sizes.len()];
    for PoolTarget { target, .. } in &pool {
        slots[domain(*target) as usize] += free(target);
    }
    assert_eq!(
        chains.len(),
        most(&slots, shape.replicas),
        "{sizes:?} {shape:?}"
    );
    all
}

/// How many more chains than its share a target may lead, or end. Roles are given chain by chain and without looking ahead:
/// one more is usual, two are rare, and three were not seen in 455,417 random pools.
const SLACK: usize = 2;

fn shape(rng: &mut Rng) -> (Vec<usize>, PoolShape) {
    let replicas = rng.range(1..6) as usize;
    let domains = rng.range(replicas as u64..13) as usize;
    let most = rng.range(1..9);
    let sizes = (0..domains)
        .map(|_| rng.range(1..most + 1) as usize)
        .collect();
    let chains_per_target = rng.range(1..13) as usize;
    let shape = PoolShape {
        replicas,
        chains_per_target,
    };
    (sizes, shape)
}

/// The difference between the most and the least of some targets.
fn spread(counts: &BTreeMap<u32, usize>, targets: impl Iterator<Item = u32> + Clone) -> usize {
    let of = |target| counts.get(&target).copied().unwrap_or(0);
    let (least, most) = (targets.clone().map(of).min(), targets.map(of).max());
    most.unwrap() - least.unwrap()
}

#[test]
fn chains_are_as_many_as_possible_and_shared_equally() {
    explore(2_000, &[10431462393979602118], |rng| {
        let (sizes, shape) = shape(rng);
        let chains = check(&sizes, shape, &[], rng);
        let has = count(&chains, Vec::clone);
        for (at, size) in (0u32..).zip(&sizes) {
            let targets = (0..*size as u32).map(|target| at * 1000 + target);
            assert!(spread(&has, targets) <= 1, "{sizes:?} {shape:?}");
        }
        // Nobody leads, or ends, many more than its share.
        for role in [
            count(&chains, |chain| vec![chain[0]]),
            count(&chains, |chain| vec![*chain.last().unwrap()]),
        ] {
            for (target, times) in role {
                let due = has[&target].div_ceil(shape.replicas);
                assert!(
                    times <= due + SLACK,
                    "{target}: {times} of {due}, {sizes:?} {shape:?}"
                );
            }
        }
    });
}

#[test]
fn a_pool_that_grows_keeps_its_chains_and_uses_what_is_new() {
    explore(1_000, &[], |rng| {
        let (mut sizes, mut shape) = shape(rng);
        let before = check(&sizes, shape, &[], rng);
        for size in &mut sizes {
            *size += rng.range(0..4) as usize;
        }
        sizes.extend((0..rng.range(0..5)).map(|_| 2));
        shape.chains_per_target += rng.range(0..4) as usize;
        let after = check(&sizes, shape, &before, rng);
        assert!(after.starts_with(&before));
        assert_eq!(check(&sizes, shape, &after, rng), after);
    });
}

#[test]
fn a_lost_target_is_replaced_by_many() {
    let shape = PoolShape {
        replicas: 3,
        chains_per_target: 6,
    };
    let pool = targets(&[1; 13]);
    let chains = missing_chains(&pool, shape, &[]).unwrap();
    assert_eq!(chains.len(), 26);
    for lost in pool.iter().map(|target| target.target) {
        let with = chains.iter().filter(|chain| chain.contains(&lost));
        let others: BTreeSet<_> = with.flatten().filter(|other| **other != lost).collect();
        // Its six chains have twelve other places.
        assert!(
            others.len() >= 8,
            "{lost} shares chains with {others:?} only"
        );
    }
}

#[test]
fn three_targets_make_chains_that_each_leads_a_third_of() {
    let shape = PoolShape {
        replicas: 3,
        chains_per_target: 6,
    };
    let chains = missing_chains(&targets(&[1, 1, 1]), shape, &[]).unwrap();
    for role in [0, 1, 2] {
        let held = count(&chains, |chain| vec![chain[role]]);
        assert_eq!(held.into_values().collect::<Vec<_>>(), [2, 2, 2]);
    }
}

#[test]
fn a_pool_of_thousands_of_targets_is_placed() {
    let shape = PoolShape {
        replicas: 3,
        chains_per_target: 6,
    };
    let chains = missing_chains(&targets(&[16; 180]), shape, &[]).unwrap();
    assert_eq!(chains.len(), 180 * 16 * 6 / 3);
}

#[test]
fn what_cannot_be_placed_says_why() {
    let shape = |replicas| PoolShape {
        replicas,
        chains_per_target: 1,
    };
    let pool = targets(&[4, 4]);
    let said = |replicas| missing_chains(&pool, shape(replicas), &[]).unwrap_err();
    assert_eq!(said(0), PlacementError::NoReplicas);
    assert!(
        said(3)
            .to_string()
            .starts_with("3 replicas need 3 failure domains, and the pool's targets are in 2")
    );
    let twice = [pool.clone(), pool.clone()].concat();
    let said = missing_chains(&twice, shape(1), &[]).unwrap_err();
    assert_eq!(
        said.to_string(),
        "the target 0 is named twice: name each target once"
    );
    // A target that is named for two domains is one target all the same.
    let mut two = pool;
    two[7].target = two[0].target;
    assert!(matches!(
        missing_chains(&two, shape(1), &[]),
        Err(PlacementError::Twice { .. })
    ));
}
