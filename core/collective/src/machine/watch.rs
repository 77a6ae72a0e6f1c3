//! Time: heartbeats out, silence noticed, missing ranks named. Silence makes a suspect first and ends the epoch
//! only much later; a rank that is late is named and never given up.

use std::time::Duration;

use super::cause::Violation;
use super::group::Group;
use super::node::{Farewell, Node};
use super::operation::{Operation, Stage};
use super::{Broken, Effect, Frame, Machine, OpId};

impl Machine {
    /// When [`super::Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        let node = &self.node;
        if node.broken.is_some() || node.farewell == Farewell::Said {
            return Duration::MAX;
        }
        let timing = &node.config.timing;
        // In one that does not stand here yet others may have begun, and nobody is asked for.
        let standing = self.groups.values().filter(|group| group.stands);
        let late = standing.filter_map(|group| Some(group.waiting()?.1.began + timing.late));
        let late = late.chain(self.openings.due(timing.late));
        late.min().unwrap_or(Duration::MAX).min(node.links_due())
    }
}

impl Node {
    /// After a gap that no schedule explains, this process was stopped, not everybody else: silence starts anew.
    pub(super) fn pass_time(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.now);
        if gap > self.config.timing.suspect / 2 {
            self.links.values_mut().for_each(|link| link.heard += gap);
        }
        self.now = self.now.max(now);
    }

    pub(super) fn hear(&mut self, peer: usize) {
        let Some(link) = self.links.get_mut(&peer) else {
            return;
        };
        link.heard = self.now;
        if std::mem::take(&mut link.suspect) {
            self.out.push(Effect::Recovered { peer });
        }
    }

    /// When something about a link is due.
    pub(super) fn links_due(&self) -> Duration {
        let timing = &self.config.timing;
        let links = self.links.values().filter(|link| !link.bye);
        let due = links.map(|link| {
            let silence = if link.suspect {
                timing.lost
            } else {
                timing.suspect
            };
            (link.heard + silence).min(link.sent + timing.heartbeat)
        });
        due.min().unwrap_or(Duration::MAX)
    }

    /// Looks after every link. Returns the peers that should hear something.
    pub(super) fn watch(&mut self) -> Vec<usize> {
        // What is heard and sent since then only puts it off.
        if self.broken.is_some() || self.farewell == Farewell::Said || self.now < self.due {
            return Vec::new();
        }
        self.due = self.links_due();
        if self.now < self.due {
            return Vec::new();
        }
        let peers = self.peers().into_iter();
        let due: Vec<usize> = peers.filter(|&peer| self.watch_link(peer)).collect();
        let goes_on = self.broken.is_none();
        due.into_iter().filter(|_| goes_on).collect()
    }

    fn watch_link(&mut self, peer: usize) -> bool {
        let (now, timing) = (self.now, self.config.timing);
        let Some(link) = self.links.get_mut(&peer).filter(|link| !link.bye) else {
            return false;
        };
        let silent = now.saturating_sub(link.heard);
        if silent >= timing.lost {
            let by = self.config.node;
            self.break_with(Broken::NodeSilent { node: peer, by }, None);
            return false;
        }
        if silent >= timing.suspect && !link.suspect {
            link.suspect = true;
            self.out.push(Effect::Suspect { peer, silent });
        }
        now >= link.sent + timing.heartbeat
    }
}

impl Group {
    /// Asks for ranks that keep others waiting.
    pub(super) fn watch(&mut self, node: &mut Node) {
        if node.broken.is_some() || node.farewell == Farewell::Said {
            return;
        }
        let late = node.config.timing.late;
        let due = self
            .waiting()
            .filter(|(_, operation)| node.now >= operation.began + late);
        if let Some((id, _)) = due {
            self.ask(node, id, None);
        }
    }

    /// The oldest operation, if it waits for ranks here or below and nobody has asked for them.
    fn waiting(&self) -> Option<(OpId, &Operation)> {
        let oldest = self
            .ops
            .iter()
            .find(|(_, operation)| operation.stage == Stage::Open)?;
        let waits = |(_, operation): &(&OpId, &Operation)| {
            !operation.asked && operation.served.is_none() && operation.halves[0].started == 0
        };
        Some(oldest)
            .filter(waits)
            .map(|(&id, operation)| (id, operation))
    }

    /// Names the local ranks that are missing and asks the others to do the same.
    fn ask(&mut self, node: &mut Node, id: OpId, except: Option<usize>) {
        let Some(operation) = self.ops.get_mut(&id) else {
            return;
        };
        operation.asked = true;
        let (group, op) = (self.id, id);
        let ranks: Vec<usize> = operation
            .missing()
            .into_iter()
            .map(|rank| self.part.locals[rank])
            .collect();
        if !ranks.is_empty() {
            node.out.push(Effect::Late { group, op, ranks });
        }
        let peers: Vec<usize> = self.part.trees.trees[0]
            .neighbours(self.part.node)
            .collect();
        for peer in peers.into_iter().filter(|&peer| Some(peer) != except) {
            self.send(node, peer, Frame::Awaiting { group, op }, None);
        }
    }

    pub(super) fn awaiting(
        &mut self,
        node: &mut Node,
        peer: usize,
        id: OpId,
    ) -> Result<(), Violation> {
        if !self.part.trees.trees[0]
            .neighbours(self.part.node)
            .any(|neighbour| neighbour == peer)
        {
            return Err(Violation::Direction);
        }
        if !self.is_live(id)? {
            return Ok(());
        }
        self.hear_of(node, id);
        let asked = self.ops.get(&id).is_none_or(|operation| operation.asked);
        if !asked && node.broken.is_none() {
            self.ask(node, id, Some(peer));
        }
        Ok(())
    }
}
