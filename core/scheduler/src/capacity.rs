//! How many nodes of a class there are, busy or not, and what can therefore never fit. Leaves free
//! nodes to `placement`.

use std::collections::BTreeMap;
use std::sync::Arc;

use topology::{Class, NodeName, Zone};

use crate::ledger::Ledger;
use crate::node::State;
use crate::snapshot::{Job, ZonePolicy};

/// How many nodes a message names.
const NAMED: usize = 3;

/// Nodes of one zone and class.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    total: usize,
    healthy: usize,
    /// Healthy, and not suspect because of what happened to other jobs there.
    trusted: usize,
}

/// The nodes of one class by zone.
#[derive(Debug, Default)]
pub(crate) struct Capacity<'a> {
    zones: BTreeMap<&'a Zone, Count>,
    /// Nodes that offer too little, and of what.
    short: BTreeMap<&'a NodeName, Arc<str>>,
}

/// How far a job may spread, given how many nodes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Some zone has enough healthy nodes, or it must not cross: inside one zone, wait if need be.
    Zone,
    /// No zone has enough healthy nodes: two zones.
    TwoZones,
}

impl<'a> Capacity<'a> {
    /// The capacity of every class.
    pub(crate) fn by_class(ledger: &Ledger<'a>) -> BTreeMap<&'a Class, Self> {
        let mut classes: BTreeMap<&Class, Self> = BTreeMap::new();
        for node in ledger
            .nodes()
            .filter(|node| !node.class.as_str().is_empty())
        {
            let class = classes.entry(&node.class).or_default();
            let count = class.zones.entry(&node.zone).or_default();
            count.total += 1;
            let healthy = ledger.is_healthy(node);
            count.healthy += usize::from(healthy);
            count.trusted += usize::from(healthy && !ledger.is_distrusted(node));
            if let State::Short { of } = ledger.states().of(&node.name) {
                class.short.insert(&node.name, Arc::clone(of));
            }
        }
        classes
    }

    /// Which nodes offer too little, for people; empty if none does. Names some, and holds no
    /// figure that changes while nodes come and go.
    pub(crate) fn short(&self) -> String {
        let named = self.short.iter().take(NAMED);
        let named: Vec<String> = named
            .map(|(node, of)| format!("{node} offers {of}"))
            .collect();
        let others = match self.short.len() > NAMED {
            true => ", and so it is with others",
            false => "",
        };
        match named.is_empty() {
            true => String::new(),
            false => format!("; too little for the class: {}{others}", named.join(", ")),
        }
    }

    /// Healthy nodes of a zone, busy or not.
    pub(crate) fn healthy(&self, zone: &Zone) -> usize {
        self.zones.get(zone).map_or(0, |count| count.healthy)
    }

    /// Nodes of a zone, healthy or not.
    pub(crate) fn total(&self, zone: &Zone) -> usize {
        self.zones.get(zone).map_or(0, |count| count.total)
    }

    /// Whether one zone would do for the job if all its nodes were healthy.
    pub(crate) fn some_zone_would_do(&self, job: &Job) -> bool {
        self.largest(|count| count.total).0 >= job.nodes as usize
    }

    /// Whether the job is so large that it cannot do without nodes that others had trouble with.
    pub(crate) fn needs_distrusted(&self, job: &Job, reach: Reach) -> bool {
        let (largest, second) = self.largest(|count| count.trusted);
        let most = match reach {
            Reach::Zone => largest,
            Reach::TwoZones => largest + second,
        };
        most < job.nodes as usize
    }

    /// Where the job may go, or `None` if too few nodes are healthy for anything that it may do.
    pub(crate) fn reach(&self, job: &Job) -> Option<Reach> {
        let needed = job.nodes as usize;
        let (largest, second) = self.largest(|count| count.healthy);
        match job.zone_policy {
            _ if largest >= needed => Some(Reach::Zone),
            ZonePolicy::PreferSingle if largest + second >= needed => Some(Reach::TwoZones),
            ZonePolicy::Single | ZonePolicy::PreferSingle => None,
        }
    }

    /// The two largest zones: a job crosses between two zones and no more, because exactly one node
    /// pair may carry its data across.
    fn largest(&self, size: impl Fn(&Count) -> usize) -> (usize, usize) {
        self.zones
            .values()
            .map(size)
            .fold((0, 0), |(first, second), size| {
                if size > first {
                    (size, first)
                } else {
                    (first, second.max(size))
                }
            })
    }
}

/// Why a job can never fit into the nodes that exist, healthy or not.
pub(crate) fn unplaceable(
    job: &Job,
    capacity: Option<&Capacity<'_>>,
    max_cross_zone_jobs: u32,
) -> Option<String> {
    let Job { nodes, class, .. } = job;
    let needed = *nodes as usize;
    let wish = format!(
        "Unplaceable: needs {nodes} {} of class {class}",
        noun(needed)
    );
    let Some(capacity) = capacity else {
        return Some(format!("{wish}, the cluster has no node of that class"));
    };
    let total: usize = capacity.zones.values().map(|count| count.total).sum();
    let (largest, second) = capacity.largest(|count| count.total);
    if total < needed {
        return Some(format!("{wish}, the cluster has {total}"));
    }
    if largest >= needed {
        return None;
    }
    match job.zone_policy {
        ZonePolicy::Single => Some(format!("{wish} in one zone, the largest has {largest}")),
        ZonePolicy::PreferSingle if max_cross_zone_jobs == 0 => Some(format!(
            "{wish} in one zone, the largest has {largest} and no job may cross zones"
        )),
        ZonePolicy::PreferSingle if largest + second < needed => Some(format!(
            "{wish} in two zones, the largest two have {}",
            largest + second
        )),
        ZonePolicy::PreferSingle => None,
    }
}

pub(crate) fn noun(count: usize) -> &'static str {
    if count == 1 { "node" } else { "nodes" }
}
