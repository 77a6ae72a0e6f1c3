//! The flight recorder: the last things that were called, ended or lost. It costs a copy each, and is read when
//! somebody asks or something fails.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use collective::Call;
use collective::machine::{Effect, Frame, Input, OpId};

/// Events that are kept: some seconds of a busy trainer, and what led to the end of one that hangs.
const LENGTH: usize = 512;

/// Something that happened.
#[derive(Clone, Debug)]
enum Event {
    Called { rank: usize, call: Call },
    Refused { rank: usize, call: Call },
    Ended { op: OpId, rank: usize, fine: bool },
    Late { op: OpId, ranks: Vec<usize> },
    Said { node: usize, frame: Frame },
    LinkLost { node: usize },
    RankLost { rank: usize },
    RankLeft { rank: usize },
    Silent { node: usize, silent: Duration },
    Heard { node: usize },
    Stop,
    Leave,
    Broken { why: String },
    Entered { epoch: u32, members: Vec<u32> },
}

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(super) struct Journal(VecDeque<(Duration, Event)>);

impl Journal {
    fn note(&mut self, now: Duration, event: Event) {
        if self.0.len() >= LENGTH {
            self.0.pop_front();
        }
        self.0.push_back((now, event));
    }

    /// Something happened to the machine. Data and time are not worth a note. `node`: a member's rank.
    pub(super) fn take(&mut self, now: Duration, input: &Input, node: impl Fn(usize) -> usize) {
        let event = match *input {
            Input::Submit { rank, call, .. } => Event::Called { rank, call },
            Input::Refuse { rank, call, .. } => Event::Refused { rank, call },
            Input::Frame { peer, frame, .. } => match frame {
                Frame::Refuse { .. }
                | Frame::Fail { .. }
                | Frame::Awaiting { .. }
                | Frame::Abort { .. }
                | Frame::Bye { .. } => Event::Said {
                    node: node(peer),
                    frame,
                },
                Frame::Up { .. }
                | Frame::Down { .. }
                | Frame::Credit { .. }
                | Frame::Mark { .. }
                | Frame::Heartbeat => return,
            },
            Input::PeerLost { peer } => Event::LinkLost { node: node(peer) },
            Input::RankLost { rank } => Event::RankLost { rank },
            Input::RankLeft { rank } => Event::RankLeft { rank },
            Input::Revoke => Event::Stop,
            Input::Leave => Event::Leave,
            Input::Ready { .. } | Input::Done { .. } | Input::Tick => return,
        };
        self.note(now, event);
    }

    /// The machine asks for something.
    pub(super) fn give(&mut self, now: Duration, effect: &Effect, node: impl Fn(usize) -> usize) {
        let event = match effect {
            Effect::End { op, rank, outcome } => Event::Ended {
                op: *op,
                rank: *rank,
                fine: outcome.is_ok(),
            },
            Effect::Late { op, ranks } => Event::Late {
                op: *op,
                ranks: ranks.clone(),
            },
            Effect::Suspect { peer, silent } => Event::Silent {
                node: node(*peer),
                silent: *silent,
            },
            Effect::Recovered { peer } => Event::Heard { node: node(*peer) },
            Effect::Broken { broken } => Event::Broken {
                why: broken.renumbered(node).to_string(),
            },
            Effect::Send { .. }
            | Effect::Reduce { .. }
            | Effect::Copy { .. }
            | Effect::FreeInputs { .. }
            | Effect::Release { .. }
            | Effect::Stopped { .. } => return,
        };
        self.note(now, event);
    }

    /// A new epoch begins.
    pub(super) fn enter(&mut self, now: Duration, epoch: u32, members: &[u32]) {
        let members = members.to_vec();
        self.note(now, Event::Entered { epoch, members });
    }

    /// Everything, a line each, with the seconds before `now`.
    pub(super) fn lines(&self, now: Duration) -> Vec<String> {
        let line = |(at, event): &(Duration, Event)| {
            let before = now.saturating_sub(*at).as_secs_f64();
            format!("-{before:.6} s: {event}")
        };
        self.0.iter().map(line).collect()
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Called { rank, call } => write!(f, "local rank {rank} called {call}"),
            Self::Refused { rank, call } => {
                write!(f, "local rank {rank} called {call}, which cannot run here")
            }
            Self::Ended { op, rank, fine } => {
                let how = if *fine { "succeeded" } else { "failed" };
                write!(f, "operation {op} {how} for local rank {rank}")
            }
            Self::Late { op, ranks } => {
                write!(
                    f,
                    "others wait for local ranks {ranks:?} to call operation {op}"
                )
            }
            Self::Said { node, frame } => write!(f, "node {node} said {frame:?}"),
            Self::LinkLost { node } => write!(f, "the link to node {node} ended"),
            Self::RankLost { rank } => write!(f, "local rank {rank} is gone"),
            Self::RankLeft { rank } => write!(f, "local rank {rank} left"),
            Self::Silent { node, silent } => {
                write!(f, "node {node} has been silent for {silent:?}")
            }
            Self::Heard { node } => write!(f, "node {node} was heard again"),
            Self::Stop => f.write_str("told to stop"),
            Self::Leave => f.write_str("told to leave"),
            Self::Broken { why } => write!(f, "the epoch is over: {why}"),
            Self::Entered { epoch, members } => write!(f, "epoch {epoch} of nodes {members:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(events: usize) -> Journal {
        let mut journal = Journal::default();
        for at in 0..events {
            let now = Duration::from_secs(at as u64);
            journal.take(now, &Input::PeerLost { peer: at }, |node| 2 * node);
            journal.take(now, &Input::Tick, |node| node);
        }
        journal
    }

    #[test]
    fn the_last_events_are_kept_in_their_order_with_their_age() {
        let lines = journal(LENGTH + 3).lines(Duration::from_secs(LENGTH as u64 + 3));
        assert_eq!(lines.len(), LENGTH);
        let last = 2 * (LENGTH + 2);
        assert_eq!(
            lines.last().unwrap(),
            &format!("-1.000000 s: the link to node {last} ended")
        );
        assert!(
            lines[0].ends_with("the link to node 6 ended"),
            "{}",
            lines[0]
        );
    }

    #[test]
    fn an_end_says_how_it_ended() {
        let mut journal = Journal::default();
        for outcome in [Ok(1), Err(collective::machine::Broken::Revoked.into())] {
            let end = Effect::End {
                op: 7,
                rank: 1,
                outcome,
            };
            journal.give(Duration::ZERO, &end, |node| node);
        }
        let lines = journal.lines(Duration::ZERO);
        assert!(
            lines[0].ends_with("operation 7 succeeded for local rank 1"),
            "{lines:?}"
        );
        assert!(
            lines[1].ends_with("operation 7 failed for local rank 1"),
            "{lines:?}"
        );
    }
}
