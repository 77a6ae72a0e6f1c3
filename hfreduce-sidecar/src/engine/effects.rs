//! The engine's far side: links to neighbours, and carrying out what the machine asks for.

use collective::kernels::{self, Store};
use collective::machine::{Broken, Cause, Effect, Input, OpId, Region, Ticket, Verdict};
use rustix::event::epoll;
use tracing::{error, info, warn};
use wire::attach::Standing;
use wire::entry::FailureKind;
use wire::rendezvous::SuspectReason;

use super::{Engine, LINK};
use crate::codec;
use crate::link::Received;
use crate::memory::OutOfBounds;
use crate::rendezvous::Report;
use crate::session::Called;

/// Effects carried out before sockets and rings are looked at again: 16 chunks, some milliseconds.
const EFFECT_BUDGET: usize = 16;
/// Reads from one link before the others get their turn: 32 reads of up to a chunk each.
const READ_BUDGET: usize = 32;

impl Engine {
    pub(super) fn read_link(&mut self, peer: usize) {
        for _ in 0..READ_BUDGET {
            let Self {
                machine,
                memory,
                links,
                ..
            } = self;
            let Some(link) = links.get_mut(&peer) else {
                return;
            };
            let received = link.receive(memory, |fence, frame| machine.place(peer, fence, frame));
            match received {
                Ok(Received::Nothing) => break,
                Ok(Received::Part) => {}
                Ok(Received::Frame(fence, frame)) => {
                    self.handle(Input::Frame { peer, fence, frame });
                }
                Err(error) => {
                    self.lose_link(peer, &error);
                    return;
                }
            }
        }
        self.flush(peer);
    }

    fn flush(&mut self, peer: usize) {
        let Some(link) = self.links.get_mut(&peer) else {
            return;
        };
        let was_blocked = link.blocked;
        let mut left = Vec::new();
        let flushed = link.flush(&self.memory, &mut left);
        let blocked = link.blocked;
        if blocked != was_blocked {
            let flags = if blocked {
                epoll::EventFlags::IN | epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::IN
            };
            let data = epoll::EventData::new_u64(LINK | peer as u64);
            epoll::modify(&self.poll, &*link, data, flags).ok();
        }
        self.done(left);
        if let Err(error) = flushed {
            self.stop_sending(peer, &error);
        }
    }

    /// Nothing can be sent over a link any more. It is lost when all that came over it has been read: a peer
    /// that is gone has often said why before.
    fn stop_sending(&mut self, peer: usize, error: &crate::link::Error) {
        info!(node = peer, name = self.name(peer), %error, "link takes nothing more");
        let mut left = Vec::new();
        if let Some(link) = self.links.get_mut(&peer) {
            link.abandon(&mut left);
        }
        self.done(left);
    }

    fn lose_link(&mut self, peer: usize, error: &crate::link::Error) {
        let Some(mut link) = self.links.remove(&peer) else {
            return;
        };
        info!(node = peer, name = self.name(peer), %error, "link ended");
        epoll::delete(&self.poll, &link).ok();
        let mut left = Vec::new();
        link.abandon(&mut left);
        self.metrics.peers.set(self.links.len() as i64);
        self.done(left);
        self.handle(Input::PeerLost { peer });
    }

    pub(super) fn count_traffic(&mut self) {
        for link in self.links.values_mut() {
            let (sent, received) = std::mem::take(&mut link.traffic);
            self.metrics.sent_bytes.inc_by(sent);
            self.metrics.received_bytes.inc_by(received);
        }
    }

    fn done(&mut self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.handle(Input::Done { ticket });
        }
    }

    /// Carries out some effects. Says whether there were any.
    pub(super) fn carry_out(&mut self) -> bool {
        let mut any = false;
        for _ in 0..EFFECT_BUDGET {
            let Some(effect) = self.effects.pop_front() else {
                break;
            };
            any = true;
            if let Err(error) = self.effect(effect) {
                // A bug of ours: nobody may be given bytes that are not the result.
                error!(%error, "the machine named memory that is not there; ending the epoch");
                self.handle(Input::Revoke);
            }
        }
        any
    }

    fn effect(&mut self, effect: Effect) -> Result<(), OutOfBounds> {
        match effect {
            Effect::Send {
                peer,
                frame,
                payload,
            } => {
                let fence = self.config.fence;
                match self
                    .links
                    .get_mut(&peer)
                    .filter(|link| link.can_send())
                    .map(|link| link.push(fence, &frame, payload))
                {
                    Some(Ok(())) => self.flush(peer),
                    Some(Err(error)) => {
                        self.stop_sending(peer, &error);
                        self.done(payload.into_iter().map(|(ticket, _)| ticket).collect());
                    }
                    // The peer is gone: what was meant for it has left.
                    None => self.done(payload.into_iter().map(|(ticket, _)| ticket).collect()),
                }
            }
            Effect::Reduce {
                ticket,
                op,
                dtype,
                scale,
                sources,
                destination,
            } => {
                self.memory.write(&destination, |into, memory| {
                    let sources: Vec<&[u8]> = sources
                        .iter()
                        .map(|source| memory.read(source))
                        .collect::<Result<_, _>>()?;
                    kernels::reduce(dtype, op, into, &sources, scale, Store::Cached);
                    Ok::<(), OutOfBounds>(())
                })??;
                self.moved(&destination, sources.len());
                self.handle(Input::Done { ticket });
            }
            Effect::Copy {
                ticket,
                source,
                destination,
            } => {
                self.memory.write(&destination, |into, memory| {
                    let from = memory.read(&source)?;
                    if from.len() != into.len() {
                        return Err(OutOfBounds::from(source));
                    }
                    into.copy_from_slice(from);
                    Ok(())
                })??;
                self.moved(&destination, 1);
                self.handle(Input::Done { ticket });
            }
            Effect::End { op, rank, outcome } => self.end(op, rank, outcome),
            Effect::Release { op } => {
                self.memory.forget_inputs(op);
                self.uses.entry(op).or_default().released = true;
                self.forget_if_unused(op);
            }
            Effect::Suspect { peer, silent } => {
                let name = self.name(peer).to_owned();
                self.metrics.suspects.inc();
                self.metrics.suspect(peer, &name, true);
                warn!(
                    node = peer,
                    name,
                    ?silent,
                    "suspect: nothing is heard from it"
                );
                self.suspect(
                    peer,
                    SuspectReason::Frozen,
                    format!("node {peer} ({name}) has been silent for {silent:?}"),
                );
            }
            Effect::Recovered { peer } => {
                info!(
                    node = peer,
                    name = self.name(peer),
                    "a suspect was heard again"
                );
                self.metrics.suspect(peer, self.name(peer), false);
                self.reporter.send(Report::Recovered { node: peer as u32 });
            }
            Effect::Late { op, ranks } => {
                for rank in ranks {
                    let global = self.standing.rank + rank as u32;
                    warn!(
                        operation = op,
                        rank = global,
                        "others wait for this rank to call"
                    );
                    self.metrics
                        .late
                        .with_label_values(&[&rank.to_string()])
                        .inc();
                }
            }
            Effect::Broken { broken } => self.broken(broken),
        }
        Ok(())
    }

    fn moved(&self, destination: &Region, sources: usize) {
        self.metrics
            .reduced_bytes
            .inc_by(destination.bytes * (sources as u64 + 1));
    }

    fn end(&mut self, op: OpId, rank: usize, outcome: Result<(), Cause>) {
        let text = outcome.err().map(|cause| self.text(&cause));
        let Some(session) = self.sessions.get_mut(&rank) else {
            return;
        };
        let Some(called) = session.ended(op) else {
            return;
        };
        let told = match (outcome, text) {
            (Err(cause), Some(text)) => {
                self.metrics.failed(&called.call);
                let kind = match cause {
                    Cause::Verdict(Verdict::Mismatch(_)) => FailureKind::Mismatch,
                    Cause::Verdict(Verdict::Refusal(_)) => FailureKind::Refused,
                    Cause::Broken(_) => FailureKind::Broken,
                };
                session.fail(called.ticket, kind, text)
            }
            (Ok(()), _) | (Err(_), None) => {
                self.metrics.succeeded(&called.call, called.since.elapsed());
                let bytes = result_bytes(&called, session.standing());
                let result = self.memory.result(op).filter(|_| bytes > 0);
                self.uses.entry(op).or_default().holders += 1;
                session.succeed(op, &called, result.map(|result| (result, bytes)))
            }
        };
        if let Err(error) = told {
            self.lose_session(rank, &error);
        }
    }

    fn broken(&mut self, broken: Broken) {
        let detail = self.text(&Cause::Broken(broken));
        error!(cause = detail, "the epoch is over");
        let reason = match broken {
            Broken::NodeLost { .. } => SuspectReason::Dead,
            Broken::NodeSilent { .. } => SuspectReason::Silent,
            // The operator hears of these from the pods themselves.
            Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Protocol { .. }
            | Broken::Revoked => return,
        };
        if let Some(node) = broken.node().filter(|node| *node != self.config.node) {
            self.suspect(node, reason, detail);
        }
    }

    fn suspect(&self, node: usize, reason: SuspectReason, detail: String) {
        let node = node as u32;
        self.reporter.send(Report::Suspect {
            node,
            reason,
            detail,
        });
    }
}

/// Bytes of a result that this process is entitled to.
fn result_bytes(called: &Called, standing: Standing) -> u64 {
    let only_root = called.call.kind == wire::OpKind::Reduce;
    if only_root && called.call.root != standing.rank {
        return 0;
    }
    codec::call_from_wire(&called.call).result_bytes(standing.world)
}
