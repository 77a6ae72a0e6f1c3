//! Gives nodes to jobs: queue order, then filters, then placement; keeps nodes for the blocked head
//! of the queue; moves jobs off cordoned nodes. Leaves what a job does with its nodes to `lifecycle`.

use std::collections::BTreeMap;

use topology::Class;

use crate::capacity::{Capacity, Reach, noun};
use crate::draft::Draft;
use crate::filter::{Waiting, excluded};
use crate::gang::Wake;
use crate::ledger::Ledger;
use crate::node::Wish;
use crate::placement::Pool;
use crate::plan::Place;
use crate::queue;
use crate::snapshot::{Job, Node};

/// Places every draft that wants nodes, as far as they go.
pub(crate) fn assign<'a>(drafts: &mut [Draft<'a>], ledger: &Ledger<'a>, wake: &mut Wake) {
    let mut market = Market::new(ledger);
    let mut order: Vec<&mut Draft<'a>> = drafts
        .iter_mut()
        .filter(|draft| draft.want.is_some() || draft.is_moving())
        .collect();
    order.sort_by_cached_key(|draft| queue::rank(draft.job));
    for draft in order {
        if draft.is_moving() {
            market.keep_place_for(draft);
            continue;
        }
        match market.place(draft.job) {
            Ok(placement) => draft.start(placement),
            Err(waiting) => {
                market.reserve(draft.job, &waiting);
                draft.wait(waiting);
            }
        }
    }
    for draft in drafts {
        let exits = draft.should_leave(ledger, wake);
        // Who only wants no new work there can wait until there is room. A Node that goes takes its pods along.
        let must = exits.iter().any(|exit| exit.why == Wish::Deleted);
        if !exits.is_empty() && (market.keep_place_for(draft) || must) {
            draft.move_away(&exits, ledger, wake);
        }
    }
}

/// Where a gang goes.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) places: Vec<Place>,
    pub(crate) crossing: bool,
}

/// What can still be given away in this plan.
#[derive(Debug)]
struct Market<'l, 'a> {
    ledger: &'l Ledger<'a>,
    capacity: BTreeMap<&'a Class, Capacity<'a>>,
    free: BTreeMap<&'a Class, Pool<'a>>,
    crossing: u32,
}

impl<'l, 'a> Market<'l, 'a> {
    fn new(ledger: &'l Ledger<'a>) -> Self {
        let mut free: BTreeMap<&Class, Pool<'_>> = BTreeMap::new();
        for node in ledger.nodes().filter(|node| ledger.is_free(node)) {
            free.entry(&node.class).or_default().add(node);
        }
        let crossing = ledger.crossing();
        Self {
            ledger,
            capacity: Capacity::by_class(ledger),
            free,
            crossing,
        }
    }

    /// Takes nodes for a job, or says why it waits.
    fn place(&mut self, job: &'a Job) -> Result<Placement, Waiting> {
        let capacity = self.capacity.get(&job.class);
        if let Some(waiting) = excluded(job, self.ledger, capacity) {
            return Err(waiting);
        }
        let needed = job.nodes as usize;
        let wish = format!(
            "Waiting: needs {needed} free {} of class {}",
            noun(needed),
            job.class
        );
        let Some(reach) = capacity.and_then(|capacity| capacity.reach(job)) else {
            let short = capacity.map_or_else(String::new, Capacity::short);
            let message = format!("{}{short}", wish.replace("free", "healthy"));
            return Err(Waiting::new("WaitingForHealthyNodes", message));
        };
        if reach == Reach::TwoZones && self.crossing >= self.ledger.policy().max_cross_zone_jobs {
            let message =
                format!("{wish} in two zones, and as many jobs as may cross zones do so already");
            return Err(Waiting::new("WaitingForCrossing", message));
        }
        let pool = self.free.entry(&job.class).or_default();
        let avoided = avoided(job, self.ledger).filter(|node| pool.remove(node));
        let mut places = choose(pool, reach, needed);
        if let Some(node) = avoided {
            pool.add(node);
            places = places.or_else(|| choose(pool, reach, needed));
        }
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
        let crossing = reach == Reach::TwoZones;
        self.crossing += u32::from(crossing);
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
            Reach::Zone => pool.reserve_zone(|zone| capacity.healthy(zone) >= job.nodes as usize),
            Reach::TwoZones => pool.reserve_everything(),
        }
    }

    /// Whether a job that holds nodes could be placed elsewhere; if so, what it needs there beyond
    /// its own nodes is kept until it comes back.
    fn keep_place_for(&mut self, draft: &Draft<'a>) -> bool {
        let Some(attempt) = draft.view.holding() else {
            return false;
        };
        let own: Vec<&Node> = draft
            .view
            .places(attempt)
            .filter_map(|(_, name)| self.ledger.node(name))
            .filter(|node| self.ledger.is_healthy(node))
            .collect();
        let pool = self.free.entry(&draft.job.class).or_default();
        own.iter().for_each(|node| pool.add(node));
        // Until it has left, it still crosses, wherever it goes.
        let held = self.crossing;
        self.crossing -= u32::from(attempt.crossing);
        let placed = self.place(draft.job).is_ok();
        self.crossing = self.crossing.max(held);
        // Its own nodes are not free yet, whether it will come back to them or not.
        let pool = self.free.entry(&draft.job.class).or_default();
        own.iter().for_each(|node| {
            pool.remove(node);
        });
        placed
    }
}

fn choose(pool: &Pool<'_>, reach: Reach, needed: usize) -> Option<Vec<Place>> {
    match reach {
        Reach::Zone => pool.in_one_zone(needed),
        Reach::TwoZones => pool.in_two_zones(needed),
    }
}

/// The node on which the job's last attempt failed: taken again only if nothing else does.
fn avoided<'a>(job: &Job, ledger: &Ledger<'a>) -> Option<&'a Node> {
    let failure = job.status.failure.as_ref()?;
    ledger.node(failure.node.as_ref()?)
}
