//! The operations of one group on this node: its ranks' calls, its trees, the slots of its edges. Nodes and ranks have
//! their numbers in the group here; `part` knows those of the epoch. How a group is opened is in `open`, how operations
//! move on in `up`, `down`, `agree`, `receive` and `flow`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::edge::{Child, Edge, Parent};
use super::history::History;
use super::mail::Mail;
use super::node::{Farewell, Node, Work};
use super::operation::{Brought, Operation, Stage};
use super::part::Part;
use super::turns::Turns;
use super::{
    Broken, Buffer, Claim, Config, Effect, Frame, GroupId, MAX_IN_FLIGHT, OnPeerLoss, OpId, Reason,
    Region, Splits, Start, Ticket, WORLD,
};
use crate::op::{Call, OpKind};
use crate::recovery::{Held, MAX_HELD};
use crate::schedule::{Chunk, Plan};

/// One group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) part: Part,
    /// Whether its ranks may call.
    pub(super) stands: bool,
    /// The operation that has closed it, when that is final here.
    pub(super) closed: Option<OpId>,
    /// Whether nobody needs it any more.
    pub(super) over: bool,
    pub(super) chunk_bytes: u32,
    pub(super) slots: u8,
    on_peer_loss: OnPeerLoss,
    /// Whether some of its ranks can go on without others.
    replicated: bool,
    pub(super) edges: BTreeMap<usize, Edge>,
    /// `(peer, tree)` of every child.
    pub(super) below: Vec<(usize, u8)>,
    /// The send slots of each tree in which this node has a parent.
    pub(super) parents: [Option<(usize, Parent)>; 2],
    pub(super) ops: BTreeMap<OpId, Operation>,
    pub(super) turns: Turns,
    /// How many operations each local rank has called.
    pub(super) called: Vec<u64>,
    pub(super) history: History,
    /// What ranks send each other.
    pub(super) mail: Mail,
    /// Local ranks that closed their session.
    pub(super) gone: Vec<bool>,
}

impl Group {
    /// The group of all ranks, which stands as long as the epoch.
    pub(super) fn world(config: &Config, start: Option<&Start>) -> Self {
        let (part, replicated) = (Part::world(config), config.recovery.replicated);
        Self {
            stands: true,
            ..Self::new(WORLD, config, part, replicated, start)
        }
    }

    /// A group that does not stand yet.
    pub(super) fn new(
        id: GroupId,
        config: &Config,
        part: Part,
        replicated: bool,
        start: Option<&Start>,
    ) -> Self {
        let node = part.node;
        let trees = &part.trees.trees;
        let edge =
            |peer: usize| Edge::new([0, 1].map(|tree| trees[tree].parent[peer] == Some(node)));
        let neighbours = part.trees.neighbours(node).into_iter();
        let local = part.locals.len();
        let called = start.map_or_else(|| vec![0; local], |start| start.told.clone());
        let base = start.map_or(0, |start| start.resume.base);
        let edges: BTreeMap<usize, Edge> = neighbours.map(|peer| (peer, edge(peer))).collect();
        let mut group = Self {
            id,
            stands: false,
            closed: None,
            over: false,
            below: below(&edges),
            edges,
            parents: [0, 1]
                .map(|tree| trees[tree].parent[node].map(|peer| (peer, Parent::new(config.slots)))),
            ops: BTreeMap::new(),
            turns: Turns::default(),
            history: History::new(base, called.clone(), &trees[0].children[node]),
            called,
            mail: Mail::default(),
            gone: vec![false; local],
            part,
            chunk_bytes: config.chunk_bytes,
            slots: config.slots,
            on_peer_loss: config.recovery.on_peer_loss,
            replicated,
        };
        if let Some(start) = start {
            group.take_over(start);
        }
        group
    }

    /// Begins with what was reported: operations that are served need nothing of the ranks here.
    fn take_over(&mut self, start: &Start) {
        let holds = |held: &Held| held.call.kind == OpKind::Close && held.verdict.is_none();
        let all = start.resume.served.iter().map(|served| &served.held);
        self.closed = start
            .held
            .iter()
            .chain(all)
            .find(|held| holds(held))
            .map(|held| held.op);
        let mine = |op: OpId| start.held.iter().find(|held| held.op == op).copied();
        for held in &start.held {
            if held.op < start.resume.base {
                self.history.keep(*held); // To be released.
            }
        }
        for served in &start.resume.served {
            let op = served.held.op;
            let told: Vec<bool> = start.told.iter().map(|&first| first > op).collect();
            if let Some(held) = mine(op) {
                self.history.keep(held);
            } else if !served.spread {
                // Where there are no bytes, to have heard of it is to have it.
                let complete = served.held.bytes == 0;
                self.history.keep(Held {
                    complete,
                    ..served.held
                });
            }
            if !served.spread && !told.contains(&false) {
                continue;
            }
            // When it began matters for what waits for ranks only.
            let mut operation = Operation::new(told.len(), Duration::ZERO);
            operation.told = told;
            operation.holds = mine(op).is_some_and(|held| held.complete);
            operation.epoch = Some(served.held.epoch);
            let holder = self.part.place(served.holder).unwrap_or(0);
            operation.served = Some(Claim {
                rank: self.part.first(holder),
                call: served.held.call,
            });
            if served.spread {
                let (call, bytes) = (served.held.call, served.held.bytes);
                let plan = Plan::served(call, bytes, holder, self.chunk_bytes);
                operation.plan(plan, &self.part.trees, self.part.node);
            } else {
                operation.stage = Stage::Final;
            }
            self.ops.insert(op, operation);
            self.turns.stir(op);
        }
    }

    /// Whether the result of an operation lay here before it was served.
    pub(super) fn holds(&self, op: OpId) -> bool {
        self.ops.get(&op).is_some_and(|operation| operation.holds)
    }

    /// Why a call cannot run any more since ranks were lost.
    pub(super) fn lost_for(&self, call: &Call) -> Option<Reason> {
        if self.part.layout.is_whole() || call.kind == OpKind::Close {
            return None;
        }
        if !self.replicated {
            return Some(Reason::NotReplicated);
        }
        match call.kind {
            OpKind::Reduce { root, .. } | OpKind::Broadcast { root } => {
                (!self.part.layout.has_rank(root)).then_some(Reason::RootLost)
            }
            OpKind::Send { to: other } | OpKind::Receive { from: other } => {
                (!self.part.layout.has_rank(other)).then_some(Reason::RanksLost)
            }
            OpKind::AllGather
            | OpKind::ReduceScatter { .. }
            | OpKind::Gather { .. }
            | OpKind::Scatter { .. }
            | OpKind::AllToAll { .. } => Some(Reason::RanksLost),
            OpKind::AllReduce { .. } | OpKind::Barrier | OpKind::Close => None,
        }
    }

    /// The trees in which this node has a parent.
    pub(super) fn sends(&self) -> Vec<u8> {
        let parents = (0u8..).zip(&self.parents);
        parents
            .filter(|(_, parent)| parent.is_some())
            .map(|(tree, _)| tree)
            .collect()
    }

    /// Everybody it exchanges frames with, as links know them.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> {
        self.edges.keys().map(|&peer| self.part.nodes[peer])
    }

    pub(super) fn send(
        &self,
        node: &mut Node,
        peer: usize,
        frame: Frame,
        payload: Option<(Ticket, Region)>,
    ) {
        node.send(self.part.nodes[peer], frame, payload);
    }

    /// What a local rank brought to an operation.
    pub(super) fn input(&self, op: OpId, rank: usize) -> Buffer {
        Buffer::Input {
            group: self.id,
            op,
            rank: self.part.locals[rank],
        }
    }

    /// A slot that a child fills.
    pub(super) fn receive(&self, peer: usize, tree: u8, slot: u8) -> Buffer {
        Buffer::Receive {
            group: self.id,
            peer: self.part.nodes[peer],
            tree,
            slot,
        }
    }

    /// A chunk's place in the result.
    pub(super) fn result(&self, op: OpId, chunk: &Chunk) -> Region {
        let group = self.id;
        Region {
            buffer: Buffer::Result { group, op },
            offset: chunk.offset,
            bytes: chunk.bytes,
        }
    }

    pub(super) fn may_submit(&self, rank: usize) -> bool {
        let Some(rank) = self.part.local(rank).filter(|_| self.stands) else {
            return false;
        };
        let kept = match self.on_peer_loss {
            OnPeerLoss::Fail => OpId::MAX,
            OnPeerLoss::Hold => self.history.released() + MAX_HELD,
        };
        self.called[rank] < (self.oldest() + MAX_IN_FLIGHT).min(kept)
    }

    pub(super) fn global(&self, rank: usize) -> u32 {
        self.part.global(rank)
    }

    /// The first operation that is not over here.
    pub(super) fn oldest(&self) -> OpId {
        let called = self.called.iter().copied().min().unwrap_or(0);
        self.ops.keys().next().map_or(called, |&id| id.min(called))
    }

    pub(super) fn submit(
        &mut self,
        node: &mut Node,
        rank: usize,
        call: Call,
        ready: Result<u64, Reason>,
        splits: Splits,
    ) {
        if node.holds() {
            return; // The shell hands it to the next machine.
        }
        let group = self.id;
        let id = self.called[rank];
        self.called[rank] += 1;
        if node.farewell != Farewell::No {
            let (node_left, by) = (node.config.node, node.config.node);
            let broken = Broken::NodeLeft {
                node: node_left,
                by,
                op: id,
            };
            node.break_with(broken, None);
        }
        if let Some(broken) = node.broken {
            node.out.push(Effect::End {
                group,
                op: id,
                rank: self.part.locals[rank],
                outcome: Err(broken.into()),
            });
            return;
        }
        let refused = ready.err().or_else(|| self.lost_for(&call));
        self.turns.stir(id);
        let operation = self
            .ops
            .entry(id)
            .or_insert_with(|| Operation::new(self.gone.len(), node.now));
        operation.brought[rank] = Some(Brought {
            call,
            ready: ready.unwrap_or(0),
            refused,
        });
        if operation.served.is_some() {
            return;
        }
        operation.exchange.bring(rank, splits);
        if operation.complete_here() && operation.verdict(|rank| self.part.global(rank)).is_none() {
            let plan = match node.config.recovery.on_peer_loss {
                OnPeerLoss::Fail => Plan::new(call, &self.part.layout, self.chunk_bytes),
                OnPeerLoss::Hold => Plan::kept(call, &self.part.layout, self.chunk_bytes),
            };
            operation.plan(plan, &self.part.trees, self.part.node);
            self.check_early_parts(node, id);
            self.begin_exchange(node, id);
        }
        self.check_departures(node, id);
    }

    pub(super) fn ready(&mut self, node: &mut Node, rank: usize, op: OpId, ready: u64) {
        if let Some(brought) = self
            .ops
            .get_mut(&op)
            .and_then(|operation| operation.brought[rank].as_mut())
        {
            brought.ready = brought.ready.max(ready);
            self.turns.stir(op);
        }
        self.begin_exchange(node, op);
    }

    pub(super) fn ticket(&mut self, node: &mut Node, work: Work) -> Ticket {
        if let Some(operation) = self.ops.get_mut(&work.op()) {
            operation.tickets += 1;
        }
        node.ticket(self.id, work)
    }

    pub(super) fn done(&mut self, node: &mut Node, work: Work) {
        if let Some(operation) = self.ops.get_mut(&work.op()) {
            operation.tickets -= 1;
        }
        match work {
            Work::Part { op, chunk } => {
                let part = self
                    .ops
                    .get_mut(&op)
                    .and_then(|operation| operation.parts.get_mut(&chunk));
                let Some(part) = part else { return };
                part.left -= 1;
                if part.left == 0 {
                    self.finish_part(node, op, chunk);
                }
            }
            Work::Up { tree, slot, .. } => {
                if let Some((_, parent)) = &mut self.parents[tree] {
                    parent.left(slot);
                }
            }
            Work::Down { tree, peer, .. } => {
                if let Some(child) = self.child_mut(peer, tree) {
                    child.sending -= 1;
                }
            }
            Work::Mail { op, parcel } => self.parcel_left(node, op, parcel),
        }
    }

    pub(super) fn child(&self, peer: usize, tree: usize) -> Option<&Child> {
        self.edges.get(&peer)?.child[tree].as_ref()
    }

    pub(super) fn child_mut(&mut self, peer: usize, tree: usize) -> Option<&mut Child> {
        self.edges.get_mut(&peer)?.child[tree].as_mut()
    }

    /// Whether a local rank waits for an operation.
    pub(super) fn in_flight(&self) -> bool {
        // What only others have begun keeps nobody: the farewell tells them.
        let mut operations = self.ops.values();
        operations.any(|operation| operation.brought.iter().any(Option::is_some))
            || self.mail.is_in_use()
    }

    /// The epoch is over: what is in flight ends with the cause.
    pub(super) fn close(&mut self, node: &mut Node, broken: Broken) {
        let holds = node.holds();
        for (&op, operation) in &mut self.ops {
            operation.queued = 0;
            if operation.stage == Stage::Ended {
                continue;
            }
            operation.stage = Stage::Ended;
            for (rank, brought) in operation.brought.iter().enumerate() {
                if brought.is_some() && !operation.told[rank] && !holds {
                    node.out.push(Effect::End {
                        group: self.id,
                        op,
                        rank: self.part.locals[rank],
                        outcome: Err(broken.into()),
                    });
                }
            }
        }
        let children = self.edges.values_mut().flat_map(|edge| &mut edge.child);
        for child in children.flatten() {
            child.backlog.clear();
            child.arrived.clear();
        }
        self.close_mail(node, broken);
    }

    pub(super) fn rank_left(&mut self, node: &mut Node, rank: usize) {
        self.gone[rank] = true;
        self.check_departures_of_open(node);
        self.check_wanted_of(node, rank);
        self.refuse_sends_to_nobody(node);
    }

    pub(super) fn check_departures_of_open(&mut self, node: &mut Node) {
        let open = self
            .ops
            .iter()
            .filter(|(_, operation)| !operation.stage.is_over());
        for id in open.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.check_departures(node, id);
        }
    }

    /// An operation that needs somebody who has left never ends: say so instead of waiting.
    pub(super) fn check_departures(&self, node: &mut Node, op: OpId) {
        let by = node.config.node;
        let mut edges = self.edges.iter();
        let left = edges.find(|(_, edge)| edge.bye.is_some_and(|ended| ended <= op));
        if let Some((&left, _)) = left {
            let left = self.part.nodes[left];
            node.break_with(Broken::NodeLeft { node: left, by, op }, None);
            return;
        }
        let left = (0..self.gone.len()).find(|&rank| self.gone[rank] && self.called[rank] <= op);
        if let Some(rank) = left {
            let rank = self.global(rank);
            node.break_with(Broken::RankLeft { rank, by, op }, None);
        }
    }
}

/// `(peer, tree)` of every child.
fn below(edges: &BTreeMap<usize, Edge>) -> Vec<(usize, u8)> {
    let edges = edges.iter().flat_map(|(&peer, edge)| {
        (0u8..)
            .zip(&edge.child)
            .map(move |(tree, child)| (peer, tree, child.is_some()))
    });
    edges
        .filter(|&(.., is_child)| is_child)
        .map(|(peer, tree, _)| (peer, tree))
        .collect()
}
