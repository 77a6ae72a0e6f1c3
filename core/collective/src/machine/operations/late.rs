//! Ranks that keep others waiting for an operation are named and never given up.

use std::time::Duration;

use super::Operations;
use crate::machine::io::{Effect, Frame, OpId};
use crate::machine::node::{Leaving, Node};
use crate::machine::operation::Operation;
use crate::machine::view::GroupView;

impl Operations {
    /// The oldest operation, and since when it waits for ranks here or below, if nobody has asked for them.
    pub(in crate::machine) fn waiting(&self) -> Option<(OpId, Duration)> {
        let mut ops = self.ops.iter();
        let (&id, oldest) = ops.find(|(_, one)| Operation::is_open(one))?;
        Some((id, oldest.waits_since()?))
    }

    /// Asks for ranks that keep others waiting.
    pub(in crate::machine) fn watch(&mut self, view: &GroupView, node: &mut Node) {
        if node.broken.is_some() || node.leaving == Leaving::Left {
            return;
        }
        let late = node.config.timing.late;
        let due = self
            .waiting()
            .filter(|(_, since)| node.now >= *since + late);
        if let Some((id, _)) = due {
            self.ask(view, node, id, None);
        }
    }

    /// Names the local ranks that are missing and asks the others to do the same: once.
    pub(super) fn ask(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        id: OpId,
        except: Option<usize>,
    ) {
        let operation = self.ops.get_mut(&id);
        let Some(missing) = operation.and_then(Operation::ask) else {
            return;
        };
        let (group, op) = (view.id, id);
        let ranks: Vec<usize> = missing.into_iter().map(|rank| view.locals[rank]).collect();
        if !ranks.is_empty() {
            node.out.push(Effect::Late { group, op, ranks });
        }
        for peer in view.tree_peers(0).filter(|&peer| Some(peer) != except) {
            view.send(node, peer, Frame::Awaiting { group, op }, None);
        }
    }
}
