//! A store under random use beside a plain model of it: what each chunk holds now, and what it held in the records that
//! are known to be flushed.

use std::collections::BTreeMap;
use std::fmt;

use chunk_store::{
    BlockPlan, Change, ChunkId, Edit, PrepareTicket, ReadGuard, ReadPlan, RecoverySummary, Refused,
    Version, Which, checksum,
};
use sim::Rng;

use crate::shell::{Cut, NoBytes, Shell, any_edit, edited, geometry};

/// A version and its bytes; none of a removal.
pub(crate) type Content = (u128, Option<Bytes>);

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes {:#x}", self.0.len(), checksum(&self.0))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) committed: Option<Content>,
    pub(crate) pending: Option<Content>,
    pub(crate) is_pending_durable: bool,
}

/// An edit whose blocks are not written yet.
struct Planned {
    id: u128,
    content: Content,
    plans: Vec<BlockPlan>,
    new: Vec<u8>,
    ticket: PrepareTicket,
}

pub(crate) struct World {
    pub(crate) shell: Shell,
    rng: Rng,
    pub(crate) now: BTreeMap<u128, Truth>,
    /// What the flushed records say.
    pub(crate) flushed: BTreeMap<u128, Truth>,
    /// What all chunks held when the last batch was taken.
    taken: BTreeMap<u128, Truth>,
    planned: Vec<Planned>,
    reads: Vec<(ReadGuard, ReadPlan, Vec<u8>)>,
    next: u128,
    longest_notes: u64,
    pub(crate) full: u64,
}

const CHUNKS: u64 = 7;
const LONGEST: u64 = 8 << 10;

impl World {
    pub(crate) fn new(mut rng: Rng) -> Self {
        let segments = *rng.pick(&[8, 9, 12, 16]);
        let blocks = rng.range(12..80) as u32;
        let longest_notes = *rng.pick(&[1, 100, 2049]);
        Self {
            shell: Shell::new(&mut rng, geometry(segments, blocks)),
            rng,
            now: BTreeMap::new(),
            flushed: BTreeMap::new(),
            taken: BTreeMap::new(),
            planned: Vec::new(),
            reads: Vec::new(),
            next: 1,
            longest_notes,
            full: 0,
        }
    }

    /// Does anything.
    pub(crate) fn happens(&mut self) -> Result<(), Cut> {
        let id = self.rng.range(0..CHUNKS).into();
        match self.rng.below(20) {
            0..=5 => self.prepares(id),
            6..=9 => return self.writes(),
            10..=11 => self.commits(id),
            12 => self.discards(id),
            13 => self.reads(id),
            14 => self.ends_read(),
            15 => self.gives_up(),
            16..=17 => return self.takes_batch(),
            _ => return self.flushes(),
        }
        Ok(())
    }

    fn prepares(&mut self, id: u128) {
        let (edit, new) = any_edit(&mut self.rng, LONGEST);
        let notes = vec![7; self.rng.range(0..self.longest_notes) as usize];
        let truth = self.now.entry(id).or_default();
        let base = truth
            .committed
            .as_ref()
            .map(|(version, _)| Version(*version));
        self.next += 1;
        let version = Version(self.next);
        let prepared = self
            .shell
            .store
            .prepare(ChunkId(id), version, base, edit, notes);
        let is_planned = self.planned.iter().any(|planned| planned.id == id);
        let (ticket, plans) = match prepared {
            Ok(prepared) => prepared,
            Err(Refused::Full) => {
                assert_ne!(edit, Edit::Remove, "STORE-5");
                self.full += 1;
                return;
            }
            Err(Refused::Pending(found)) => {
                assert_eq!(
                    Some(found.0),
                    truth.pending.as_ref().map(|(version, _)| *version)
                );
                return;
            }
            Err(Refused::Busy) => {
                let removes = |content: &Content| content.1.is_none();
                let planned = self.planned.iter().map(|planned| &planned.content);
                let mut pending = self.now.values().flat_map(|truth| &truth.pending).chain(planned);
                return assert!(edit == Edit::Remove && pending.any(removes), "STORE-5");
            }
            Err(Refused::Preparing) => return assert!(is_planned),
            Err(other) => panic!("{other}"),
        };
        assert!(!is_planned && truth.pending.is_none());
        let old = truth
            .committed
            .as_ref()
            .and_then(|(_, bytes)| bytes.as_ref());
        let old = old.map(|bytes| &bytes.0[..]);
        let content = (version.0, edited(old, edit, &new).map(Bytes));
        self.planned.push(Planned {
            id,
            content,
            plans,
            new,
            ticket,
        });
    }

    fn writes(&mut self) -> Result<(), Cut> {
        if self.planned.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.planned.len());
        let Planned {
            id,
            content,
            plans,
            new,
            ticket,
        } = self.planned.swap_remove(at);
        let sums = self.shell.fill(ChunkId(id), &plans, &new)?;
        self.shell
            .store
            .written(ticket, &sums.expect("nothing rots"))
            .unwrap();
        let truth = self.now.entry(id).or_default();
        truth.pending = Some(content);
        truth.is_pending_durable = false;
        Ok(())
    }

    fn gives_up(&mut self) {
        if let Some(planned) = self.planned.pop() {
            self.shell.store.abandon(planned.ticket).unwrap();
        }
    }

    fn commits(&mut self, id: u128) {
        let truth = self.now.entry(id).or_default();
        let Some((version, _)) = truth.pending else {
            return;
        };
        let committed = self.shell.store.commit(ChunkId(id), Version(version));
        if !truth.is_pending_durable {
            assert_eq!(committed, Err(Refused::NotDurable));
            return;
        }
        committed.unwrap();
        truth.committed = truth.pending.take().filter(|(_, bytes)| bytes.is_some());
    }

    fn discards(&mut self, id: u128) {
        let truth = self.now.entry(id).or_default();
        if let Some((version, _)) = truth.pending.take() {
            self.shell
                .store
                .discard(ChunkId(id), Version(version))
                .unwrap();
        }
    }

    /// Begins a read of a part that ends after other things have happened.
    fn reads(&mut self, id: u128) {
        let truth = self.now.entry(id).or_default();
        let (which, content) = match self.rng.chance(1, 2) {
            true => (Some(Which::Committed), &truth.committed),
            false => {
                let version = truth.pending.as_ref().map(|(version, _)| *version);
                (
                    version.map(|version| Which::Pending(Version(version))),
                    &truth.pending,
                )
            }
        };
        let (Some(which), Some((_, Some(Bytes(bytes))))) = (which, content) else {
            return;
        };
        let [one, other] = [(); 2].map(|()| self.rng.below(bytes.len() + 2));
        let range = one.min(other)..one.max(other);
        let (guard, plan) = self
            .shell
            .store
            .read(ChunkId(id), which, range.start as u32..range.end as u32)
            .unwrap();
        let range = range.start.min(bytes.len())..range.end.min(bytes.len());
        self.reads.push((guard, plan, bytes[range].to_vec()));
    }

    fn ends_read(&mut self) {
        if !self.reads.is_empty() {
            let at = self.rng.below(self.reads.len());
            let (guard, plan, expected) = self.reads.swap_remove(at);
            let bytes = self.shell.read_plan(&plan);
            assert_eq!(
                bytes,
                Some(expected),
                "STORE-3: a block changed under a read"
            );
            self.shell.store.end_read(guard).unwrap();
        }
    }

    fn takes_batch(&mut self) -> Result<(), Cut> {
        if self.shell.written.is_none() {
            self.taken.clone_from(&self.now);
            self.shell.write_batch()?;
        }
        Ok(())
    }

    fn flushes(&mut self) -> Result<(), Cut> {
        let durable = self.shell.flush()?;
        for change in durable {
            let id = change.id.0;
            let taken = self.taken.get(&id).cloned().unwrap_or_default();
            let now = self.now.entry(id).or_default();
            let pending = now.pending.as_ref().map(|(version, _)| *version);
            if matches!(change.change, Change::Prepared(_)) && pending == Some(change.version.0) {
                now.is_pending_durable = true;
            }
            self.flushed.insert(id, taken);
        }
        Ok(())
    }

    /// Ends all that is under way.
    pub(crate) fn settles(&mut self) -> Result<(), Cut> {
        while !self.planned.is_empty() {
            self.writes()?;
        }
        while !self.reads.is_empty() {
            self.ends_read();
        }
        for _ in 0..1000 {
            self.flushes()?;
            self.takes_batch()?;
            if self.shell.written.is_none() {
                return Ok(());
            }
        }
        panic!("batches without end");
    }

    /// The store says what the model says. STORE-2.
    pub(crate) fn check(&mut self) {
        for (id, truth) in self.now.clone() {
            let found = self.look(id).0;
            assert_eq!(found.committed, truth.committed, "STORE-2: chunk {id}");
            assert_eq!(found.pending, truth.pending, "STORE-2: chunk {id}");
        }
    }

    /// What a chunk holds, and whether its pending state is damaged.
    fn look(&mut self, id: u128) -> (Truth, bool) {
        let (mut truth, mut is_damaged) = (Truth::default(), false);
        let Some(chunk) = self.shell.store.chunk(ChunkId(id)) else {
            return (truth, false);
        };
        let committed = chunk.committed.map(|state| state.version);
        let pending = chunk.pending.map(|state| (state.version, state.is_removal));
        if let Some(version) = committed {
            let bytes = self
                .shell
                .read(id, Which::Committed)
                .expect("STORE-1: committed bytes are there");
            truth.committed = Some((version.0, Some(Bytes(bytes))));
        }
        if let Some((version, is_removal)) = pending {
            let bytes = match self.shell.read(id, Which::Pending(version)) {
                Ok(bytes) => (!is_removal).then_some(Bytes(bytes)),
                Err(NoBytes::Refused(Refused::Damaged(_))) => {
                    is_damaged = true;
                    None
                }
                Err(other) => panic!("STORE-4: bad bytes that recovery did not find: {other:?}"),
            };
            truth.pending = Some((version.0, bytes));
        }
        (truth, is_damaged)
    }

    /// The power has gone: the store opens with what was acknowledged, and with nothing that is wrong. STORE-1.
    pub(crate) fn reopens(&mut self, cuts: u64) -> RecoverySummary {
        self.shell.cut_power();
        for _ in 0..cuts {
            self.shell.steps_left = Some(self.rng.range(1..12));
            if self.shell.open().is_err() {
                self.shell.cut_power();
            }
            self.shell.steps_left = None;
        }
        self.opens()
    }

    /// The store opens as [`World::reopens`] says, whatever was before.
    pub(crate) fn opens(&mut self) -> RecoverySummary {
        let summary = self
            .shell
            .open()
            .unwrap()
            .expect("STORE-1: a power cut loses no batch");
        assert_eq!(summary.lost, 0);
        self.planned.clear();
        self.reads.clear();
        for id in (0..CHUNKS).map(u128::from) {
            let (found, is_damaged) = self.look(id);
            let is = |truth: Option<&Truth>, may_be_damaged: bool| {
                let truth = truth.cloned().unwrap_or_default();
                let version =
                    |content: &Option<Content>| content.as_ref().map(|(version, _)| *version);
                truth.committed == found.committed
                    && (truth.pending == found.pending
                        || may_be_damaged
                            && is_damaged
                            && version(&truth.pending) == version(&found.pending))
            };
            let (flushed, taken) = (self.flushed.get(&id), self.taken.get(&id));
            assert!(
                is(flushed, false) || is(taken, true),
                "STORE-1: chunk {id} holds {found:?}, {flushed:?} was flushed, {taken:?} written"
            );
            if is_damaged {
                let version = found.pending.as_ref().unwrap().0;
                let refused = self.shell.store.commit(ChunkId(id), Version(version));
                assert_eq!(refused, Err(Refused::Damaged(Version(version))));
                self.shell
                    .store
                    .discard(ChunkId(id), Version(version))
                    .unwrap();
            }
            let pending = found.pending.filter(|_| !is_damaged);
            let is_pending_durable = pending.is_some();
            let truth = Truth {
                pending,
                is_pending_durable,
                ..found
            };
            self.now.insert(id, truth);
        }
        self.taken.clone_from(&self.now);
        self.flushed.clone_from(&self.now);
        self.shell.sync();
        self.shell.check_blocks();
        summary
    }
}
