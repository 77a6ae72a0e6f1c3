//! Several managers over one store, whose steps interleave, are cut off between two transactions, and are repeated: what
//! must hold of a table holds after each of them.

#![expect(clippy::unwrap_used, reason = "test harness")]

use std::collections::{BTreeMap, BTreeSet};

use chain_table::{
    ChainSpec, PathVerdict, RegisteredPath, Registration, TableAnswer, TableEvent, TableRecord,
    TableState, TableUuid,
};
use sim::{Rng, explore};

const NODES: u64 = 4;
const PATHS: u64 = 2;

/// The world: disks at paths, and the store.
struct World {
    store: BTreeMap<String, Vec<u8>>,
    /// What the store holds.
    table: TableState,
    /// What is at a node's path.
    disks: BTreeMap<(u64, u64), Option<TableUuid>>,
    formatted: BTreeSet<TableUuid>,
    /// Targets that may have data.
    served: BTreeSet<TableUuid>,
    lives: u64,
    uuids: u128,
    sessions: BTreeSet<u64>,
}

fn load(store: &BTreeMap<String, Vec<u8>>) -> TableState {
    let pairs = store
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_slice()));
    TableState::load(pairs).unwrap()
}

/// What must hold of two tables, one after the other.
fn check(before: &TableState, after: &TableState, world: &World) {
    assert!(after.head().revision > before.head().revision);
    for (number, chain) in before.chains() {
        let now = &after.chains()[number];
        let targets = |members: &[chain_table::TableMember]| -> Vec<TableUuid> {
            members.iter().map(|member| member.target).collect()
        };
        assert_eq!(targets(&chain.members), targets(&now.members));
        let changed = chain.members != now.members;
        assert_eq!(
            now.version,
            chain.version + u64::from(changed),
            "chain {number}"
        );
        assert!(!chain.is_complete() || now.is_complete());
    }
    assert!(
        before
            .lists()
            .iter()
            .all(|(number, list)| after.lists().get(number) == Some(list))
    );
    for chain in after.chains().values() {
        let come = chain.members.iter().filter(|member| member.life.is_some());
        assert!(
            come.map(|member| member.target)
                .all(|target| world.formatted.contains(&target))
        );
        let services: BTreeSet<_> = chain
            .members
            .iter()
            .map(|member| after.service_of(member.target))
            .collect();
        assert_eq!(
            services.len(),
            chain.members.len(),
            "no two members are on one service"
        );
    }
    let places = after
        .targets()
        .values()
        .filter_map(|target| Some((target.service, target.path.clone()?)));
    let (mut seen, mut count) = (BTreeSet::new(), 0);
    places.for_each(|place| {
        seen.insert(place);
        count += 1;
    });
    assert_eq!(seen.len(), count, "no two targets are at one place");
    let nodes: BTreeSet<_> = after
        .services()
        .values()
        .map(|service| &service.node)
        .collect();
    assert_eq!(nodes.len(), after.services().len());
}

impl World {
    fn event(&mut self, rng: &mut Rng) -> TableEvent {
        match rng.below(10) {
            0..5 => self.registration(rng),
            5..7 => {
                let known: Vec<TableUuid> = self.table.targets().keys().copied().collect();
                if known.is_empty() {
                    return self.registration(rng);
                }
                let count = rng.range(1..3);
                let chains: Vec<_> = (0..count)
                    .map(|_| ChainSpec {
                        chain: rng.range(0..6) as u32,
                        targets: (0..rng.range(1..4)).map(|_| *rng.pick(&known)).collect(),
                    })
                    .collect();
                let pool = rng.pick(&["p", "p", "p", "q"]).to_string();
                TableEvent::CreateChains { pool, chains }
            }
            7..9 => TableEvent::OpenSession {
                client: rng.range(0..3).to_string(),
            },
            _ => TableEvent::EndSession {
                session: rng.range(0..20),
            },
        }
    }

    fn registration(&mut self, rng: &mut Rng) -> TableEvent {
        let node = rng.range(0..NODES);
        self.lives += u64::from(rng.chance(1, 2));
        let mut paths = Vec::new();
        for path in 0..PATHS {
            self.uuids += 1;
            let target = self.disks.get(&(node, path)).copied().flatten();
            paths.push(RegisteredPath {
                path: path.to_string(),
                target,
                fresh: TableUuid(self.uuids),
            });
        }
        TableEvent::Register(Registration {
            node: node.to_string(),
            life: self.lives,
            member_address: "10.0.0.1:1".to_owned(),
            client_address: "10.0.0.1:2".to_owned(),
            paths,
        })
    }

    /// One transaction, if the head is still the one that the manager saw.
    fn commit(&mut self, seen: &TableState, records: Vec<TableRecord>) -> bool {
        if self.table.head() != seen.head() {
            return false;
        }
        assert_eq!(self.table, *seen);
        for record in records {
            match record.value() {
                Some(value) => self.store.insert(record.key(), value),
                None => self.store.remove(&record.key()),
            };
            self.table.apply(record);
        }
        check(seen, &self.table, self);
        true
    }

    /// A service does what it is answered, or dies before.
    fn answered(&mut self, rng: &mut Rng, event: &TableEvent, answer: &TableAnswer) {
        match (event, answer) {
            (TableEvent::Register(registration), TableAnswer::Registered(_, verdicts)) => {
                for (path, verdict) in registration.paths.iter().zip(verdicts) {
                    let place = (
                        registration.node.parse().unwrap(),
                        path.path.parse().unwrap(),
                    );
                    let now = self.disks.get(&place).copied().flatten();
                    let target = match verdict {
                        PathVerdict::Format(target) => target,
                        PathVerdict::Serve(target) => {
                            self.served.insert(*target);
                            continue;
                        }
                        PathVerdict::Offline { .. } => continue,
                    };
                    assert!(!self.served.contains(target), "{target} would be formatted");
                    if now.is_none() && rng.chance(2, 3) {
                        self.disks.insert(place, Some(*target));
                        self.formatted.insert(*target);
                    }
                }
            }
            (TableEvent::OpenSession { .. }, TableAnswer::Opened(session)) => {
                assert!(
                    self.sessions.insert(*session),
                    "session {session} was there before"
                );
            }
            _ => {}
        }
    }

    /// Disks are lost, and move.
    fn disturb(&mut self, rng: &mut Rng) {
        let place = |rng: &mut Rng| (rng.range(0..NODES), rng.range(0..PATHS));
        let (one, other) = (place(rng), place(rng));
        let disk = self.disks.remove(&one).flatten();
        if rng.chance(1, 2) {
            let replaced = self.disks.insert(other, disk).flatten();
            self.disks.insert(one, replaced);
        }
    }
}

#[test]
fn managers_that_interleave_are_cut_off_and_repeat_keep_the_table() {
    let (mut written, mut stale, mut refused) = (0_u64, 0_u64, 0_u64);
    explore(1_500, &[], |rng| {
        let mut world = World {
            store: BTreeMap::new(),
            table: TableState::default(),
            disks: BTreeMap::new(),
            formatted: BTreeSet::new(),
            served: BTreeSet::new(),
            lives: 0,
            uuids: 0,
            sessions: BTreeSet::new(),
        };
        let begin = TableState::default()
            .step(&TableEvent::Begin {
                file_system: TableUuid(7),
            })
            .unwrap();
        world.commit(&TableState::default(), begin.records);
        // Each manager has a state that may be old, and an event under way.
        let mut managers: Vec<(TableState, TableEvent)> = Vec::new();
        for _ in 0..120 {
            if rng.chance(1, 30) {
                world.disturb(rng);
            }
            if managers.len() < 3 {
                let event = world.event(rng);
                managers.push((world.table.clone(), event));
                continue;
            }
            let (mut state, event) = managers.swap_remove(rng.below(3));
            loop {
                let step = match state.step(&event) {
                    Ok(step) => step,
                    Err(_) => {
                        refused += 1;
                        break;
                    }
                };
                // An answer that changes nothing is of a table that was just read.
                let is_written = match step.records.is_empty() {
                    true => state.head() == world.table.head(),
                    false => world.commit(&state, step.records),
                };
                if !is_written {
                    stale += 1;
                } else if step.is_complete {
                    written += 1;
                    world.answered(rng, &event, &step.answer);
                    break;
                }
                // It dies here, or reads again and goes on.
                if rng.chance(1, 4) {
                    break;
                }
                state = world.table.clone();
            }
        }
        assert_eq!(load(&world.store), world.table);
    });
    if !sim::is_replay() {
        assert!(
            written > 20_000 && stale > 20_000 && refused > 1_000,
            "{written}, {stale}, {refused}"
        );
    }
}
