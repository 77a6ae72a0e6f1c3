//! Which targets make a chain: from a pool's targets, their failure domains and the number of replicas to chains, and from
//! the chains that exist to those that are missing. What a target is, where it lies and whether it works is known by the
//! caller; a chain that exists is never changed.

mod draw;

use std::collections::BTreeMap;

use draw::Draw;

/// A target of a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolTarget<T> {
    /// Its name.
    pub target: T,
    /// What it is lost with, such as its node. No chain has two targets of one domain.
    pub domain: String,
}

/// What a pool asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Targets of a chain.
    pub replicas: usize,
    /// Chains of a target, at most: that many wherever domains of about the same size make it possible.
    pub chains_per_target: usize,
}

/// Why a pool cannot have a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A chain of no targets keeps nothing.
    #[error("a chain needs at least one replica: set replicas to 1 or more")]
    NoReplicas,
    /// A chain would have two targets that are lost together.
    #[error(
        "{replicas} replicas need {replicas} failure domains, and the pool's targets are in {domains}: add targets in \
         other domains, or ask for fewer replicas"
    )]
    TooFewDomains {
        /// What is asked for.
        replicas: usize,
        /// What is there.
        domains: usize,
    },
    /// A target was named twice.
    #[error("the target {target} is named twice: name each target once")]
    Twice {
        /// The target.
        target: String,
    },
}

/// The chains that the pool lacks, each with its head first and its tail last. They are as many as possible, and the same
/// for the same targets in whatever order. Chains of other pools, and targets that are in no pool, are not given.
pub fn missing_chains<T: Copy + Ord + ToString>(
    targets: &[PoolTarget<T>],
    shape: PoolShape,
    existing: &[Vec<T>],
) -> Result<Vec<Vec<T>>, PlacementError> {
    if shape.replicas == 0 {
        return Err(PlacementError::NoReplicas);
    }
    let mut sorted: Vec<&PoolTarget<T>> = targets.iter().collect();
    sorted.sort_by(|one, other| (&one.domain, one.target).cmp(&(&other.domain, other.target)));
    let mut numbers = BTreeMap::new();
    let mut domains: Vec<(&str, Vec<usize>)> = Vec::new();
    for (number, PoolTarget { target, domain }) in sorted.iter().copied().enumerate() {
        if numbers.insert(*target, number).is_some() {
            let target = target.to_string();
            return Err(PlacementError::Twice { target });
        }
        match domains.last_mut() {
            Some((last, numbers)) if *last == domain => numbers.push(number),
            Some(_) | None => domains.push((domain, vec![number])),
        }
    }
    if domains.len() < shape.replicas {
        return Err(PlacementError::TooFewDomains {
            replicas: shape.replicas,
            domains: domains.len(),
        });
    }
    let domains = domains.into_iter().map(|(_, numbers)| numbers).collect();
    let mut draw = Draw::new(domains, shape);
    for chain in existing {
        let chain: Vec<_> = chain
            .iter()
            .map(|target| numbers.get(target).copied())
            .collect();
        draw.take(&chain);
    }
    let chains = std::iter::from_fn(|| draw.next());
    let named = chains.map(|chain| chain.iter().map(|number| sorted[*number].target).collect());
    Ok(named.collect())
}
