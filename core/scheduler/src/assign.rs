//! Gives nodes to jobs: queue order, then filters, then placement; keeps what was promised, and
//! nodes for the blocked head of the queue; moves jobs off cordoned nodes. Leaves what a job does
//! with its nodes to `lifecycle`, and what a promise is to `promise`.

use std::collections::{BTreeMap, BTreeSet};

use topology::{Class, NodeName};

use crate::avoid::avoided;
use crate::capacity::{Capacity, Reach, noun};
use crate::filter::{Waiting, excluded};
use crate::gang::Wake;
use crate::job_planner::JobPlanner;
use crate::ledger::Ledger;
use crate::pin;
use crate::placement::Pool;
use crate::plan::PlacedNode;
use crate::promise;
use crate::queue;
use crate::snapshot::{DryRun, Job, JobKey, Node, ZonePolicy};

/// Places every draft that wants nodes, as far as they go. Returns the jobs whose first pod is to
/// be tried by a dry run, in the order of the queue.
pub(crate) fn assign<'a>(
    planners: &mut [JobPlanner<'a>],
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> Vec<JobKey> {
    let mut dry_runs = Vec::new();
    let mut market = Market::new(ledger);
    let mut order: Vec<&mut JobPlanner<'a>> = planners
        .iter_mut()
        .filter(|planner| planner.want.is_some())
        .collect();
    order.sort_by_cached_key(|planner| queue::rank(planner.job));
    for planner in order {
        let is_accepted = planner.job.dry_run == DryRun::Accepted;
        if !is_accepted && planner.job.problem.is_none() {
            dry_runs.push(planner.job.key.clone());
        }
        match market.place(planner.job) {
            Ok(placement) if is_accepted => planner.start(placement),
            // The nodes stay taken in this plan: nobody behind it in the queue gets them.
            Ok(_its_turn) => {}
            Err(waiting) => {
                market.reserve(planner.job, &waiting);
                planner.wait(waiting);
            }
        }
    }
    for planner in planners {
        let Some(departure) = planner.should_leave(ledger, wake) else {
            continue;
        };
        let placement = market.keep_place_for(planner);
        if placement.is_some() || departure.is_must {
            planner.move_away(&departure, placement.as_ref(), ledger, wake);
        }
    }
    dry_runs
}

/// Where a gang goes.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) places: Vec<PlacedNode>,
    pub(crate) crossing: bool,
}

/// What can still be given away in this plan.
#[derive(Debug)]
struct Market<'l, 'a> {
    ledger: &'l Ledger<'a>,
    capacity: BTreeMap<&'a Class, Capacity<'a>>,
    free: BTreeMap<&'a Class, Pool<'a>>,
    /// Free nodes that a promise reserves for a job: in no pool.
    reserved: BTreeMap<&'a JobKey, ReservedNodes<'a>>,
    /// Free nodes that jobs keep away from because of what happened to others there: in no pool.
    distrusted: BTreeMap<&'a Class, Vec<&'a Node>>,
    crossing: u32,
    /// Nodes that jobs with a promise may need: no pinned job gets them in this plan.
    claimed: BTreeSet<&'a NodeName>,
    /// Other nodes that only pinned jobs get.
    for_pinned: BTreeSet<&'a NodeName>,
    /// Nodes that this plan gives to jobs that are pinned to them.
    pinned: BTreeSet<&'a NodeName>,
}

/// What a promise keeps of what is free.
#[derive(Clone, Debug, Default)]
struct ReservedNodes<'a> {
    nodes: Vec<&'a Node>,
    /// Whether a right to cross zones is reserved too.
    crosses: bool,
}

impl<'l, 'a> Market<'l, 'a> {
    fn new(ledger: &'l Ledger<'a>) -> Self {
        let mut free: BTreeMap<&Class, Pool<'_>> = BTreeMap::new();
        let mut distrusted: BTreeMap<&Class, Vec<&Node>> = BTreeMap::new();
        for node in ledger.nodes().filter(|node| ledger.is_free(node)) {
            match ledger.is_distrusted(node) {
                true => distrusted.entry(&node.class).or_default().push(node),
                false => free.entry(&node.class).or_default().add(node),
            }
        }
        let mut market = Self {
            ledger,
            capacity: Capacity::by_class(ledger),
            free,
            reserved: BTreeMap::new(),
            distrusted,
            crossing: ledger.crossing(),
            claimed: BTreeSet::new(),
            for_pinned: BTreeSet::new(),
            pinned: BTreeSet::new(),
        };
        market.keep_promises();
        market.keep_for_pinned();
        market
    }

    /// Takes out what is promised: everybody's own nodes first, then what each still lacks.
    fn keep_promises(&mut self) {
        let promises = promise::standing(self.ledger);
        for promise in &promises {
            let class = &promise.job.class;
            let reserved = self.reserved.entry(&promise.job.key).or_default();
            reserved.crosses = promise.crosses;
            self.crossing += u32::from(promise.crosses);
            let pool = self.free.entry(class).or_default();
            let suspects = self.distrusted.entry(class).or_default();
            for node in promise.own.iter().copied() {
                let trusted = pool.remove(node);
                let is_it = |other: &&Node| other.name == node.name;
                if let Some(at) = suspects.iter().position(is_it) {
                    reserved.nodes.push(suspects.swap_remove(at));
                } else if trusted {
                    reserved.nodes.push(node);
                }
            }
        }
        for promise in promises {
            let pool = self.free.entry(&promise.job.class).or_default();
            let reserved = self.reserved.entry(&promise.job.key).or_default();
            let bad = avoided(promise.job, self.ledger.now());
            let bad: Vec<&Node> = bad
                .into_iter()
                .filter_map(|name| self.ledger.node(name))
                .filter(|node| node.class == promise.job.class && pool.remove(node))
                .collect();
            let mut missing = promise.more;
            for (zone, count) in &mut missing {
                for place in pool.some_of(zone, *count) {
                    let Some(node) = self.ledger.node(&place.node) else {
                        continue;
                    };
                    pool.remove(node);
                    reserved.nodes.push(node);
                    *count -= 1;
                }
            }
            // Only if there are no others.
            for node in bad {
                match missing.get_mut(&node.zone) {
                    Some(count) if *count > 0 => {
                        *count -= 1;
                        reserved.nodes.push(node);
                    }
                    Some(_) | None => pool.add(node),
                }
            }
            self.claimed
                .extend(reserved.nodes.iter().map(|node| &node.name));
            missing.retain(|_, count| *count > 0);
            if !missing.is_empty() {
                self.claimed.extend(promise.before_validations);
            }
            let suspects = self.distrusted.entry(&promise.job.class).or_default();
            let last = suspects
                .iter()
                .filter(|node| missing.contains_key(&node.zone));
            self.claimed.extend(last.map(|node| &node.name));
        }
    }

    /// Takes out what jobs that restart do not need and validations are to have next.
    fn keep_for_pinned(&mut self) {
        let nodes = self.ledger.states().next_runs().after_restarts();
        let nodes = nodes.filter(|name| !self.claimed.contains(name));
        self.for_pinned = nodes.collect();
        let nodes = self.for_pinned.iter();
        for node in nodes.filter_map(|name| self.ledger.node(name)) {
            if let Some(pool) = self.free.get_mut(&node.class) {
                pool.remove(node);
            }
            if let Some(suspects) = self.distrusted.get_mut(&node.class) {
                suspects.retain(|other| other.name != node.name);
            }
        }
    }

    /// Takes nodes for a job, or says why it waits.
    fn place(&mut self, job: &'a Job) -> Result<Placement, Waiting> {
        let capacity = self.capacity.get(&job.class);
        if let Some(waiting) = excluded(job, self.ledger, capacity) {
            return Err(waiting);
        }
        if let Some(node) = &job.pin {
            return pin::place(node, self.ledger, |node| self.take(node));
        }
        let needed = job.nodes as usize;
        let wish = format!(
            "Waiting: needs {needed} free {} of class {}",
            noun(needed),
            job.class
        );
        // A zone that would do with all its nodes is worth some patience: an agent that restarts is
        // back soon.
        let patience = job.zone_policy == ZonePolicy::PreferSingle
            && capacity.is_some_and(|capacity| capacity.some_zone_would_do(job));
        let reach = capacity.and_then(|capacity| capacity.reach(job));
        let no_zone = patience && reach != Some(Reach::Zone);
        let Some(reach) = reach else {
            let short = capacity.map_or_else(String::new, Capacity::short);
            let message = format!("{}{short}", wish.replace("free", "healthy"));
            let waiting = Waiting::new("WaitingForHealthyNodes", message);
            return Err(Waiting { no_zone, ..waiting });
        };
        if no_zone {
            let since = job.status.no_zone_since.unwrap_or(self.ledger.now());
            if since + self.ledger.policy().crossing_patience > self.ledger.now() {
                let message = format!(
                    "{} in one zone; crosses zones if no zone has them for some minutes",
                    wish.replace("free", "healthy")
                );
                let waiting = Waiting::new("WaitingForZone", message);
                return Err(Waiting {
                    reserve: Some(Reach::Zone),
                    no_zone,
                    ..waiting
                });
            }
        }
        let reserved = self.reserved.remove(&job.key).unwrap_or_default();
        self.crossing -= u32::from(reserved.crosses);
        let found = self.find(job, reach, &reserved.nodes, &wish);
        let crosses = found.as_ref().is_ok_and(|found| found.crossing);
        // Until it is written that it goes elsewhere, nobody else gets what it was promised.
        self.crossing += u32::from(crosses || reserved.crosses);
        if found.is_err() {
            self.reserved.insert(&job.key, reserved);
        }
        found.map_err(|waiting| Waiting { no_zone, ..waiting })
    }

    /// Takes a vacant node for a job that is pinned to it, unless it is kept for another.
    fn take(&mut self, node: &'a Node) -> bool {
        let is_it = |other: &&Node| other.name == node.name;
        if self.claimed.contains(&node.name) || self.pinned.contains(&node.name) {
            return false;
        }
        let pool = self.free.entry(&node.class).or_default();
        let suspects = self.distrusted.entry(&node.class).or_default();
        let is_for_pinned = self.for_pinned.contains(&node.name);
        // One that no other work may go to is nobody's to keep.
        let taken = if is_for_pinned || !self.ledger.is_healthy(node) {
            true
        } else if let Some(at) = suspects.iter().position(is_it) {
            suspects.swap_remove(at);
            true
        } else {
            pool.is_open(&node.zone) && pool.remove(node)
        };
        if taken {
            self.pinned.insert(&node.name);
        }
        taken
    }

    /// Chooses nodes for a job: those that it was promised, else the best of these and what is
    /// free.
    fn find(
        &mut self,
        job: &'a Job,
        reach: Reach,
        reserved: &[&'a Node],
        wish: &str,
    ) -> Result<Placement, Waiting> {
        let crossing = reach == Reach::TwoZones;
        if crossing && self.crossing >= self.ledger.policy().max_cross_zone_jobs {
            let message =
                format!("{wish} in two zones, and as many jobs as may cross zones do so already");
            return Err(Waiting::new("WaitingForCrossing", message));
        }
        let needed = job.nodes as usize;
        let mut promised = Pool::default();
        reserved.iter().for_each(|node| promised.add(node));
        let mut places = choose(&promised, reach, needed);
        let pool = self.free.entry(&job.class).or_default();
        if places.is_none() {
            reserved.iter().for_each(|node| pool.add(node));
            places = choose_avoiding(pool, job, reach, self.ledger);
        }
        let large = self
            .capacity
            .get(&job.class)
            .is_some_and(|capacity| capacity.needs_distrusted(job, reach));
        if places.is_none() && large && self.reserved.is_empty() {
            let suspects = self.distrusted.entry(&job.class).or_default();
            suspects.iter().for_each(|node| pool.add(node));
            places = choose(pool, reach, needed);
            suspects.iter().for_each(|node| {
                pool.remove(node);
            });
            if let Some(places) = &places {
                suspects.retain(|node| places.iter().all(|place| place.node != node.name));
            }
        }
        reserved.iter().for_each(|node| {
            pool.remove(node);
        });
        let Some(places) = places else {
            let scope = match reach {
                Reach::Zone => "one zone",
                Reach::TwoZones => "two zones",
            };
            let waiting = Waiting::new("WaitingForNodes", format!("{wish} in {scope}"));
            return Err(Waiting {
                reserve: Some(reach),
                ..waiting
            });
        };
        for node in places
            .iter()
            .filter_map(|place| self.ledger.node(&place.node))
        {
            pool.remove(node);
        }
        Ok(Placement { places, crossing })
    }

    /// The first job of a class that only waits for others to end keeps later ones from taking what
    /// it waits for. Later jobs still use what it cannot.
    fn reserve(&mut self, job: &'a Job, waiting: &Waiting) {
        let (Some(reach), Some(capacity)) = (waiting.reserve, self.capacity.get(&job.class)) else {
            return;
        };
        let pool = self.free.entry(&job.class).or_default();
        if pool.has_reservation() {
            return;
        }
        match reach {
            Reach::Zone => {
                let needed = job.nodes as usize;
                pool.reserve_zone(|zone| match waiting.no_zone {
                    true => capacity.total(zone) >= needed,
                    false => capacity.healthy(zone) >= needed,
                });
            }
            Reach::TwoZones => pool.reserve_everything(),
        }
    }

    /// Where a job that holds nodes could go. What it needs there beyond its own nodes is taken;
    /// from the next plan on a promise keeps it.
    fn keep_place_for(&mut self, planner: &JobPlanner<'a>) -> Option<Placement> {
        let attempt = planner.view.holding()?;
        let own: Vec<&Node> = planner
            .view
            .places(attempt)
            .filter_map(|(_, name)| self.ledger.node(name))
            .filter(|node| self.ledger.is_healthy(node))
            .collect();
        let pool = self.free.entry(&planner.job.class).or_default();
        own.iter().for_each(|node| pool.add(node));
        // Until it has left, it still crosses, wherever it goes.
        let held = self.crossing;
        self.crossing -= u32::from(attempt.crossing);
        let placed = self.place(planner.job).ok();
        self.crossing = self.crossing.max(held);
        // Its own nodes are not free yet, whether it will come back to them or not.
        let pool = self.free.entry(&planner.job.class).or_default();
        own.iter().for_each(|node| {
            pool.remove(node);
        });
        placed
    }
}

fn choose(pool: &Pool<'_>, reach: Reach, needed: usize) -> Option<Vec<PlacedNode>> {
    match reach {
        Reach::Zone => pool.in_one_zone(needed),
        Reach::TwoZones => pool.in_two_zones(needed),
    }
}

/// Nodes on which attempts of the job ended are taken only if nothing else does, the best of them
/// first.
fn choose_avoiding<'a>(
    pool: &mut Pool<'a>,
    job: &Job,
    reach: Reach,
    ledger: &Ledger<'a>,
) -> Option<Vec<PlacedNode>> {
    let needed = job.nodes as usize;
    let bad = avoided(job, ledger.now());
    let bad: Vec<&Node> = bad
        .into_iter()
        .filter_map(|name| ledger.node(name))
        .filter(|node| node.class == job.class && pool.remove(node))
        .collect();
    let mut places = choose(pool, reach, needed);
    for node in bad {
        pool.add(node);
        if places.is_none() {
            places = choose(pool, reach, needed);
        }
    }
    places
}
