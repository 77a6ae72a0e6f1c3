//! Contents on their way: prepared here, sent on before they are durable here, committed when they are durable here and
//! committed below. So contents go down the chain and commits come up.

use std::collections::BTreeMap;

use crate::catch_up::Fetcher;
use crate::chunks::Chunks;
use crate::member::{Effect, Reader, Step};
use crate::message::{ChainRefusal, Edit, Message, Reply, Update};
use crate::records::Records;
use crate::table::{ChunkId, TargetId, Version};

/// Contents that are read for the successor at a time: 8 of at most 4 MiB.
const MOST_LOADS: usize = 8;
/// Chunks that are looked through at a time when a member starts.
const PAGE: usize = 1024;

/// A content that is prepared here and not committed.
#[derive(Debug)]
pub(crate) struct Dirty<P> {
    pub(crate) version: Version,
    base: Version,
    /// None if it is in the store only.
    edit: Option<Edit<P>>,
    pub(crate) records: Records,
    is_durable: bool,
    /// It could not be written here, and neighbours are asked for it.
    pub(crate) is_lost: bool,
    /// All below have committed it; there is nobody below the tail.
    is_done_below: bool,
    /// The successor can do nothing with the edit.
    needs_all: bool,
    /// Members below have no room for it, and it is being discarded here.
    refusal: Option<ChainRefusal>,
    /// Whose write it is, at the head.
    pub(crate) client: Option<u64>,
    /// Clients that read it, once it is durable.
    pub(crate) readers: Vec<Reader>,
    /// Members that need it, once it is durable.
    pub(crate) fetchers: Vec<Fetcher>,
    /// What the predecessor sent after it.
    next: Option<(TargetId, Update<P>)>,
}

/// A content that is being read for others.
#[derive(Debug, Default)]
pub(crate) struct Load {
    is_for_successor: bool,
    fetchers: Vec<TargetId>,
}

impl Load {
    pub(crate) fn is_for_successor(&self) -> bool {
        self.is_for_successor
    }

    pub(crate) fn into_fetchers(self) -> Vec<TargetId> {
        self.fetchers
    }
}

impl<P> Dirty<P> {
    pub(crate) fn new(update: Update<P>, client: Option<u64>, is_done_below: bool) -> Self {
        Self {
            base: update.base,
            edit: Some(update.edit),
            is_done_below,
            client,
            ..Self::of(update.version, update.records)
        }
    }

    /// A content of which nothing else is known.
    fn of(version: Version, records: Records) -> Self {
        Self {
            version,
            base: Version::NONE,
            edit: None,
            records,
            is_durable: false,
            is_lost: false,
            is_done_below: false,
            needs_all: false,
            refusal: None,
            client: None,
            readers: Vec::new(),
            fetchers: Vec::new(),
            next: None,
        }
    }

    /// What an earlier life of the member prepared.
    pub(crate) fn left_in(store: &impl Chunks<P>) -> BTreeMap<ChunkId, Self> {
        let mut all = BTreeMap::new();
        let mut after = None;
        loop {
            let page = store.versions(after, PAGE);
            let Some((last, _)) = page.last() else {
                return all;
            };
            after = Some(*last);
            for (chunk, _) in page {
                if let Some(pending) = store.state(chunk).pending {
                    let dirty = Self {
                        is_durable: true,
                        needs_all: true,
                        ..Self::of(pending.version, store.records(chunk, pending.version))
                    };
                    all.insert(chunk, dirty);
                }
            }
        }
    }

    /// Whether it can be read.
    pub(crate) fn is_there(&self) -> bool {
        self.is_durable && self.refusal.is_none()
    }
}

impl<P: Clone, S: Chunks<P>> Step<'_, P, S> {
    /// The predecessor has a new content.
    pub(crate) fn update(&mut self, from: TargetId, update: Update<P>) {
        let (chunk, version) = (update.chunk, update.version);
        let state = self.store.state(chunk);
        if version <= state.committed {
            return self.send(from, Message::Done { chunk, version });
        }
        if let Some(dirty) = self.member.dirty.get_mut(&chunk) {
            if dirty.is_lost && version == dirty.version {
                if update.edit.builds_on_base() {
                    return self.send(from, Message::NeedsAll { chunk, version });
                }
                dirty.is_lost = false;
                return self.prepare_again(&update);
            }
            // The same again is answered when it is committed. If it is a later one, those above had the answer to the one
            // here before this member forgot it.
            if version > dirty.version {
                dirty.is_done_below = true;
                dirty.next = Some((from, update));
                self.settle(chunk);
            }
            return;
        }
        let has_base = update.base == state.base() && !state.is_damaged;
        if update.edit.builds_on_base() && !has_base {
            return self.send(from, Message::NeedsAll { chunk, version });
        }
        // A removal is refused by nobody; one that is done leaves nothing here that says so.
        let is_refused = version <= self.member.refused && !matches!(update.edit, Edit::Remove);
        let prepared = match is_refused {
            true => Err(ChainRefusal::Full),
            false => self.store.prepare(&update),
        };
        match prepared {
            Ok(()) => self.begin(update, None),
            // An earlier life may have had it, and those below have it still. It is sent again.
            Err(_) if !self.member.is_complete => {}
            Err(why) => self.say_refused(from, chunk, version, why),
        }
    }

    /// What is sent to those above holds from then on.
    fn say_refused(&mut self, to: TargetId, chunk: ChunkId, version: Version, why: ChainRefusal) {
        self.member.refused = self.member.refused.max(version);
        let message = Message::Refused {
            chunk,
            version,
            why,
        };
        self.send(to, message);
    }

    /// Sends a dirty content to the successor as soon as it can be.
    pub(crate) fn forward_soon(&mut self, chunk: ChunkId) {
        self.member.to_forward.insert(chunk);
        self.forward();
    }

    fn forward(&mut self) {
        while self.member.loads.len() < MOST_LOADS
            && let Some(chunk) = self.member.to_forward.pop_first()
        {
            self.forward_one(chunk);
        }
    }

    fn forward_one(&mut self, chunk: ChunkId) {
        let Some(successor) = self.member.successor() else {
            return;
        };
        let Some(dirty) = self.member.dirty.get(&chunk) else {
            return;
        };
        if dirty.is_done_below || dirty.refusal.is_some() {
            return;
        }
        let pending = self.store.state(chunk).pending;
        let edit = match &dirty.edit {
            Some(edit) if !dirty.needs_all || !edit.builds_on_base() => Some(edit.clone()),
            Some(_) | None => pending
                .is_some_and(|pending| pending.is_removed)
                .then_some(Edit::Remove),
        };
        let is_lost = dirty.is_lost;
        match edit {
            Some(edit) => {
                let update = Update {
                    chunk,
                    version: dirty.version,
                    base: dirty.base,
                    edit,
                    records: dirty.records.clone(),
                };
                self.send(successor, Message::Update(update));
                if is_lost {
                    self.ask_for(chunk);
                }
            }
            // Otherwise it is read when it is there.
            None if dirty.is_durable => self.load(chunk, dirty.version).is_for_successor = true,
            None => {}
        }
    }

    fn load(&mut self, chunk: ChunkId, version: Version) -> &mut Load {
        if !self.member.loads.contains_key(&(chunk, version)) {
            self.effects.push(Effect::Load { chunk, version });
        }
        self.member.loads.entry((chunk, version)).or_default()
    }

    /// Reads a content for another member.
    pub(crate) fn load_for(&mut self, to: TargetId, chunk: ChunkId, version: Version) {
        let load = self.load(chunk, version);
        if !load.fetchers.contains(&to) {
            load.fetchers.push(to);
        }
    }

    pub(crate) fn loaded(&mut self, chunk: ChunkId, version: Version, content: P) {
        let Some(load) = self.member.loads.remove(&(chunk, version)) else {
            return;
        };
        let records = self.store.records(chunk, version);
        for to in load.fetchers {
            let message = Message::Content {
                chunk,
                version,
                content: Some(content.clone()),
                records: records.clone(),
            };
            self.send(to, message);
        }
        let dirty = self.member.dirty.get(&chunk);
        let is_wanted = |dirty: &&Dirty<P>| dirty.version == version && dirty.refusal.is_none();
        if load.is_for_successor
            && let Some(dirty) = dirty.filter(is_wanted)
            && let Some(successor) = self.member.successor()
        {
            let update = Update {
                chunk,
                version,
                base: dirty.base,
                edit: Edit::Replace { content },
                records,
            };
            self.send(successor, Message::Update(update));
        }
        self.forward();
    }

    pub(crate) fn needs_all(&mut self, chunk: ChunkId, version: Version) {
        let dirty = self.member.dirty.get_mut(&chunk);
        if let Some(dirty) = dirty.filter(|dirty| dirty.version == version) {
            dirty.needs_all = true;
            self.forward_soon(chunk);
        }
    }

    pub(crate) fn durable(&mut self, chunk: ChunkId, version: Version) {
        let dirty = self.member.dirty.get_mut(&chunk);
        let Some(dirty) = dirty.filter(|dirty| dirty.version == version && !dirty.is_durable)
        else {
            return;
        };
        dirty.is_durable = true;
        if dirty.refusal.is_some() {
            return;
        }
        let readers = std::mem::take(&mut dirty.readers);
        let fetchers = std::mem::take(&mut dirty.fetchers);
        if !dirty.is_done_below && (dirty.needs_all || dirty.edit.is_none()) {
            self.forward_soon(chunk);
        }
        for (to, version) in fetchers {
            self.fetch(to, chunk, version);
        }
        self.settle(chunk);
        for reader in readers {
            self.serve(reader, chunk, version);
        }
    }

    /// What cannot be written here comes whole, from above or from below: those above may have lost it with their power.
    pub(crate) fn lost(&mut self, chunk: ChunkId, version: Version) {
        let predecessor = self.member.predecessor();
        let dirty = self.member.dirty.get_mut(&chunk);
        let Some(dirty) = dirty.filter(|dirty| dirty.version == version && !dirty.is_durable)
        else {
            return;
        };
        dirty.is_lost = true;
        if dirty.refusal.is_some() {
            return self.discarded(chunk, version);
        }
        if self.member.is_tail() {
            // It is nowhere below; those above send it again if they have it.
            return self.drop_lost(chunk, version);
        }
        self.ask_for(chunk);
        if let Some(predecessor) = predecessor {
            self.send(predecessor, Message::NeedsAll { chunk, version });
        }
    }

    /// The successor does not have it either.
    pub(crate) fn missing(&mut self, chunk: ChunkId, version: Version) {
        let dirty = self.member.dirty.get(&chunk);
        if dirty.is_some_and(|dirty| dirty.is_lost && dirty.version == version) {
            self.drop_lost(chunk, version);
        }
    }

    fn drop_lost(&mut self, chunk: ChunkId, version: Version) {
        let Some(dirty) = self.member.dirty.remove(&chunk) else {
            return;
        };
        if let Some(predecessor) = self.member.predecessor() {
            self.send(predecessor, Message::NeedsAll { chunk, version });
        }
        if let Some(client) = dirty.client {
            self.refuse(client, ChainRefusal::Damaged);
        }
        self.ask_for(chunk);
        self.look_again(chunk, dirty);
    }

    /// Who waited for a content that is not here any more gets what is.
    fn look_again(&mut self, chunk: ChunkId, gone: Dirty<P>) {
        for reader in gone.readers {
            self.read(reader, chunk);
        }
        let load = self.member.loads.remove(&(chunk, gone.version));
        let loaded_for = load.into_iter().flat_map(Load::into_fetchers);
        let newest = loaded_for.map(|to| (to, None));
        for (to, version) in gone.fetchers.into_iter().chain(newest) {
            self.fetch(to, chunk, version);
        }
        self.next(chunk);
    }

    /// All below have committed it.
    pub(crate) fn done(&mut self, chunk: ChunkId, version: Version) {
        let dirty = self.member.dirty.get_mut(&chunk);
        if let Some(dirty) = dirty.filter(|dirty| dirty.version == version) {
            dirty.is_done_below = true;
            // Nobody needs the bytes any more, but for the disk.
            dirty.edit = None;
            self.settle(chunk);
        }
    }

    /// Commits a content that is durable here and committed below.
    fn settle(&mut self, chunk: ChunkId) {
        let is_over =
            |dirty: &Dirty<P>| dirty.is_durable && dirty.is_done_below && dirty.refusal.is_none();
        if !self.member.dirty.get(&chunk).is_some_and(is_over) {
            return;
        }
        let Some(dirty) = self.member.dirty.remove(&chunk) else {
            return;
        };
        let version = dirty.version;
        self.store.commit(chunk, version);
        if self.store.state(chunk).is_removed {
            // It is durable here, so this member asks those below for nothing older any more.
            if let Some(successor) = self.member.successor() {
                self.send(successor, Message::Forget { chunk, version });
            }
            if self.member.is_head() {
                self.store.forget(chunk);
            }
        }
        if let Some(predecessor) = self.member.predecessor() {
            self.send(predecessor, Message::Done { chunk, version });
        }
        if let Some(client) = dirty.client {
            self.answer(client, Reply::Done);
        }
        self.look_at_repair(chunk);
        match dirty.next {
            Some((from, update)) => self.update(from, update),
            None => self.next(chunk),
        }
    }

    /// The predecessor does not need to know any more that a chunk was removed.
    pub(crate) fn forget(&mut self, chunk: ChunkId, version: Version) {
        let state = self.store.state(chunk);
        let is_clean = !self.member.dirty.contains_key(&chunk);
        if is_clean && state.is_removed && state.committed == version {
            self.store.forget(chunk);
        }
    }

    /// A member below has no room. Nothing may be left of it here when those above know: they answer the client.
    pub(crate) fn refused(&mut self, chunk: ChunkId, version: Version, why: ChainRefusal) {
        let dirty = self.member.dirty.get_mut(&chunk);
        let Some(dirty) = dirty.filter(|dirty| dirty.version == version) else {
            return;
        };
        if dirty.refusal.is_none() && !dirty.is_done_below {
            dirty.refusal = Some(why);
            if dirty.is_lost {
                return self.discarded(chunk, version);
            }
            self.store.discard(chunk, version);
        }
    }

    pub(crate) fn discarded(&mut self, chunk: ChunkId, version: Version) {
        let dirty = self.member.dirty.get(&chunk);
        let Some(why) = dirty
            .filter(|dirty| dirty.version == version)
            .and_then(|dirty| dirty.refusal)
        else {
            return;
        };
        let Some(dirty) = self.member.dirty.remove(&chunk) else {
            return;
        };
        if let Some(predecessor) = self.member.predecessor() {
            self.say_refused(predecessor, chunk, version, why);
        }
        if let Some(client) = dirty.client {
            self.refuse(client, why);
        }
        self.look_again(chunk, dirty);
    }

    /// A tail commits what is durable: nobody below has to.
    pub(crate) fn settle_at_tail(&mut self) {
        if !self.member.is_tail() {
            return;
        }
        let chunks: Vec<_> = self.member.dirty.keys().copied().collect();
        for chunk in chunks {
            if let Some(dirty) = self.member.dirty.get_mut(&chunk) {
                dirty.is_done_below = true;
            }
            self.settle(chunk);
        }
    }

    pub(crate) fn resend_updates(&mut self, to: TargetId) {
        if self.member.successor() == Some(to) {
            let all = self.member.dirty.iter();
            let open = all.filter(|(_, dirty)| !dirty.is_done_below);
            let chunks: Vec<_> = open.map(|(chunk, _)| *chunk).collect();
            self.member.to_forward.extend(chunks);
            self.forward();
        }
    }
}
