//! The engine's far side: links to neighbours, and carrying out what the machine asks for.

use collective::OpKind;
use collective::machine::{
    Cause, Effect, Frame, GroupId, Input, OpId, Placement, Region, Ticket, Verdict,
};
use collective::session::{Called, Lane};
use hfreduce_client::entry::FailureKind;
use link::block::Reading;
use link::transport::{self, Outgoing, PayloadTarget, Received};
use tracing::error;

use super::Engine;
use super::links::Flushed;
use crate::frame::FencedFrame;
use crate::memory::OutOfBounds;
use crate::session::PendingCall;
use crate::workers::{How, Task, Work, WorkerPanicked};

/// Effects carried out before sockets and rings are looked at again: 16 chunks, some milliseconds without workers.
const EFFECT_BUDGET: usize = 16;
/// Reads from one link before the others get their turn: 32 reads of up to a chunk each.
const READ_BUDGET: usize = 32;

impl Engine {
    /// A link's socket has something to say.
    pub(super) fn wake_link(&mut self, peer: usize) {
        match self.links.wake(peer) {
            Ok(()) => {
                self.read_link(peer);
            }
            Err(error) => self.lose_link(peer, &error),
        }
    }

    /// Reads the links whose sockets do not signal that something has arrived. Returns whether something had.
    pub(super) fn look_at_links(&mut self) -> bool {
        let (mut busy, mut next) = (false, 0);
        while let Some(peer) = self.links.polled_from(next) {
            busy |= self.read_link(peer);
            next = peer + 1;
        }
        busy
    }

    /// Takes what has come over a link, then sends. Says whether something had come.
    fn read_link(&mut self, peer: usize) -> bool {
        let mut any = false;
        for _ in 0..READ_BUDGET {
            let (machine, memory) = (self.driver.machine(), &self.memory);
            let mut place =
                |header: &FencedFrame| match machine.place(peer, header.fence, &header.frame) {
                    Placement::Discard => Ok(PayloadTarget::Discard),
                    Placement::Into(region) => {
                        let into = memory.write(&region).map_err(|error| error.to_string())?;
                        Ok(PayloadTarget::Into(into))
                    }
                };
            match self.links.receive(peer, &mut place) {
                Ok(Received::Nothing) => break,
                Ok(Received::Part) => {
                    any = true;
                    self.receive_part(peer);
                }
                Ok(Received::Frame(header, payload)) => {
                    any = true;
                    self.received(peer, header, payload);
                }
                Err(error) => {
                    self.lose_link(peer, &error);
                    return any;
                }
            }
        }
        self.flush(peer);
        any
    }

    /// A frame has arrived. Its payload lies where it belongs, or in the memory of the link.
    fn received(&mut self, peer: usize, header: FencedFrame, payload: Option<Reading>) {
        let FencedFrame { fence, frame } = header;
        let Some(payload) = payload else {
            return self.take_frame(peer, header);
        };
        let Placement::Into(region) = self.driver.machine().place(peer, fence, &frame) else {
            return self.take_frame(peer, header);
        };
        if let Frame::ReduceChunk {
            group, tree, slot, ..
        } = frame
        {
            self.memory.borrow((group, peer, tree), slot, payload);
            self.take_frame(peer, header);
        } else if let Err(error) = self.copy_in(peer, header, (payload, region)) {
            self.lose_link(peer, &error);
        }
    }

    /// Hands in a frame whose payload is in place.
    pub(super) fn take_frame(&mut self, peer: usize, FencedFrame { fence, frame }: FencedFrame) {
        self.note_arrival(peer, &frame);
        self.handle(Input::Frame { peer, fence, frame });
    }

    /// Part of a frame has come.
    pub(super) fn receive_part(&mut self, peer: usize) {
        let now = self.now();
        self.driver.on_alive(
            now,
            peer,
            &self.members,
            self.telemetry.flight_recorder_mut(),
        );
    }

    fn flush(&mut self, peer: usize) {
        let Flushed { left, error } = self.links.flush(peer, &self.poller);
        self.done(left);
        if let Some(error) = error {
            self.stop_sending(peer, &error);
        }
    }

    fn stop_sending(&mut self, peer: usize, error: &transport::Error) {
        let left = self.links.stop_sending(peer, error, &self.members);
        self.done(left);
    }

    pub(super) fn drop_link(&mut self, peer: usize) {
        let left = self
            .links
            .close(peer, &self.poller, &self.members, self.telemetry.metrics());
        self.done(left);
    }

    pub(super) fn lose_link(&mut self, peer: usize, error: &transport::Error) {
        if self.links.has(peer) {
            self.links
                .note_lost(peer, error, &self.members, self.telemetry.metrics());
            self.drop_link(peer);
            // The machine learns of a loss after all that came before.
            if !self.inbound.delays_loss(peer) {
                self.handle(Input::PeerLost { peer });
            }
        }
    }

    fn done(&mut self, tokens: Vec<u64>) {
        for token in tokens {
            let ticket = Ticket(token);
            self.handle(Input::Done { ticket });
        }
    }

    /// Carries out some effects. Says whether there were any.
    pub(super) fn carry_out(&mut self) -> bool {
        let mut any = self.copy_more();
        for _ in 0..EFFECT_BUDGET {
            let Some((effect, yields)) = self.next_effect() else {
                break;
            };
            any = true;
            if let Err(error) = self.effect(effect) {
                // A bug of ours: nobody may be given bytes that are not the result.
                error!(%error, "the machine named memory that is not there; ending the epoch");
                self.handle(Input::Revoke);
            }
            if yields {
                break;
            }
        }
        self.flush_pushed();
        any
    }

    /// What others wait for has left before this node computes.
    fn next_effect(&mut self) -> Option<(Effect, bool)> {
        if self.driver.has_said_all() {
            self.flush_pushed();
            if self.workers.are_busy() {
                return None; // The rest is to be computed, and waits where what is urgent overtakes it.
            }
        }
        self.driver.next()
    }

    /// Whether something is to be carried out that need not wait for a worker.
    pub(super) fn has_effects(&self) -> bool {
        let to_compute = !self.driver.is_done() || self.inbound.are_waiting();
        !self.driver.has_said_all() || to_compute && !self.workers.are_busy()
    }

    /// Sends what was queued: frames that follow each other leave together.
    fn flush_pushed(&mut self) {
        while let Some(peer) = self.links.next_pushed() {
            self.flush(peer);
        }
    }

    fn effect(&mut self, effect: Effect) -> Result<(), OutOfBounds> {
        match effect {
            Effect::Send {
                peer,
                frame,
                payload,
            } => self.send(peer, &frame, payload)?,
            Effect::Reduce {
                ticket,
                arithmetic,
                sources,
                partials,
                destination,
            } => {
                let how = How::Combine(arithmetic, sources.len());
                let mut from = sources;
                from.extend(partials);
                self.compute(ticket, how, &from, &destination)?;
            }
            Effect::Copy {
                ticket,
                source,
                destination,
            } => {
                if source.bytes != destination.bytes {
                    return Err(OutOfBounds::from(source));
                }
                self.compute(ticket, How::Copy, &[source], &destination)?;
            }
            Effect::End {
                group,
                op,
                rank,
                outcome,
            } => self.end((group, op), rank, outcome),
            Effect::FreeInputs { group, op } => self.memory.forget_inputs((group, op)),
            Effect::Release { group, op } => self.memory.release((group, op)),
            Effect::Begin { group } => self.begin_group(group),
            Effect::Connect { peer } => self.connect(peer),
            Effect::Opened {
                group,
                rank,
                outcome,
            } => self.opened(group, rank, outcome),
            Effect::Closed { group } => self.forget_group(group),
            Effect::Suspect { peer, silent } => {
                self.telemetry.suspect(peer, silent, &self.members);
            }
            Effect::Recovered { peer } => self.telemetry.recovered(peer, &self.members),
            Effect::Late { group, op, ranks } => {
                for rank in ranks {
                    let global = self.local.global(rank);
                    self.telemetry.late((group, op), rank, global);
                }
            }
            Effect::Broken { broken } => {
                let (ops, own) = (self.ops(), self.driver.config().node);
                self.telemetry.broken(broken, own, &ops, &self.members);
            }
            // What it has said to its neighbours leaves first.
            Effect::Stopped { report } => self.control.begin_stop(report),
        }
        Ok(())
    }

    /// Has a worker write to the destination, or does it here.
    fn compute(
        &mut self,
        ticket: Ticket,
        how: How,
        from: &[Region],
        destination: &Region,
    ) -> Result<(), OutOfBounds> {
        let into = self.memory.write(destination)?;
        let read = |source| self.memory.read(source);
        let readings = from.iter().map(read).collect::<Result<_, _>>()?;
        self.telemetry.metrics().moved(from, destination);
        let work = Work {
            into,
            from: readings,
            how,
        };
        if let Some(own) = self.workers.hand_over(Task::Effect(ticket), work) {
            own.run();
            self.handle(Input::Done { ticket });
        }
        Ok(())
    }

    /// Takes back what workers have done. Says whether there was any.
    pub(super) fn take_finished(&mut self) -> Result<bool, WorkerPanicked> {
        let finished = self.workers.take_finished()?;
        let any = !finished.is_empty();
        for task in finished {
            match task {
                Task::Effect(ticket) => self.handle(Input::Done { ticket }),
                Task::Inbound(number) => self.copied(number),
            }
        }
        Ok(any)
    }

    fn send(
        &mut self,
        peer: usize,
        frame: &Frame,
        payload: Option<(Ticket, Region)>,
    ) -> Result<(), OutOfBounds> {
        if let Frame::Credit { group, tree, slot } = *frame {
            self.memory.give_back((group, peer, tree), slot);
        }
        let header = FencedFrame {
            fence: self.driver.config().fence,
            frame: *frame,
        };
        let token = payload.map(|(ticket, _)| ticket.0);
        let outgoing = |(ticket, region): (Ticket, Region)| -> Result<Outgoing, OutOfBounds> {
            let bytes = self.memory.read(&region)?;
            let token = ticket.0;
            Ok(Outgoing { token, bytes })
        };
        let payload = payload.map(outgoing).transpose()?;
        match self.links.push(peer, &header, payload) {
            Ok(true) => {}
            // The peer is gone: what was meant for it has left.
            Ok(false) => self.done(token.into_iter().collect()),
            Err(error) => {
                self.stop_sending(peer, &error);
                self.done(token.into_iter().collect());
            }
        }
        Ok(())
    }

    fn end(&mut self, (group, op): (GroupId, OpId), rank: usize, outcome: Result<u32, Cause>) {
        // Others have farther to go.
        self.flush_pushed();
        let is_verdict = matches!(outcome, Err(Cause::Verdict(_)));
        if is_verdict && self.telemetry.records_verdict(self.now()) {
            self.telemetry.write_recording(&self.ops());
        }
        let outcome = match outcome {
            Ok(epoch) => Ok(epoch),
            Err(cause) => Err((
                cause,
                self.members.text(&cause) + &self.lost_for((group, rank), &cause),
            )),
        };
        let succeeded = outcome.is_ok();
        let called = self.local.ranks_mut().end(group, op, rank, succeeded);
        let lane = self.local.ranks().lane(group, rank);
        let bytes = lane.zip(called.as_ref());
        let bytes = bytes.map_or(0, |(lane, called)| result_bytes(called, lane));
        let (Some(session), Some(Called { call, kept, .. })) = (self.local.session(rank), called)
        else {
            return;
        };
        let sent = match outcome {
            Err((cause, text)) => {
                self.telemetry.metrics().failed(&call);
                let kind = match cause {
                    Cause::Verdict(Verdict::Mismatch(_)) => FailureKind::Mismatch,
                    Cause::Verdict(Verdict::Refusal(_)) => FailureKind::Refused,
                    Cause::Broken(_) => FailureKind::Broken,
                };
                session.fail(kept.ticket, kind, text)
            }
            Ok(epoch) => {
                self.telemetry
                    .metrics()
                    .succeeded(&call, kept.since.elapsed());
                let own = (kept.own_bytes > 0).then_some(rank);
                let result = self.memory.hold((group, op), own);
                let result = result.filter(|_| bytes > 0).map(|result| (result, bytes));
                session.succeed((group, op), epoch, &kept, result)
            }
        };
        if let Err(error) = sent {
            self.lose_session(rank, &error);
        }
    }
}

/// Bytes of a result that this process is entitled to.
fn result_bytes(called: &Called<PendingCall>, lane: &Lane<PendingCall>) -> u64 {
    if called.kept.own_bytes > 0 {
        return called.kept.own_bytes;
    }
    if let OpKind::Reduce { root, .. } = called.call.kind
        && root != lane.rank()
    {
        return 0;
    }
    called.call.result_bytes(lane.size())
}
