//! Messages between two ranks: in any order, beside everything else that the ranks do.

use collective::machine::{
    Broken, Cause, FIRST_POST, GroupId, Input, Reason, Recovery, Verdict, WORLD,
};
use collective::{Call, DType, Numerics, OpKind};
use sim::{Rng, explore};

use crate::world::{MS, World};

/// One message, and how it ended on both sides.
#[derive(Debug)]
pub(crate) struct Message {
    group: GroupId,
    from: u32,
    to: u32,
    tag: u64,
    /// Elements that are sent, and that are expected.
    counts: [u64; 2],
    sides: [Side; 2],
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Side {
    #[default]
    Uncalled,
    Called,
    /// Nobody calls it any more.
    GivenUp,
    Ended(Result<Vec<u8>, Cause>),
}

impl World {
    /// Messages between any ranks of any groups, some of which do not fit.
    pub(crate) fn add_messages(&mut self, rng: &mut Rng) {
        for _ in 0..1 + rng.below(20) {
            let groups: Vec<GroupId> = self.lanes.keys().copied().collect();
            let group = *rng.pick(&groups);
            let ranks = self.lanes[&group].ranks.clone();
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
        self.messages.push(Message {
            group,
            from,
            to,
            tag,
            counts,
            sides: Default::default(),
        });
    }

    /// A rank calls the next message that it may. False when there is none.
    pub(crate) fn post_next(&mut self, node: usize, rank: u32, local: usize) -> bool {
        let machine = self.nodes[node].machine.as_ref().unwrap();
        let may = |at: usize| {
            let message = &self.messages[at];
            let stands = self.has(message.group, rank)?.stands;
            let closes = self.has(message.group, rank)?;
            let is_closing = closes.called >= closes.program.len() && message.group != WORLD;
            let side = usize::from(message.to == rank);
            let is_its = [message.from, message.to][side] == rank;
            let may = stands && machine.may_post(message.group) && !is_closing;
            (is_its && message.sides[side] == Side::Uncalled && may).then_some((at, side))
        };
        let Some((at, side)) = (0..self.messages.len()).find_map(may) else {
            return false;
        };
        let Message {
            group,
            from,
            to,
            tag,
            counts,
            ..
        } = self.messages[at];
        self.messages[at].sides[side] = Side::Called;
        let ranks = &self.lanes[&group].ranks;
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
        let op = FIRST_POST + 2 * at as u64 + side as u64;
        let rank = local;
        if side == 0 {
            let bytes = content(at, counts[0]);
            let ready = bytes.len() as u64;
            let memory = &mut self.nodes[node].memory;
            memory.add_input((group, op), rank, bytes, ready);
        } else {
            self.add_own(node, (group, op), rank, 8 * counts[1]);
        }
        let refused = None;
        let post = Input::Post {
            group,
            rank,
            op,
            call,
            refused,
        };
        self.handle(node, post);
        true
    }

    pub(crate) fn message_ended(
        &mut self,
        node: usize,
        op: u64,
        rank: usize,
        outcome: Result<u32, Cause>,
    ) {
        let at = (op - FIRST_POST) as usize;
        let (message, side) = (&self.messages[at / 2], at % 2);
        let outcome = outcome.map(|_| {
            if side == 0 {
                return Vec::new();
            }
            self.own(node, (message.group, op), rank, 8 * message.counts[1])
        });
        let side = &mut self.messages[at / 2].sides[side];
        assert_eq!(*side, Side::Called, "told once");
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
        let ranks = self.layout.ranks(node);
        for message in &mut self.messages {
            for (rank, side) in [message.from, message.to].iter().zip(&mut message.sides) {
                if ranks.contains(rank) && !matches!(side, Side::Ended(_)) {
                    *side = Side::GivenUp;
                }
            }
        }
    }

    fn is_here(&self, rank: u32) -> bool {
        self.nodes[self.node_of(rank)].machine.is_some()
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
                assert!(*bytes == content(at, message.counts[0]), "message {at}");
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

    fn check_ends(&self, message: &Message) {
        let mut whole = Vec::new();
        for (rank, side) in [message.from, message.to].iter().zip(&message.sides) {
            match side {
                Side::Ended(Err(Cause::Broken(broken))) => {
                    assert!(self.ends_of(*broken), "{broken}: {message:?}");
                }
                Side::Ended(Err(Cause::Verdict(Verdict::Refusal(refusal))))
                    if refusal.reason == Reason::Closed =>
                {
                    // The end of its group does not wait for it: who was told before was told something else.
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

fn gang(rng: &mut Rng, nodes: usize) -> World {
    let ranks: Vec<u32> = (0..nodes).map(|_| rng.range(1..4) as u32).collect();
    let split = rng.below(nodes + 1);
    let zones: Vec<u64> = (0..nodes).map(|node| u64::from(node >= split)).collect();
    let mut world = World::new(rng, &ranks, &zones, Recovery::default());
    let everybody: Vec<u32> = (0..world.layout.whole()).collect();
    world.add(WORLD, &everybody, true, &[]);
    world
}

#[test]
fn any_messages_arrive_in_their_order_over_any_ways() {
    explore(1000, &[], |rng| {
        let nodes = 1 + rng.below(9);
        let mut world = gang(rng, nodes);
        for _ in 0..3 {
            world.add_messages(rng);
        }
        world.start();
        world.run(World::all_called_and_ended);
        world.check_messages();
        for message in &world.messages {
            let fits = message.counts[0] == message.counts[1];
            for side in &message.sides {
                let Side::Ended(outcome) = side else {
                    panic!("{message:?}");
                };
                assert_eq!(outcome.is_ok(), fits, "{message:?}");
            }
        }
    });
}

impl World {
    fn all_called_and_ended(&self) -> bool {
        let mut sides = self.messages.iter().flat_map(|message| &message.sides);
        sides.all(|side| matches!(side, Side::Ended(_)))
    }
}

#[test]
fn a_message_for_which_nobody_calls_keeps_no_operation_waiting_and_ends_with_its_group() {
    explore(200, &[], |rng| {
        let nodes = 1 + rng.below(5);
        let mut world = gang(rng, nodes);
        let everybody = world.lanes[&WORLD].ranks.clone();
        if everybody.len() < 2 {
            return;
        }
        let calls = [Call::barrier(), Call::close()];
        world.add(7, &everybody, true, &calls);
        let (from, to) = (everybody[0], everybody[everybody.len() - 1]);
        world.add_message(7, (from, to), 0, [300, 300]);
        let missing = rng.below(2);
        world.messages[0].sides[missing] = Side::GivenUp;
        world.start();
        world
            .run(|world| world.all_ended() && world.lanes[&7].members.iter().all(|one| one.closed));
        let side = &world.messages[0].sides[1 - missing];
        if let Side::Ended(Err(Cause::Verdict(Verdict::Refusal(refusal)))) = side {
            assert_eq!(refusal.reason, Reason::Closed);
        } else {
            assert_eq!(*side, Side::Uncalled, "it has closed the group before");
        }
    });
}

// COLL-1: who waits for a message of a node that is lost is told.
#[test]
fn a_lost_node_ends_every_message() {
    explore(300, &[], |rng| {
        let nodes = 2 + rng.below(5);
        let mut world = gang(rng, nodes);
        world.add_messages(rng);
        world.add_messages(rng);
        world.start();
        let at = world.queue.now() + MS * rng.range(0..20) as u32;
        world.run_until(at);
        let lost = rng.below(nodes);
        world.lose(lost, false);
        world.run(World::all_ended);
        let end = world.queue.now() + 1000 * MS;
        world.run_until(end);
        world.run(World::messages_ended);
        world.check_messages();
    });
}

#[test]
fn a_rank_that_leaves_is_named_to_who_waits_for_its_message() {
    explore(100, &[], |rng| {
        let nodes = 2 + rng.below(4);
        let mut world = gang(rng, nodes);
        let from = *rng.pick(&world.lanes[&WORLD].ranks);
        let others: Vec<u32> = world.lanes[&WORLD]
            .ranks
            .iter()
            .copied()
            .filter(|rank| *rank != from)
            .collect();
        let to = *rng.pick(&others);
        world.add_message(WORLD, (from, to), 0, [5, 5]);
        world.messages[0].sides[0] = Side::GivenUp;
        world.start();
        let (node, rank) = (world.node_of(from), world.local(from));
        world.later(20 * MS, node, Input::RankLeft { rank });
        world.run(|world| matches!(world.messages[0].sides[1], Side::Ended(_)));
        let Side::Ended(Err(Cause::Broken(Broken::RankLeft { rank, .. }))) =
            world.messages[0].sides[1]
        else {
            panic!("{:?}", world.messages[0]);
        };
        assert_eq!(rank, from);
    });
}
