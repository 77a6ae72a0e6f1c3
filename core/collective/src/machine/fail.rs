//! The end of an epoch: whoever learns of a loss tells all neighbours once, so everybody fails with the name of
//! what was lost and nobody hangs. Every part of the group that a loss cuts off holds a neighbour of the lost
//! node, which sees the loss itself.

use super::operation::Stage;
use super::{Broken, Effect, Farewell, Frame, Machine, OpId};

impl Machine {
    /// Ends the epoch. `from`: the neighbour who said so, who needs no answer.
    pub(super) fn break_with(&mut self, broken: Broken, from: Option<usize>) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(broken);
        self.out.push(Effect::Broken { broken });
        // Nobody listens at the other end of a link that is gone.
        let lost = match broken {
            Broken::NodeLost { node, by } if by == self.config.node => Some(node),
            Broken::NodeLost { .. }
            | Broken::NodeSilent { .. }
            | Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Protocol { .. }
            | Broken::Revoked => None,
        };
        for peer in self.peers() {
            let said = self.links.get(&peer).is_some_and(|link| link.bye.is_some());
            if Some(peer) != from && Some(peer) != lost && !said {
                self.send(peer, Frame::Abort { broken }, None);
            }
        }
        for (&op, operation) in &mut self.ops {
            operation.queued = 0;
            if operation.stage == Stage::Ended {
                continue;
            }
            operation.stage = Stage::Ended;
            for (rank, brought) in operation.brought.iter().enumerate() {
                if brought.is_some() {
                    self.out.push(Effect::End {
                        op,
                        rank,
                        outcome: Err(broken.into()),
                    });
                }
            }
        }
        for child in self
            .links
            .values_mut()
            .flat_map(|link| link.child.iter_mut().flatten())
        {
            child.backlog.clear();
            child.arrived.clear();
        }
    }

    pub(super) fn peer_lost(&mut self, peer: usize) {
        // Once we have said farewell the others close their ends.
        let expected = self.farewell == Farewell::Said;
        if !expected && self.links.get(&peer).is_some_and(|link| link.bye.is_none()) {
            self.break_with(
                Broken::NodeLost {
                    node: peer,
                    by: self.config.node,
                },
                None,
            );
        }
    }

    /// A neighbour leaves. That is nobody's loss unless an operation that it has not ended still needs it.
    pub(super) fn bye(&mut self, peer: usize, ended: u64) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.bye = Some(ended);
        }
        self.check_departures_of_open();
    }

    pub(super) fn rank_left(&mut self, rank: usize) {
        self.gone[rank] = true;
        self.check_departures_of_open();
    }

    fn check_departures_of_open(&mut self) {
        let open = self
            .ops
            .iter()
            .filter(|(_, operation)| operation.stage != Stage::Ended);
        for id in open.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.check_departures(id);
        }
    }

    /// An operation that needs somebody who has left never ends: say so instead of waiting.
    pub(super) fn check_departures(&mut self, op: OpId) {
        let by = self.config.node;
        let left = self
            .links
            .iter()
            .find(|(_, link)| link.bye.is_some_and(|ended| ended <= op));
        if let Some((&node, _)) = left {
            self.break_with(Broken::NodeLeft { node, by, op }, None);
            return;
        }
        let left = (0..self.gone.len()).find(|&rank| self.gone[rank] && self.called[rank] <= op);
        if let Some(rank) = left {
            let rank = self.global(rank);
            self.break_with(Broken::RankLeft { rank, by, op }, None);
        }
    }
}
