//! The flight recorder: the last things that were called, ended or lost. It costs a copy each, and is read when
//! somebody asks or something fails.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use collective::Call;
use collective::machine::{Cause, Effect, Frame, GroupId, Input, OpId, WORLD};

/// Events that are kept: some seconds of a busy trainer, and what led to the end of one that hangs.
const LENGTH: usize = 512;

/// Something that happened.
#[derive(Clone, Debug)]
enum Event {
    Called {
        group: GroupId,
        rank: usize,
        call: Call,
    },
    Refused {
        group: GroupId,
        rank: usize,
        call: Call,
    },
    Opens {
        group: GroupId,
        ranks: usize,
    },
    Linked {
        node: usize,
    },
    Ended {
        group: GroupId,
        op: OpId,
        rank: usize,
        outcome: Result<(), String>,
    },
    Late {
        group: GroupId,
        op: OpId,
        ranks: Vec<usize>,
    },
    Answered {
        group: GroupId,
        rank: usize,
        fine: bool,
    },
    Closed {
        group: GroupId,
    },
    Said {
        node: usize,
        frame: Frame,
    },
    LinkLost {
        node: usize,
    },
    RankLost {
        rank: usize,
    },
    RankLeft {
        rank: usize,
    },
    Silent {
        node: usize,
        silent: Duration,
    },
    Recovered {
        node: usize,
    },
    Stop,
    Leave,
    Broken {
        why: String,
    },
    Entered {
        epoch: u32,
        members: Vec<u32>,
    },
}

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(super) struct FlightRecorder(VecDeque<(Duration, Event)>);

impl FlightRecorder {
    fn note(&mut self, now: Duration, event: Event) {
        if self.0.len() >= LENGTH {
            self.0.pop_front();
        }
        self.0.push_back((now, event));
    }

    /// Something happened to the machine. Data and time are not worth a note. `node`: a member's rank.
    pub(super) fn take(&mut self, now: Duration, input: &Input, node: impl Fn(usize) -> usize) {
        let event = match *input {
            Input::Submit {
                group, rank, call, ..
            } => Event::Called { group, rank, call },
            Input::Exchange {
                group, rank, call, ..
            }
            | Input::SendRecv {
                group,
                rank,
                call,
                refused: None,
                ..
            } => Event::Called { group, rank, call },
            Input::Refuse {
                group, rank, call, ..
            }
            | Input::SendRecv {
                group, rank, call, ..
            } => Event::Refused { group, rank, call },
            Input::Open {
                group, ref ranks, ..
            } => Event::Opens {
                group,
                ranks: ranks.len(),
            },
            Input::Frame { peer, frame, .. } => match frame {
                Frame::Refuse { .. }
                | Frame::Fail { .. }
                | Frame::ReceiveRejected { .. }
                | Frame::Awaiting { .. }
                | Frame::Abort { .. }
                | Frame::Open { .. }
                | Frame::Opened { .. }
                | Frame::Leaving { .. } => Event::Said {
                    node: node(peer),
                    frame,
                },
                Frame::ReduceChunk { .. }
                | Frame::BroadcastChunk { .. }
                | Frame::ReadyToReceive { .. }
                | Frame::Data { .. }
                | Frame::Credit { .. }
                | Frame::Watermark { .. }
                | Frame::Heartbeat => return,
            },
            Input::Linked { peer } => Event::Linked { node: node(peer) },
            Input::PeerLost { peer } => Event::LinkLost { node: node(peer) },
            Input::RankLost { rank } => Event::RankLost { rank },
            Input::RankLeft { rank } => Event::RankLeft { rank },
            Input::Revoke => Event::Stop,
            Input::Leave => Event::Leave,
            Input::Done { .. } | Input::Tick => return,
        };
        self.note(now, event);
    }

    /// The machine asks for something.
    pub(super) fn give(&mut self, now: Duration, effect: &Effect, node: impl Fn(usize) -> usize) {
        let event = match effect {
            Effect::End {
                group,
                op,
                rank,
                outcome,
            } => Event::Ended {
                group: *group,
                op: *op,
                rank: *rank,
                outcome: match outcome {
                    Ok(_) => Ok(()),
                    Err(Cause::Verdict(verdict)) => Err(verdict.to_string()),
                    Err(Cause::Broken(broken)) => Err(broken.renumbered(node).to_string()),
                },
            },
            Effect::Opened {
                group,
                rank,
                outcome,
            } => Event::Answered {
                group: *group,
                rank: *rank,
                fine: outcome.is_ok(),
            },
            Effect::Closed { group } => Event::Closed { group: *group },
            Effect::Late { group, op, ranks } => Event::Late {
                group: *group,
                op: *op,
                ranks: ranks.clone(),
            },
            Effect::Suspect { peer, silent } => Event::Silent {
                node: node(*peer),
                silent: *silent,
            },
            Effect::Recovered { peer } => Event::Recovered { node: node(*peer) },
            Effect::Broken { broken } => Event::Broken {
                why: broken.renumbered(node).to_string(),
            },
            Effect::Send { .. }
            | Effect::Reduce { .. }
            | Effect::Copy { .. }
            | Effect::Begin { .. }
            | Effect::Connect { .. }
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

/// Which group something is of, where it is not the world.
struct Of(GroupId);

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == WORLD {
            return Ok(());
        }
        write!(f, " of group {}", self.0)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Called { group, rank, call } => {
                write!(f, "local rank {rank} called {call}{}", Of(*group))
            }
            Self::Refused { group, rank, call } => {
                let of = Of(*group);
                write!(
                    f,
                    "local rank {rank} called {call}{of}, which cannot run here"
                )
            }
            Self::Opens { group, ranks } => {
                write!(f, "a local rank opens group {group} of {ranks} ranks")
            }
            Self::Answered { group, rank, fine } => {
                let how = if *fine { "is open" } else { "was refused" };
                write!(f, "group {group} {how}: answered local rank {rank}")
            }
            Self::Closed { group } => write!(f, "group {group} is closed"),
            Self::Ended {
                group,
                op,
                rank,
                outcome,
            } => {
                let of = Of(*group);
                match outcome {
                    Ok(()) => write!(f, "operation {op}{of} succeeded for local rank {rank}"),
                    Err(why) => write!(f, "operation {op}{of} failed for local rank {rank}: {why}"),
                }
            }
            Self::Late { group, op, ranks } => {
                let of = Of(*group);
                write!(
                    f,
                    "others wait for local ranks {ranks:?} to call operation {op}{of}"
                )
            }
            Self::Linked { node } => write!(f, "linked to node {node}"),
            Self::Said { node, frame } => write!(f, "node {node} said {frame:?}"),
            Self::LinkLost { node } => write!(f, "the link to node {node} ended"),
            Self::RankLost { rank } => write!(f, "local rank {rank} is gone"),
            Self::RankLeft { rank } => write!(f, "local rank {rank} left"),
            Self::Silent { node, silent } => {
                write!(f, "node {node} has been silent for {silent:?}")
            }
            Self::Recovered { node } => write!(f, "node {node} sends again"),
            Self::Stop => f.write_str("asked to stop"),
            Self::Leave => f.write_str("asked to leave"),
            Self::Broken { why } => write!(f, "the epoch is over: {why}"),
            Self::Entered { epoch, members } => write!(f, "epoch {epoch} of nodes {members:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight_recorder(events: usize) -> FlightRecorder {
        let mut recorder = FlightRecorder::default();
        for at in 0..events {
            let now = Duration::from_secs(at as u64);
            recorder.take(now, &Input::PeerLost { peer: at }, |node| 2 * node);
            recorder.take(now, &Input::Tick, |node| node);
        }
        recorder
    }

    #[test]
    fn the_last_events_are_kept_in_their_order_with_their_age() {
        let lines = flight_recorder(LENGTH + 3).lines(Duration::from_secs(LENGTH as u64 + 3));
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
        let mut recorder = FlightRecorder::default();
        for outcome in [Ok(1), Err(collective::machine::Broken::Revoked.into())] {
            let end = Effect::End {
                group: WORLD,
                op: 7,
                rank: 1,
                outcome,
            };
            recorder.give(Duration::ZERO, &end, |node| node);
        }
        let lines = recorder.lines(Duration::ZERO);
        assert!(
            lines[0].ends_with("operation 7 succeeded for local rank 1"),
            "{lines:?}"
        );
        assert!(
            lines[1].ends_with("operation 7 failed for local rank 1: the epoch was revoked"),
            "{lines:?}"
        );
    }
}
