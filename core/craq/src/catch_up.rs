//! A member that came back, or found damage: it asks a neighbour for the contents that it lacks. What a member may have
//! lost is what was not durable on it, and the tail may have answered reads with that: so a member catches up with its
//! successor before it answers anything, and the tail has nobody to catch up with.

use std::collections::{BTreeSet, VecDeque};

use crate::chunks::Chunks;
use crate::encoding::MOST_VERSIONS;
use crate::member::{Effect, Step};
use crate::message::{Edit, Message, Update};
use crate::records::Records;
use crate::table::{ChunkId, TargetId, Version};
use crate::update::Dirty;

/// Contents that are asked for at a time: 8 of at most 4 MiB.
const MOST_FETCHES: usize = 8;

/// Who needs a content, and which version of it, or the newest.
pub(crate) type Fetcher = (TargetId, Option<Version>);

/// How far a member is.
#[derive(Debug, Default)]
pub(crate) struct CatchUp {
    /// The page that is asked for or worked on begins behind this chunk.
    after: Option<ChunkId>,
    /// Whether that page came, and whether it is the last.
    page: Option<bool>,
    /// Chunks of it that are not asked for yet.
    missing: VecDeque<ChunkId>,
    fetching: BTreeSet<ChunkId>,
    /// Who waits for a page of this member, and behind which chunk, until it is complete itself.
    asked: Option<(TargetId, Option<ChunkId>)>,
}

impl<P: Clone, S: Chunks<P>> Step<'_, P, S> {
    /// There is a new table.
    pub(crate) fn begin_catch_up(&mut self) {
        if self.member.is_complete || !self.member.table.members.contains(&self.member.me) {
            return;
        }
        if self.member.is_tail() {
            return self.complete();
        }
        let asked = self.member.catch_up.asked.take();
        self.member.catch_up = CatchUp {
            asked,
            ..CatchUp::default()
        };
    }

    fn complete(&mut self) {
        self.member.is_complete = true;
        if let Some(predecessor) = self.member.predecessor() {
            self.send(predecessor, Message::Hello);
        }
        if let Some((to, after)) = self.member.catch_up.asked.take() {
            self.list(to, after);
        }
    }

    /// What was asked and not answered, of this neighbour.
    pub(crate) fn resend_catch_up(&mut self, to: TargetId) {
        if self.member.successor() == Some(to) && !self.member.is_complete {
            if self.member.catch_up.page.is_none() {
                let after = self.member.catch_up.after;
                self.send(to, Message::List { after });
            }
            for chunk in self.member.catch_up.fetching.clone() {
                let version = None;
                self.send(to, Message::Fetch { chunk, version });
            }
        }
        let is_neighbour = [self.member.successor(), self.member.predecessor()].contains(&Some(to));
        if is_neighbour {
            let damaged: Vec<_> = self.member.repairs.keys().copied().collect();
            for chunk in damaged {
                let version = Some(self.wanted(chunk));
                self.send(to, Message::Fetch { chunk, version });
            }
        }
    }

    /// The predecessor came back.
    pub(crate) fn list(&mut self, from: TargetId, after: Option<ChunkId>) {
        if !self.member.is_complete {
            self.member.catch_up.asked = Some((from, after));
            return;
        }
        let mut versions = self.store.versions(after, MOST_VERSIONS);
        let is_last = versions.len() < MOST_VERSIONS;
        // What could not be written here yet is not in the store, and may be committed below.
        for (chunk, version) in &mut versions {
            if let Some(dirty) = self.member.dirty.get(chunk) {
                *version = dirty.version.max(*version);
            }
        }
        let message = Message::Versions {
            after,
            versions,
            is_last,
        };
        self.send(from, message);
    }

    pub(crate) fn versions(
        &mut self,
        after: Option<ChunkId>,
        versions: Vec<(ChunkId, Version)>,
        is_last: bool,
    ) {
        let catch_up = &mut self.member.catch_up;
        if self.member.is_complete || catch_up.page.is_some() || after != catch_up.after {
            return;
        }
        let Some(last) = versions.last().map(|(chunk, _)| *chunk).or(after) else {
            // Nothing is there.
            return self.complete();
        };
        catch_up.page = Some(is_last);
        catch_up.after = Some(last);
        for (chunk, version) in versions {
            let state = self.store.state(chunk);
            if state.newest() < version || state.is_damaged {
                catch_up.missing.push_back(chunk);
            }
        }
        self.fetch_missing();
    }

    fn fetch_missing(&mut self) {
        let Some(successor) = self.member.successor() else {
            return;
        };
        while self.member.catch_up.fetching.len() < MOST_FETCHES
            && let Some(chunk) = self.member.catch_up.missing.pop_front()
        {
            self.member.catch_up.fetching.insert(chunk);
            let version = None;
            self.send(successor, Message::Fetch { chunk, version });
        }
        if !self.member.catch_up.fetching.is_empty() {
            return;
        }
        match self.member.catch_up.page.take() {
            Some(true) => self.complete(),
            Some(false) => {
                let after = self.member.catch_up.after;
                self.send(successor, Message::List { after });
            }
            None => {}
        }
    }

    /// A neighbour lacks a content. One that is not here any more is not wanted there any more.
    pub(crate) fn fetch(&mut self, from: TargetId, chunk: ChunkId, wanted: Option<Version>) {
        let state = self.store.state(chunk);
        if let Some(dirty) = self.member.dirty.get_mut(&chunk)
            && wanted.is_none_or(|wanted| wanted == dirty.version)
        {
            if !dirty.is_there() {
                let fetcher = (from, wanted);
                if !dirty.fetchers.contains(&fetcher) {
                    dirty.fetchers.push(fetcher);
                }
                return;
            }
            let version = dirty.version;
            return match state.pending {
                Some(pending) if pending.is_removed => self.send_removed(from, chunk, version),
                Some(_) | None => self.load_for(from, chunk, version),
            };
        }
        if let Some(version) = wanted.filter(|wanted| *wanted != state.committed) {
            let is_above = self.member.predecessor() == Some(from);
            if is_above && self.member.is_complete && state.committed < version {
                self.send(from, Message::Missing { chunk, version });
            }
            // What this member waits for is damaged there: one above may have it.
            if self.member.catch_up.fetching.contains(&chunk)
                && let Some(predecessor) = self.member.predecessor()
            {
                self.wait_for_repair(from, chunk, wanted);
                let version = wanted;
                self.send(predecessor, Message::Fetch { chunk, version });
            }
            return;
        }
        if state.is_removed || state.committed == Version::NONE {
            return self.send_removed(from, chunk, state.committed);
        }
        if !state.is_damaged {
            return self.load_for(from, chunk, state.committed);
        }
        self.ask_for(chunk);
        self.wait_for_repair(from, chunk, wanted);
    }

    fn wait_for_repair(&mut self, from: TargetId, chunk: ChunkId, wanted: Option<Version>) {
        let waiting = self.member.repairs.entry(chunk).or_default();
        if !waiting.contains(&(from, wanted)) {
            waiting.push((from, wanted));
        }
    }

    fn send_removed(&mut self, to: TargetId, chunk: ChunkId, version: Version) {
        let message = Message::Content {
            chunk,
            version,
            content: None,
            records: self.store.records(chunk, version),
        };
        self.send(to, message);
    }

    /// A neighbour's newest content.
    pub(crate) fn content(
        &mut self,
        chunk: ChunkId,
        version: Version,
        content: Option<P>,
        records: Records,
    ) {
        let was_fetched = self.member.catch_up.fetching.remove(&chunk);
        let is_wanted = was_fetched || self.member.repairs.contains_key(&chunk);
        let state = self.store.state(chunk);
        let lost = self.member.dirty.get_mut(&chunk);
        if let Some(dirty) = lost.filter(|dirty| dirty.is_lost && dirty.version == version) {
            dirty.is_lost = false;
            self.prepare_again(&whole(chunk, version, content, records));
        } else if is_wanted && version == state.committed && state.is_damaged {
            self.store.repair(chunk, version, content);
        } else if is_wanted && version > state.newest() {
            self.take(chunk, version, content, records);
        }
        self.look_at_repair(chunk);
        if was_fetched {
            self.fetch_missing();
        }
    }

    /// A content that this member lacks is prepared as if it came from above, in the place of an older one.
    fn take(&mut self, chunk: ChunkId, version: Version, content: Option<P>, records: Records) {
        let update = whole(chunk, version, content, records);
        match self.store.prepare(&update) {
            Ok(()) => {
                let old = self.member.dirty.remove(&chunk);
                let client = old.and_then(|old: Dirty<P>| old.client);
                self.begin(update, client);
            }
            Err(_) => self.no_room(chunk),
        }
    }

    /// What was lost here came whole.
    pub(crate) fn prepare_again(&mut self, update: &Update<P>) {
        if self.store.prepare(update).is_err() {
            self.no_room(update.chunk);
        }
    }

    fn no_room(&mut self, chunk: ChunkId) {
        let why = "there is no room for what the chain has written";
        self.effects.push(Effect::Broken { chunk, why });
    }

    /// The store found damage.
    pub(crate) fn damaged(&mut self, chunk: ChunkId) {
        let of_chunk = (chunk, Version::NONE)..=(chunk, Version::MAX);
        let loads: Vec<_> = self
            .member
            .loads
            .range(of_chunk)
            .map(|(load, _)| *load)
            .collect();
        self.ask_for(chunk);
        for load in loads {
            let Some(load) = self.member.loads.remove(&load) else {
                continue;
            };
            if load.is_for_successor() {
                // It may be another content that is damaged: what the successor needs is read again.
                self.forward_soon(chunk);
            }
            for to in load.into_fetchers() {
                self.fetch(to, chunk, None);
            }
        }
    }

    /// The content that is damaged or lost here.
    fn wanted(&self, chunk: ChunkId) -> Version {
        let lost = self.member.dirty.get(&chunk).filter(|dirty| dirty.is_lost);
        lost.map_or_else(|| self.store.state(chunk).committed, |lost| lost.version)
    }

    /// Asks the neighbours for a content that is damaged or lost here; false if there are none.
    pub(crate) fn ask_for(&mut self, chunk: ChunkId) -> bool {
        self.member.repairs.entry(chunk).or_default();
        let version = Some(self.wanted(chunk));
        let neighbours = [self.member.successor(), self.member.predecessor()];
        for neighbour in neighbours.into_iter().flatten() {
            self.send(neighbour, Message::Fetch { chunk, version });
        }
        neighbours.iter().any(Option::is_some)
    }

    /// If a chunk is well again, those who waited for it go on.
    pub(crate) fn look_at_repair(&mut self, chunk: ChunkId) {
        if self.store.state(chunk).is_damaged {
            return;
        }
        for (to, version) in self.member.repairs.remove(&chunk).unwrap_or_default() {
            self.fetch(to, chunk, version);
        }
        self.next(chunk);
    }
}

/// A content as a neighbour sends it.
fn whole<P>(chunk: ChunkId, version: Version, content: Option<P>, records: Records) -> Update<P> {
    Update {
        chunk,
        version,
        base: Version::NONE,
        edit: content.map_or(Edit::Remove, |content| Edit::Replace { content }),
        records,
    }
}
