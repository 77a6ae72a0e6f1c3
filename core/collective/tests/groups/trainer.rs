//! The ranks. Each opens its groups, calls what its program holds in them and closes them, in an order of its own
//! between groups.

use std::collections::BTreeMap;

use collective::machine::{
    Cause, Dispute, FIRST_POST, GroupId, Input, OpId, OpenError, OpenReason, WORLD,
};
use collective::recovery::Told;
use collective::{Call, DType, OpKind};
use sim::Rng;

use crate::world::{Event, MS, World};

/// The end of an operation as a rank was told it: the bytes it may read and the epoch, or why there are none.
pub(crate) type Outcome = Result<(Vec<u8>, u32), Cause>;

/// A group as its ranks know it.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) ranks: Vec<u32>,
    pub(crate) replicated: bool,
    pub(crate) members: Vec<Member>,
}

/// One rank in a group.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// With whom it opens the group.
    pub(crate) opens_with: Vec<u32>,
    pub(crate) program: Vec<Call>,
    pub(crate) asked: bool,
    /// Whether its node knows that it opens the group, or has opened it.
    pub(crate) known: bool,
    pub(crate) opened: Option<Result<(), OpenError>>,
    /// Whether the group stands in this epoch.
    pub(crate) stands: bool,
    pub(crate) called: usize,
    /// How many of its calls the machine has.
    pub(crate) submitted: usize,
    pub(crate) outcomes: BTreeMap<usize, Outcome>,
    /// Its node is done with the group.
    pub(crate) closed: bool,
    /// The rank itself remembers it, for a node that loses its memory.
    pub(crate) remembered: bool,
    /// Its node tells it with the answer to the next opening that this is over.
    pub(crate) to_be_forgotten: bool,
}

impl Member {
    /// What it was told, as its node knows it.
    pub(crate) fn told(&self) -> Option<Told> {
        let has_closed = || {
            let last = self.outcomes.last_key_value();
            last.is_some_and(|(&op, end)| self.program[op].kind == OpKind::Close && end.is_ok())
        };
        self.known.then(|| Told {
            first: self.outcomes.len() as OpId,
            closed: has_closed(),
        })
    }

    /// Its node needs the group no more.
    pub(crate) fn forget(&mut self) {
        // It may be one that was never open.
        self.to_be_forgotten = self.told().is_some_and(|told| told.closed);
        (self.known, self.closed) = (false, true);
    }

    /// Its node has lost its memory: what the rank tells it counts.
    pub(crate) fn remind(&mut self) {
        self.known = self.remembered;
        self.closed &= !self.remembered;
        self.to_be_forgotten = false;
    }

    pub(crate) fn has_ended(&self) -> bool {
        match self.opened {
            Some(Ok(())) => self.outcomes.len() == self.program.len(),
            Some(Err(_)) => true,
            None => false,
        }
    }
}

impl World {
    /// These ranks will open a group and call the same in it.
    pub(crate) fn add(&mut self, group: GroupId, ranks: &[u32], replicated: bool, calls: &[Call]) {
        let members = ranks.iter().map(|_| Member {
            opens_with: ranks.to_vec(),
            program: calls.to_vec(),
            ..Member::default()
        });
        let mut lane = Lane {
            ranks: ranks.to_vec(),
            replicated,
            members: members.collect(),
        };
        if group == WORLD {
            for member in &mut lane.members {
                (member.asked, member.known, member.stands) = (true, true, true);
                member.opened = Some(Ok(()));
                member.remembered = true;
            }
        }
        self.lanes.insert(group, lane);
    }

    pub(crate) fn start(&mut self) {
        (0..self.layout.whole()).for_each(|rank| self.act_soon(rank));
    }

    pub(crate) fn act_soon(&mut self, rank: u32) {
        let delay = self.a_while(3 * MS);
        self.queue.after(delay, Event::Act { rank });
    }

    pub(crate) fn member(&mut self, group: GroupId, rank: u32) -> Option<&mut Member> {
        let lane = self.lanes.get_mut(&group)?;
        let at = lane.ranks.binary_search(&rank).ok()?;
        Some(&mut lane.members[at])
    }

    pub(crate) fn has(&self, group: GroupId, rank: u32) -> Option<&Member> {
        let lane = self.lanes.get(&group)?;
        let at = lane.ranks.binary_search(&rank).ok()?;
        Some(&lane.members[at])
    }

    /// Does one of the things that a rank may do next, in any of its groups.
    pub(crate) fn act(&mut self, rank: u32) {
        let node = self.node_of(rank);
        let is_here = self.nodes[node].machine.is_some() && self.nodes[node].report.is_none();
        if !is_here {
            return;
        }
        let local = self.local(rank);
        let machine = self.nodes[node].machine.as_ref().unwrap();
        let may = |group: GroupId| {
            let member = self.has(group, rank)?;
            let calls = member.called
                < member
                    .program
                    .len()
                    .min(member.outcomes.len() + self.window);
            let hands = member.submitted < member.called || calls;
            (!member.asked || member.stands && hands && machine.may_submit(group, local))
                .then_some(group)
        };
        let open: Vec<GroupId> = self.lanes.keys().copied().filter_map(may).collect();
        if self.rng.chance(1, 2) && self.post_next(node, rank, local) {
            self.act_soon(rank);
            return;
        }
        if open.is_empty() {
            if self.post_next(node, rank, local) {
                self.act_soon(rank);
            }
            return;
        }
        let group = *self.rng.pick(&open);
        if self.has(group, rank).unwrap().asked {
            self.submit(node, group, rank, local);
        } else {
            self.open(node, group, rank, local);
        }
        self.act_soon(rank);
    }

    pub(crate) fn open(&mut self, node: usize, group: GroupId, rank: u32, local: usize) {
        let replicated = self.lanes[&group].replicated;
        let member = self.member(group, rank).unwrap();
        (member.asked, member.known) = (true, true);
        let ranks = member.opens_with.clone();
        let open = Input::Open {
            group,
            rank: local,
            ranks,
            replicated,
        };
        self.handle(node, open);
    }

    pub(crate) fn submit(&mut self, node: usize, group: GroupId, rank: u32, local: usize) {
        let member = self.member(group, rank).unwrap();
        let op = member.submitted;
        member.submitted += 1;
        member.called = member.called.max(member.submitted);
        let call = member.program[op];
        let id = op as OpId;
        let size = self.lanes[&group].ranks.len() as u32;
        call.check(size).unwrap();
        let input = self.input(group, rank, op);
        let total = input.len() as u64;
        let ready = if call.kind.exchanges() {
            total
        } else {
            self.rng.range(0..total + 1)
        };
        let memory = &mut self.nodes[node].memory;
        memory.add_input((group, id), local, input, ready);
        memory.add_result((group, id), call.result_bytes(size));
        if call.kind.exchanges() {
            self.exchange(node, group, rank, local, op);
            return;
        }
        if ready < total {
            let more = Input::Ready {
                group,
                rank: local,
                op: id,
                ready: total,
            };
            self.later(MS, node, more);
        }
        let submit = Input::Submit {
            group,
            rank: local,
            call,
            ready,
        };
        self.handle(node, submit);
    }

    pub(crate) fn opened(
        &mut self,
        node: usize,
        group: GroupId,
        local: usize,
        outcome: Result<(), OpenError>,
    ) {
        let rank = self.layout.ranks(node).start + local as u32;
        self.note(format!("{node}: group {group} of rank {rank}: {outcome:?}"));
        let stays = match outcome {
            Ok(()) => true,
            Err(OpenError::Dispute(Dispute::Refused { reason, .. })) => reason == OpenReason::Taken,
            Err(OpenError::Dispute(Dispute::Mismatch { .. }) | OpenError::Broken(_)) => false,
        };
        if !stays {
            // It may have stood in an epoch before.
            self.forget_group(node, group);
        }
        let member = self.member(group, rank).unwrap();
        assert!(!member.stands, "answered once");
        member.stands = outcome.is_ok();
        if !matches!(member.opened, Some(Err(_))) {
            member.opened = Some(outcome);
        }
        if !member.remembered {
            member.remembered = outcome.is_ok();
            for group in self.lanes.keys().copied().collect::<Vec<_>>() {
                if let Some(member) = self.member(group, rank) {
                    member.remembered &= !std::mem::take(&mut member.to_be_forgotten);
                }
            }
        }
        self.act_soon(rank);
    }

    pub(crate) fn closed(&mut self, node: usize, group: GroupId) {
        for rank in self.layout.ranks(node) {
            if let Some(member) = self.member(group, rank) {
                member.forget();
            }
        }
    }

    pub(crate) fn end(
        &mut self,
        node: usize,
        group: GroupId,
        op: OpId,
        local: usize,
        outcome: Result<u32, Cause>,
    ) {
        let rank = self.layout.ranks(node).start + local as u32;
        self.note(format!(
            "{node}: operation {op} of group {group} for rank {rank}: {outcome:?}"
        ));
        if op >= FIRST_POST {
            self.message_ended(node, op, local, outcome);
            self.act_soon(rank);
            return;
        }
        let exchanges = self.has(group, rank).unwrap().program[op as usize]
            .kind
            .exchanges();
        let bytes = outcome.map(|_| {
            if exchanges {
                let bytes = self.own_bytes(group, rank, op as usize);
                self.own(node, (group, op), local, bytes)
            } else {
                self.nodes[node].memory.tell((group, op)).to_vec()
            }
        });
        let member = self.member(group, rank).unwrap();
        if outcome.is_err_and(|cause| matches!(cause, Cause::Broken(_))) {
            // The trainer gives up.
            member.program.truncate(member.called);
        }
        let outcome = outcome.and_then(|epoch| Ok((bytes?, epoch)));
        let earlier = member.outcomes.insert(op as usize, outcome);
        assert_eq!(earlier, None, "told once");
        self.act_soon(rank);
    }

    pub(crate) fn node_of(&self, rank: u32) -> usize {
        self.layout.node_of(rank)
    }

    pub(crate) fn local(&self, rank: u32) -> usize {
        (rank - self.layout.ranks(self.node_of(rank)).start) as usize
    }

    /// The input of a rank for its k-th operation of a group: integers, whose sums do not depend on the order.
    pub(crate) fn input(&self, group: GroupId, rank: u32, op: usize) -> Vec<u8> {
        let call = self.has(group, rank).unwrap().program[op];
        assert!(call.count == 0 || call.dtype == DType::I64);
        let reads = !matches!(call.kind, OpKind::Barrier | OpKind::Close);
        let salt = group << 48 | u64::from(rank) << 32 | op as u64;
        let mut rng = Rng::new(self.inputs_seed ^ salt);
        let ranks = &self.lanes[&group].ranks;
        let count = if let OpKind::AllToAll { .. } = call.kind {
            self.splits(group, rank, op).send.iter().sum()
        } else if let OpKind::Scatter { root } = call.kind {
            let is_root = ranks[root as usize] == rank;
            u64::from(is_root) * call.count * ranks.len() as u64
        } else if reads {
            call.count
        } else {
            0
        };
        (0..count)
            .flat_map(|_| (rng.next_u64() as i64 >> 20).to_ne_bytes())
            .collect()
    }
}
