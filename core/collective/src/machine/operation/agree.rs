//! Agreement before data: every part that goes up brings its sender's call, and a node combines it only with an
//! equal one. A disagreement, or a call that cannot be carried out, goes up tree 0 in place of the part, once
//! everybody below has called; the root of tree 0 hands the verdict down, so all ranks fail with the same names and
//! the group goes on.

use super::{Context, Operation, Stage};
use crate::machine::cause::{CallRefusal, Claim, Mismatch, Verdict};
use crate::machine::io::Frame;
use crate::machine::traffic::{Traffic, VERDICTS};
use crate::machine::view::GroupView;

impl Operation {
    /// Decides whether this node's subtree can carry it out, when all of it has called it. At the root it has failed
    /// with the verdict that is returned.
    pub(in crate::machine) fn judge(&mut self, at: &mut Context<'_>) -> Option<Verdict> {
        let verdict = self.verdict(at.view, at.traffic);
        let late = || self.late_verdict(at.traffic);
        let (verdict, is_late) = match verdict {
            Some(verdict) => (verdict, false),
            None => (late()?, true),
        };
        let Some(parent) = at.view.parent(VERDICTS) else {
            return Some(verdict);
        };
        if is_late {
            self.exchange.is_refused = true;
        } else {
            self.stage = Stage::Refused;
        }
        let (group, op) = (at.view.id, self.id);
        let frame = Frame::Refuse { group, op, verdict };
        at.view.send(at.node, parent, frame, None);
        None
    }

    /// That two ranks do not agree about what one sends the other is found after all have agreed about the call. No node
    /// ends the operation then: two of them never say that everything is where it belongs.
    fn late_verdict(&self, traffic: &Traffic) -> Option<Verdict> {
        let exchanges = self.call().is_some_and(|call| call.kind.exchanges());
        let is_late = self.is_open() && exchanges && self.halves[VERDICTS].started > 0;
        if !is_late || self.exchange.is_refused {
            return None;
        }
        self.exchange
            .mismatch
            .or_else(|| traffic.first_refused(self.id))
    }

    /// The first reason to fail in the order children, own ranks, own rank against child: it does not depend on
    /// who came first.
    fn verdict(&self, view: &GroupView, traffic: &Traffic) -> Option<Verdict> {
        let is_due = self.is_open() && !self.is_served() && self.halves[VERDICTS].started == 0;
        if !is_due || !self.is_complete_here() {
            return None;
        }
        let rank = view.global(0);
        let call = self.brought.first().copied().flatten()?.call;
        let mut refused = None;
        let mut differs = None;
        for &peer in view.children(VERDICTS) {
            if let Some(verdict) = traffic.refused(peer, self.id) {
                refused = refused.or(Some(verdict));
                continue;
            }
            // Chunk 0 is the first of tree 0 for every call.
            let arrival = traffic.arrival(peer, VERDICTS, self.id, 0)?;
            if arrival.call != call {
                let other = Claim {
                    rank: arrival.rank,
                    call: arrival.call,
                };
                let one = Claim { rank, call };
                differs = differs.or(Some(Mismatch { one, other }.into()));
            }
        }
        let own = || self.own_verdict(view).or(self.exchange.mismatch);
        refused.or_else(own).or(differs)
    }

    /// A local rank's call that cannot be carried out, or two that differ.
    pub(super) fn own_verdict(&self, view: &GroupView) -> Option<Verdict> {
        let claims = || {
            self.brought.iter().enumerate().filter_map(|(rank, b)| {
                let rank = view.global(rank);
                b.map(|b| (Claim { rank, call: b.call }, b.refused))
            })
        };
        let refused = claims().find_map(|(claim, refused)| {
            let reason = refused?;
            Some(CallRefusal { claim, reason }.into())
        });
        refused.or_else(|| {
            let (one, _) = claims().next()?;
            let (other, _) = claims().find(|(other, _)| other.call != one.call)?;
            Some(Mismatch { one, other }.into())
        })
    }
}
