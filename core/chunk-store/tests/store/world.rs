//! A store under random use beside a plain model of it: what each chunk holds now, and what it held in the records that
//! are known to be flushed.

use std::collections::BTreeMap;
use std::fmt;

use chunk_store::{
    BlockPlan, Change, ChunkKey, PrepareTicket, ReadGuard, ReadPlan, RecoverySummary, Refused,
    StateEdit, StateVersion, Which, checksum,
};
use sim::Rng;

use crate::edits::{any_edit, edited};
use crate::shell::{Cut, NoBytes, Shell, geometry};

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
        let mut geometry = geometry(segments, blocks);
        if rng.chance(1, 8) {
            (geometry.sector_bytes, geometry.block_bytes) = (4096, 4096);
            geometry.segment_bytes = 32 << 10;
        }
        let longest_notes = *rng.pick(&[1, 100, 2049]);
        Self {
            shell: Shell::new(&mut rng, geometry),
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
            .map(|(version, _)| StateVersion(*version));
        self.next += 1;
        let version = StateVersion(self.next);
        let prepared = self
            .shell
            .store
            .prepare(ChunkKey(id), version, base, edit, notes);
        let is_planned = self.planned.iter().any(|planned| planned.id == id);
        let (ticket, plans) = match prepared {
            Ok(prepared) => prepared,
            Err(Refused::Full) => {
                assert_ne!(edit, StateEdit::Remove, "STORE-5");
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
                // Other removals take the room that is kept for them, or what they made free is not flushed.
                let removes = |content: &Content| content.1.is_none();
                let planned = self.planned.iter().map(|planned| &planned.content);
                let states = self.now.values().flat_map(|truth| &truth.pending);
                let is_removing = states.chain(planned).any(removes);
                let is_waiting = self.shell.written.is_some() || !self.is_flushed();
                let is_right = edit == StateEdit::Remove && (is_removing || is_waiting);
                return assert!(is_right, "STORE-5");
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

    fn is_flushed(&self) -> bool {
        self.now.iter().all(|(id, now)| {
            let flushed = self.flushed.get(id).cloned().unwrap_or_default();
            (&flushed.committed, &flushed.pending) == (&now.committed, &now.pending)
        })
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
        let sums = self.shell.fill(ChunkKey(id), &plans, &new)?;
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
        let committed = self.shell.store.commit(ChunkKey(id), StateVersion(version));
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
                .discard(ChunkKey(id), StateVersion(version))
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
                    version.map(|version| Which::Pending(StateVersion(version))),
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
            .read(ChunkKey(id), which, range.start as u32..range.end as u32)
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
        let Some(chunk) = self.shell.store.chunk(ChunkKey(id)) else {
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

    /// A flush fails. The store refuses everything and is opened again, with the disk's cache as it is.
    pub(crate) fn flush_fails(&mut self) {
        self.shell.disk.fail_flush();
        self.shell.disk.flush(0).unwrap_err();
        self.shell.store.flush_failed();
        let id = ChunkKey(0);
        let store = &mut self.shell.store;
        let failed = Refused::Failed;
        let edit = StateEdit::Remove;
        let prepared = store.prepare(id, StateVersion(0), None, edit, Vec::new());
        assert_eq!(prepared.unwrap_err(), failed, "STORE-8");
        assert_eq!(store.commit(id, StateVersion(0)), Err(failed), "STORE-8");
        assert_eq!(store.discard(id, StateVersion(0)), Err(failed), "STORE-8");
        let read = store.read(id, Which::Committed, 0..1);
        assert_eq!(read.unwrap_err(), failed, "STORE-8");
        if let Some(sequence) = self.shell.written {
            let flushed = self.shell.store.batch_flushed(sequence);
            assert_eq!(flushed, Err(failed), "STORE-8");
        }
        assert_eq!(self.shell.store.take_batch(), None, "STORE-8");
        self.opens();
    }

    /// The power has gone: the store opens with what was acknowledged, and with nothing that is wrong. It goes again
    /// while the store opens.
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
    fn opens(&mut self) -> RecoverySummary {
        let summary = self.shell.open().unwrap();
        let summary = summary.expect("STORE-1: a power cut loses no batch");
        self.planned.clear();
        self.reads.clear();
        let found = self.look_at_all();
        for (&id, (truth, is_damaged)) in &found {
            let (flushed, taken) = (self.flushed.get(&id), self.taken.get(&id));
            let is_right = is(truth, false, flushed) || is(truth, *is_damaged, taken);
            assert!(
                is_right,
                "STORE-1: chunk {id} holds {truth:?}, {flushed:?} was flushed, {taken:?} written"
            );
        }
        if self.rng.chance(1, 2) {
            self.shell.cut_power();
            self.shell.open().unwrap().unwrap();
            let again = self.look_at_all();
            assert_eq!(again, found, "STORE-8: what an open store says is durable");
        }
        for (id, (mut truth, is_damaged)) in found {
            if let (true, Some((version, _))) = (is_damaged, &truth.pending) {
                let version = StateVersion(*version);
                self.shell.store.discard(ChunkKey(id), version).unwrap();
                truth.pending = None;
            }
            truth.is_pending_durable = truth.pending.is_some();
            self.now.insert(id, truth);
        }
        self.taken.clone_from(&self.now);
        self.flushed.clone_from(&self.now);
        self.shell.sync();
        self.shell.check_blocks();
        summary
    }

    fn look_at_all(&mut self) -> BTreeMap<u128, (Truth, bool)> {
        let ids = (0..CHUNKS).map(u128::from);
        ids.map(|id| (id, self.look(id))).collect()
    }
}

/// Whether a chunk holds what was expected. Of a damaged pending state only the version is known.
fn is(found: &Truth, is_damaged: bool, expected: Option<&Truth>) -> bool {
    let expected = expected.cloned().unwrap_or_default();
    let version = |content: &Option<Content>| content.as_ref().map(|(version, _)| *version);
    let is_pending = match is_damaged {
        true => version(&found.pending) == version(&expected.pending),
        false => found.pending == expected.pending,
    };
    found.committed == expected.committed && is_pending
}
