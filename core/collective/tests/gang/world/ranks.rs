//! The processes of a trainer: each does what its programs hold, in an order of its own between its groups, as far as its
//! window allows.

use collective::machine::GroupId;
use sim::To;

use super::{Event, MS, World};

impl World {
    /// All ranks begin.
    pub(crate) fn start(&mut self) {
        (0..self.clients.len() as u32).for_each(|rank| self.call_soon(rank));
    }

    pub(crate) fn call_soon(&mut self, rank: u32) {
        let node = self.setup.layout.node_of(rank);
        let call = Event::Call { rank };
        let most = 3 * MS;
        self.hosts.within(MS / 1000..most, To::Host(node), call);
    }

    /// A rank calls the next operation of one of its groups, asks for a group, or sends or receives a message.
    pub(crate) fn call(&mut self, rank: u32) {
        let client = &self.clients[rank as usize];
        let waits = self.held.contains(&rank);
        // Trainers start when the gang does.
        if !client.alive || client.out || waits || self.store.is_empty() {
            return;
        }
        let node = self.setup.layout.node_of(rank);
        let window = self.setup.window;
        let groups = self.groups_of(rank).into_iter();
        let may = |group: &GroupId| {
            let member = self.member(*group, rank);
            member.is_some_and(|member| member.may_go_on(window))
        };
        let next: Vec<GroupId> = groups.filter(may).collect();
        let posts_first = !self.messages.is_empty() && (next.is_empty() || self.rng.chance(1, 2));
        if posts_first && self.send_recv_next(node, rank) {
            self.call_soon(rank);
        } else if !next.is_empty() {
            let group = *self.rng.pick(&next);
            if let Some(member) = self.member_mut(group, rank) {
                member.called += usize::from(member.asked);
                member.asked = true;
            }
            self.call_soon(rank);
        }
        self.pump(node, rank);
        self.leave(node, rank);
    }
}
