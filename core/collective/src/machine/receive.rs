//! What comes from neighbours: every frame is checked once against what its sender may send now. A frame
//! that may not be is a broken protocol and ends the epoch with the sender's name; one of another epoch is dropped.

use super::Machine;
use super::cause::{Broken, ProtocolViolation};
use super::io::{Fence, Frame, GroupId, Placement, WORLD};

impl Machine {
    /// Where the payload of an `ReduceChunk` or `BroadcastChunk` goes. Only looks; the frame itself comes with
    /// [`super::Input::Frame`].
    #[must_use]
    pub fn place(&self, peer: usize, fence: Fence, frame: &Frame) -> Placement {
        if fence != self.node.config.fence || self.node.broken.is_some() {
            return Placement::Discard;
        }
        let group = frame.group().and_then(|group| self.groups.get(&group));
        group.map_or(Placement::Discard, |group| group.place(peer, frame))
    }

    pub(super) fn frame(&mut self, peer: usize, fence: Fence, frame: Frame) {
        if fence != self.node.config.fence {
            self.node.counters.stale_frames += 1;
            return;
        }
        self.node.on_alive(peer);
        if self.node.broken.is_some() {
            return;
        }
        if let Err(violation) = self.deliver(peer, frame) {
            let by = self.node.config.node;
            let broken = Broken::Protocol {
                node: peer,
                by,
                violation,
            };
            self.node.break_with(broken, None);
        }
    }

    fn deliver(&mut self, peer: usize, frame: Frame) -> Result<(), ProtocolViolation> {
        let node = &mut self.node;
        let group = match frame {
            Frame::ReduceChunk { group, .. }
            | Frame::Refuse { group, .. }
            | Frame::BroadcastChunk { group, .. }
            | Frame::Fail { group, .. }
            | Frame::ReadyToReceive { group, .. }
            | Frame::Data { group, .. }
            | Frame::ReceiveRejected { group, .. }
            | Frame::Credit { group, .. }
            | Frame::Awaiting { group, .. }
            | Frame::Watermark { group, .. } => group,
            Frame::Abort { broken } => {
                node.break_with(broken, Some(peer));
                return Ok(());
            }
            Frame::Heartbeat => return Ok(()),
            Frame::Leaving { group, ended } => {
                self.on_leave(peer, group, ended);
                return Ok(());
            }
            Frame::Open { .. } | Frame::Opened { .. } => {
                return self.note_opening(peer, &frame);
            }
        };
        let Some(group) = self.groups.get_mut(&group) else {
            // Of one that is closed here: what others sent before they knew how its operations ended.
            node.counters.late_frames += 1;
            return Ok(());
        };
        group.frame(node, peer, frame)
    }

    /// A neighbour leaves. That is nobody's loss unless an operation that it has not ended still needs it.
    fn on_leave(&mut self, peer: usize, id: GroupId, ended: u64) {
        if let Some(link) = self.node.links.get_mut(&peer)
            && id == WORLD
        {
            link.left = true;
            for group in self.groups.values_mut() {
                group.refuse_sends_to_nobody(&mut self.node);
            }
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.node_left(&mut self.node, peer, ended);
        }
    }
}
