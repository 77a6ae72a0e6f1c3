//! Messages between two ranks: in any order, beside everything else that the ranks do.

use collective::machine::{Cause, GroupId, Reason, Verdict, WORLD};
use collective::session::{Called, Presence};
use collective::{Call, DType, Numerics, OpKind};
use sim::Rng;

use super::World;
use super::sessions::Kept;
use crate::fixture::memory::{Id, Payload};

/// One message, and how it ended on both sides.
#[derive(Debug)]
pub(crate) struct P2p {
    group: GroupId,
    from: u32,
    to: u32,
    tag: u64,
    /// Elements that are sent, and that are expected.
    pub(crate) counts: [u64; 2],
    pub(crate) sides: [Side; 2],
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Side {
    #[default]
    Uncalled,
    Called,
    /// Nobody calls it any more.
    GivenUp,
    Ended(Result<Payload, Cause>),
}

impl World {
    /// Messages between any ranks of any groups, some of which do not fit.
    pub(crate) fn add_messages(&mut self, rng: &mut Rng) {
        for _ in 0..1 + rng.below(20) {
            let groups: Vec<GroupId> = self.groups.keys().copied().collect();
            let group = *rng.pick(&groups);
            let ranks = self.groups[&group].ranks.clone();
            let (from, to) = (*rng.pick(&ranks), *rng.pick(&ranks));
            if from == to {
                continue;
            }
            let count = match rng.below(4) {
                0 => 0,
                1 => rng.range(0..500),
                _ => rng.range(1..20),
            };
            let odd = u64::from(rng.chance(1, 10));
            let tag = rng.range(0..3);
            self.add_message(group, (from, to), tag, [count, count + odd]);
        }
    }

    pub(crate) fn add_message(
        &mut self,
        group: GroupId,
        (from, to): (u32, u32),
        tag: u64,
        counts: [u64; 2],
    ) {
        self.messages.push(P2p {
            group,
            from,
            to,
            tag,
            counts,
            sides: Default::default(),
        });
    }

    /// A rank calls the next message that it may. False when there is none.
    pub(crate) fn send_recv_next(&mut self, node: usize, rank: u32) -> bool {
        let (sidecar, local) = (&self.sidecars[node], self.local(rank));
        let attached = sidecar.ranks.presence(local) == Some(Presence::Attached);
        let free = attached && sidecar.started && sidecar.ranks.waiting(local) == 0;
        let Some(machine) = sidecar.machine.as_ref().filter(|_| free) else {
            return false;
        };
        let may = |at: usize| {
            let message = &self.messages[at];
            let side = usize::from(message.to == rank);
            let is_its = [message.from, message.to][side] == rank;
            let member = self.member(message.group, rank)?;
            let is_open = member.opened == Some(Ok(())) && machine.may_send_recv(message.group);
            let is_closing = member.called >= member.program.len() && message.group != WORLD;
            let may = is_its && is_open && !is_closing;
            (may && message.sides[side] == Side::Uncalled).then_some((at, side))
        };
        let Some((at, side)) = (0..self.messages.len()).find_map(may) else {
            return false;
        };
        let P2p {
            group,
            from,
            to,
            tag,
            counts,
            ..
        } = self.messages[at];
        self.messages[at].sides[side] = Side::Called;
        let ranks = &self.groups[&group].ranks;
        let place = |rank: u32| ranks.binary_search(&rank).unwrap() as u32;
        let kind = if side == 0 {
            OpKind::Send { to: place(to) }
        } else {
            OpKind::Receive { from: place(from) }
        };
        let call = Call {
            kind,
            dtype: DType::I64,
            count: counts[side],
            tag,
            numerics: Numerics::Fast,
        };
        let called = Called {
            call,
            splits: None,
            refused: None,
            kept: Kept::Message(at, side),
        };
        let ranks = &mut self.sidecars[node].ranks;
        assert!(ranks.call(group, local, called), "it is open");
        true
    }

    /// Memory for a message.
    pub(crate) fn provide_message(
        &mut self,
        node: usize,
        id: Id,
        rank: u32,
        (at, side): (usize, usize),
    ) {
        let counts = self.messages[at].counts;
        if side == 0 {
            let bytes = content(at, counts[0]);
            let local = self.local(rank);
            self.sidecars[node].memory.add_input(id, local, bytes);
        } else {
            self.add_own_bytes(node, id, rank, 8 * counts[1]);
        }
    }

    pub(crate) fn message_ended(
        &mut self,
        node: usize,
        id: Id,
        rank: usize,
        (at, side): (usize, usize),
        outcome: Result<u32, Cause>,
    ) {
        let bytes = 8 * self.messages[at].counts[1];
        let outcome = outcome.map(|_| match side {
            0 => Payload::default(),
            _ => self.deliver_bytes(node, id, rank, bytes),
        });
        let side = &mut self.messages[at].sides[side];
        assert_eq!(*side, Side::Called, "a message ends once on each rank");
        *side = Side::Ended(outcome);
    }

    /// In a new epoch nobody goes on with those of the one before: sides would not match.
    pub(crate) fn give_up_messages(&mut self) {
        for side in self.messages.iter_mut().flat_map(|one| &mut one.sides) {
            if *side == Side::Uncalled {
                *side = Side::GivenUp;
            }
        }
    }

    /// What ranks of a node have called is forgotten with it.
    pub(crate) fn give_up_messages_of(&mut self, node: usize) {
        let ranks = self.setup.layout.ranks(node);
        for message in &mut self.messages {
            for (rank, side) in [message.from, message.to].iter().zip(&mut message.sides) {
                if ranks.contains(rank) && !matches!(side, Side::Ended(_)) {
                    *side = Side::GivenUp;
                }
            }
        }
    }

    fn is_here(&self, rank: u32) -> bool {
        let node = self.setup.layout.node_of(rank);
        self.sidecars[node].machine.is_some()
    }

    /// Whether everybody who is left knows the end of what it has called.
    pub(crate) fn messages_ended(&self) -> bool {
        self.messages.iter().all(|message| {
            let ranks = [message.from, message.to];
            let mut sides = ranks.iter().zip(&message.sides);
            // Who could not call before its group was closed leaves the other to learn of that.
            sides.all(|(&rank, side)| !self.is_here(rank) || *side != Side::Called)
        })
    }

    /// COLL-1: who got a message got its bytes, and both sides end alike unless the epoch ends between them.
    pub(crate) fn check_messages(&self) {
        for (at, message) in self.messages.iter().enumerate() {
            let [sent, received] = &message.sides;
            if let Side::Ended(Ok(bytes)) = received {
                assert!(bytes[..] == content(at, message.counts[0]), "message {at}");
            }
            self.check_ends(message);
            for side in [sent, received] {
                match side {
                    Side::Ended(Err(Cause::Verdict(Verdict::Mismatch(mismatch)))) => {
                        assert_eq!(
                            (mismatch.one.rank, mismatch.other.rank),
                            (message.from, message.to)
                        );
                        let counts = [mismatch.one.call.count, mismatch.other.call.count];
                        assert_eq!(counts, message.counts);
                        assert_ne!(counts[0], counts[1]);
                    }
                    Side::Ended(Ok(_)) => assert_eq!(message.counts[0], message.counts[1]),
                    Side::Ended(Err(_)) | Side::Uncalled | Side::Called | Side::GivenUp => {}
                }
            }
        }
    }

    fn check_ends(&self, message: &P2p) {
        let mut whole = Vec::new();
        for (rank, side) in [message.from, message.to].iter().zip(&message.sides) {
            match side {
                Side::Ended(Err(Cause::Broken(broken))) => {
                    assert!(self.ends_of(*broken), "{broken}: {message:?}");
                }
                Side::Ended(Err(Cause::Verdict(Verdict::Refusal(refusal))))
                    if refusal.reason == Reason::Closed =>
                {
                    // The end of its group does not wait for it, and may come between the two ends.
                    assert_eq!(refusal.claim.rank, *rank, "{message:?}");
                    assert_ne!(message.group, WORLD, "{message:?}");
                }
                Side::Ended(end) => whole.push(end.as_ref().map(|_| ())),
                Side::Uncalled | Side::Called | Side::GivenUp => {}
            }
        }
        if let [sent, received] = whole[..] {
            assert_eq!(sent, received, "{message:?}");
        }
        let is_uncalled = message.sides.contains(&Side::Uncalled);
        assert!(!(is_uncalled && whole.contains(&Ok(()))), "{message:?}");
    }
}

fn content(at: usize, count: u64) -> Vec<u8> {
    let mut rng = Rng::new(at as u64 + 1);
    (0..count)
        .flat_map(|_| rng.next_u64().to_ne_bytes())
        .collect()
}
