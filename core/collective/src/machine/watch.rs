//! Time: heartbeats out, silence noticed. Silence makes a suspect first and ends the epoch only much later.

use std::time::Duration;

use super::Machine;
use super::cause::Broken;
use super::io::Effect;
use super::node::{Leaving, Node};

impl Machine {
    /// When [`super::Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        let node = &self.node;
        if node.broken.is_some() || node.leaving == Leaving::Left {
            return Duration::MAX;
        }
        let timing = &node.config.timing;
        // In one that is not open here yet others may have begun, and nobody is asked for.
        let open = self.groups.values().filter(|group| group.is_open());
        let late = open.filter_map(|group| Some(group.waits_since()? + timing.late));
        let late = late.chain(self.openings.due(timing.late));
        late.min().unwrap_or(Duration::MAX).min(node.links_due())
    }
}

impl Node {
    /// After a gap that no schedule explains, this process was stopped, not everybody else: silence starts anew.
    pub(super) fn pass_time(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.now);
        if gap > self.config.timing.suspect / 2 {
            self.links
                .values_mut()
                .for_each(|link| link.last_frame += gap);
        }
        self.now = self.now.max(now);
    }

    pub(super) fn on_alive(&mut self, peer: usize) {
        let Some(link) = self.links.get_mut(&peer) else {
            return;
        };
        link.last_frame = self.now;
        if std::mem::take(&mut link.suspect) {
            self.out.push(Effect::Recovered { peer });
        }
    }

    /// When something about a link is due.
    pub(super) fn links_due(&self) -> Duration {
        let timing = &self.config.timing;
        let links = self.links.values().filter(|link| !link.left);
        let due = links.map(|link| {
            let silence = if link.suspect {
                timing.lost
            } else {
                timing.suspect
            };
            (link.last_frame + silence).min(link.sent + timing.heartbeat)
        });
        due.min().unwrap_or(Duration::MAX)
    }

    /// Looks after every link. Returns the peers that need a heartbeat.
    pub(super) fn watch(&mut self) -> Vec<usize> {
        // Frames received and sent since then only put it off.
        if self.broken.is_some() || self.leaving == Leaving::Left || self.now < self.due {
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
        let Some(link) = self.links.get_mut(&peer).filter(|link| !link.left) else {
            return false;
        };
        let silent = now.saturating_sub(link.last_frame);
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
