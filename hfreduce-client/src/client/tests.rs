//! The client against a sidecar of a few lines that answers each call with the caller's own input.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags};

use super::connect::Attachment;
use super::shared::{Link, sleep_on};
use super::state::State;
use super::*;
use crate::DType;
use crate::attach::{AttachChannel, Listener, SidecarAnswer};
use crate::entry::{Completion, FailureKind};
use link::ring::{WaitOn, WakeFor};
use link::segment::{Segment, Writers};
use link::wake_fd::WakeFd;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn standing(local_rank: u32) -> Standing {
    Standing {
        attempt: 1,
        epoch: 1,
        node: 0,
        nodes: 1,
        local_rank,
        local_world: 1,
        rank: local_rank,
        world: 1,
    }
}

/// Serves one client until it detaches, refusing more than `limit` bytes of inputs. One that `lasts` for so many calls
/// ends without a word at the next, and has said that another will come.
pub(super) fn echo(listener: &Listener, limit: usize, lasts: Option<usize>) -> Vec<ClientMessage> {
    let wait = |fds: &[PollFd<'_>]| sleep_on(fds, PATIENCE);
    wait(&[PollFd::new(listener, PollFlags::IN)]);
    let channel = listener.accept().unwrap().unwrap();
    let control = Arc::new(ring::control().unwrap());
    let (mut calls, mut outcomes) = ring::server_ends(&control);
    let (wake_fd, clients_end) = WakeFd::pair().unwrap();
    let (mut inputs, mut results) = (HashMap::new(), HashMap::new());
    let mut received = Vec::new();
    let mut closed = Vec::new();
    let mut left = lasts.unwrap_or(usize::MAX);
    loop {
        while let Some((message, mut fds)) = channel
            .receive_with_fds::<ClientMessage>()
            .unwrap_or(Some((ClientMessage::Detach, Vec::new())))
        {
            received.push(message.clone());
            match message {
                ClientMessage::Attach { local_rank, .. } => {
                    let attachment = SidecarAnswer::Attached {
                        control_bytes: control.len() as u64,
                        standing: standing(local_rank),
                        patience_seconds: u32::from(lasts.is_some()),
                    };
                    let fds = [control.fd(), clients_end.as_fd()];
                    channel.send(&attachment, &fds).unwrap();
                    let members = Members::new(1, &[0], 1);
                    channel.send(&SidecarAnswer::Members(members), &[]).ok(); // It may have left.
                }
                ClientMessage::Ranks { .. } | ClientMessage::Group(_) => {
                    channel.send(&SidecarAnswer::Noted, &[]).unwrap();
                }
                ClientMessage::RestoreSegment { segment, bytes } => {
                    let input = Segment::open(fds.remove(0), bytes as usize).unwrap();
                    inputs.insert(segment, input);
                    channel
                        .send(&SidecarAnswer::Taken { segment }, &[])
                        .unwrap();
                }
                ClientMessage::Allocate { bytes } => {
                    let segment: usize = inputs.values().map(Segment::len).sum();
                    if segment + bytes as usize > limit {
                        let reason = format!("{segment} of {limit} bytes are given out");
                        channel
                            .send(&SidecarAnswer::Refused { reason }, &[])
                            .unwrap();
                        continue;
                    }
                    let input =
                        Segment::create("input", bytes as usize, Writers::Everybody).unwrap();
                    let (segment, bytes) = (received.len() as u32, input.len() as u64);
                    let message = SidecarAnswer::Input { segment, bytes };
                    channel.send(&message, &[input.fd()]).unwrap();
                    inputs.insert(segment, input);
                }
                ClientMessage::Free { segment } => drop(inputs.remove(&segment)),
                ClientMessage::Whom { .. } => {
                    let whom = "rank 5 has not called it".to_owned();
                    channel.send(&SidecarAnswer::Waits { whom }, &[]).unwrap();
                }
                ClientMessage::Detach => return received,
            }
        }
        while let Some(words) = calls.pop().unwrap() {
            let submission = Submission::decode(&words).unwrap();
            if let Submission::Open { ticket, .. } = submission {
                let groups = std::mem::take(&mut closed);
                channel.send(&SidecarAnswer::Over { groups }, &[]).unwrap();
                let outcome = CallOutcome::Done {
                    segment: NO_SEGMENT,
                    bytes: 0,
                    epoch: 1,
                };
                let completion = Completion { ticket, outcome };
                if outcomes.push(&completion.encode()).unwrap() {
                    wake_fd.notify();
                }
            }
            if let Submission::Release { ticket } = submission {
                let segment = 1000 + ticket as u32;
                if results.remove(&segment).is_some() {
                    // The process may have left.
                    channel.send(&SidecarAnswer::Gone { segment }, &[]).ok();
                }
            }
            let Submission::Call {
                ticket,
                group,
                call,
                input,
            } = submission
            else {
                continue;
            };
            if left == 0 {
                return received;
            }
            left -= 1;
            closed.extend((call.kind == crate::OpKind::Close).then_some(group));
            let bytes = call.input_bytes() as usize;
            let outcome = if call.tag == 13 {
                CallOutcome::Failed {
                    kind: FailureKind::Mismatch,
                    text: "rank 1 called something else".to_owned(),
                }
            } else if bytes == 0 {
                CallOutcome::Done {
                    segment: NO_SEGMENT,
                    bytes: 0,
                    epoch: 1,
                }
            } else {
                let mut result = Segment::create("result", bytes, Writers::Creator).unwrap();
                result.bytes_mut()[..bytes].copy_from_slice(
                    &inputs[&input.segment].bytes()[input.offset as usize..][..bytes],
                );
                let segment = 1000 + ticket as u32;
                let message = SidecarAnswer::Result {
                    segment,
                    bytes: result.len() as u64,
                };
                channel.send(&message, &[result.fd()]).unwrap();
                results.insert(segment, result);
                CallOutcome::Done {
                    segment,
                    bytes: bytes as u64,
                    epoch: 1,
                }
            };
            let completion = Completion { ticket, outcome };
            if outcomes.push(&completion.encode()).unwrap() {
                wake_fd.notify();
            }
        }
        if calls.sleep(WaitOn::WakeFd, WakeFor::Anything).unwrap() {
            wait(&[
                PollFd::new(&wake_fd, PollFlags::IN),
                PollFd::new(&channel, PollFlags::IN),
            ]);
            wake_fd.clear();
        }
    }
}

pub(super) struct Loopback {
    dir: tempfile::TempDir,
    server: JoinHandle<Vec<ClientMessage>>,
}

impl Loopback {
    pub(super) fn start(limit: usize) -> (Self, Client) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hfreduce.sock");
        let listener = Listener::bind(&path).unwrap();
        let server = thread::spawn(move || echo(&listener, limit, None));
        let client = Client::attach(&path, 0, PATIENCE).unwrap();
        (Self { dir, server }, client)
    }

    pub(super) fn finish(self, client: Client) -> Vec<ClientMessage> {
        drop(client);
        drop(self.dir);
        self.server.join().unwrap()
    }
}

pub(super) fn bytes_of(count: usize) -> Call {
    Call::all_reduce(DType::U8, crate::ReduceOp::Sum, count as u64)
}

#[test]
fn a_result_is_what_was_called_and_buffers_are_used_again() {
    let (loopback, client) = Loopback::start(1 << 30);
    assert_eq!(client.standing(), standing(0));
    for round in 0..100u32 {
        let count = 1 + round as usize * 10;
        let mut input = client.buffer(count, PATIENCE).unwrap();
        input.fill(round as u8);
        let ticket = client
            .submit(bytes_of(count), Some(input), PATIENCE)
            .unwrap();
        let output = client.wait(ticket, PATIENCE).unwrap();
        assert_eq!(&output.result[..], vec![round as u8; count]);
        assert_eq!(output.input.unwrap().len(), count);
    }
    let received = loopback.finish(client);
    let allocations = received
        .iter()
        .filter(|m| matches!(m, ClientMessage::Allocate { .. }));
    assert_eq!(allocations.count(), 1);
    assert_eq!(received.last(), Some(&ClientMessage::Detach));
}

#[test]
fn many_operations_from_many_threads_each_get_their_own_result() {
    let (loopback, client) = Loopback::start(1 << 30);
    thread::scope(|scope| {
        for thread in 0..4u8 {
            let client = client.clone();
            scope.spawn(move || {
                for _ in 0..20 {
                    let tickets: Vec<CallTicket> = (0..16u8)
                        .map(|_| {
                            let mut input = client.buffer(100, PATIENCE).unwrap();
                            input.fill(thread);
                            client.submit(bytes_of(100), Some(input), PATIENCE).unwrap()
                        })
                        .collect();
                    for ticket in tickets {
                        let output = client.wait(ticket, PATIENCE).unwrap();
                        assert!(output.result.iter().all(|byte| *byte == thread));
                    }
                }
            });
        }
    });
    loopback.finish(client);
}

#[test]
fn a_failure_carries_its_text_and_the_next_operation_runs() {
    let (loopback, client) = Loopback::start(1 << 30);
    let mut wrong = Call::barrier();
    wrong.tag = 13;
    let ticket = client.submit(wrong, None, PATIENCE).unwrap();
    let error = client.wait(ticket, PATIENCE).unwrap_err();
    assert!(
        error.to_string().contains("rank 1 called something else"),
        "{error}"
    );
    let ticket = client.submit(Call::barrier(), None, PATIENCE).unwrap();
    assert!(client.wait(ticket, PATIENCE).unwrap().result.is_empty());
    let again = client.wait(ticket, PATIENCE).unwrap_err();
    assert!(matches!(again, Error::UnknownTicket(_)), "{again}");
    loopback.finish(client);
}

#[test]
fn idle_buffers_make_room_before_a_request_is_refused() {
    let (loopback, client) = Loopback::start(1 << 20);
    drop(client.buffer(900 << 10, PATIENCE).unwrap());
    let small = client.buffer(1 << 10, PATIENCE).unwrap();
    let refused = client.buffer(1 << 20, PATIENCE).unwrap_err().to_string();
    assert!(refused.contains("are given out"), "{refused}");
    drop(small);
    drop(client.buffer(1 << 20, PATIENCE).unwrap());
    loopback.finish(client);
}

#[test]
fn an_input_that_is_too_small_is_refused_before_it_is_sent() {
    let (loopback, client) = Loopback::start(1 << 30);
    let input = client.buffer(10, PATIENCE).unwrap();
    let refused = client
        .submit(bytes_of(11), Some(input), PATIENCE)
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("reads 11 bytes, the buffer has 10"),
        "{refused}"
    );
    loopback.finish(client);
}

#[test]
fn who_looks_for_its_result_on_the_socket_leaves_the_answers_to_those_who_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hfreduce.sock");
    let listener = Listener::bind(&path).unwrap();
    let channel = AttachChannel::connect(&path).unwrap();
    sleep_on(&[PollFd::new(&listener, PollFlags::IN)], PATIENCE);
    let server = listener.accept().unwrap().unwrap();
    let control = Arc::new(ring::control().unwrap());
    let (_calls, mut outcomes) = ring::server_ends(&control);
    let (submissions, completions) = ring::client_ends(&control).unwrap();
    let attachment = Attachment {
        link: Link {
            channel,
            wake_fd: WakeFd::new().unwrap(),
            outcomes: completions.wait_slot(),
        },
        submissions,
        completions,
        standing: standing(0),
        patience: Duration::ZERO,
    };
    let mut state = State::new(attachment, Arc::default());
    let submission = Submission::Call {
        ticket: 1,
        group: 0,
        call: bytes_of(1),
        input: place_of(None),
    };
    state.called(1, bytes_of(1), submission, None, None);
    let (segment, bytes, epoch) = (7, 1, 1);
    let result = Segment::create("result", 1, Writers::Creator).unwrap();
    let announced = SidecarAnswer::Result {
        segment,
        bytes: result.len() as u64,
    };
    server.send(&announced, &[result.fd()]).unwrap();
    let reason = "an answer".to_owned();
    server
        .send(&SidecarAnswer::Refused { reason }, &[])
        .unwrap();
    let outcome = CallOutcome::Done {
        segment,
        bytes,
        epoch,
    };
    let completion = Completion { ticket: 1, outcome };
    outcomes.push(&completion.encode()).unwrap();

    state.sleeper = true;
    assert!(state.look());
    let finished = state.take_finished(1).unwrap().unwrap();
    assert!(state.result(&finished, segment, bytes).unwrap().is_some());
    assert_eq!(state.answers.len(), 1);
}

#[test]
fn a_sidecar_that_ends_is_noticed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hfreduce.sock");
    let listener = Listener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        sleep_on(&[PollFd::new(&listener, PollFlags::IN)], PATIENCE);
        let channel = listener.accept().unwrap().unwrap();
        let control = ring::control().unwrap();
        let (wake_fd, clients_end) = WakeFd::pair().unwrap();
        let attachment = SidecarAnswer::Attached {
            control_bytes: control.len() as u64,
            standing: standing(0),
            patience_seconds: 0,
        };
        let fds = [control.fd(), clients_end.as_fd()];
        channel.send(&attachment, &fds).unwrap();
        // Leaves as soon as the client has called.
        sleep_on(
            &[PollFd::new(&wake_fd, PollFlags::IN)],
            Duration::from_millis(300),
        );
    });
    let client = Client::attach(&path, 0, PATIENCE).unwrap();
    let ticket = client.submit(Call::barrier(), None, PATIENCE).unwrap();
    let start = Instant::now();
    let error = client.wait(ticket, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::SidecarLost { .. }), "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    let error = client.submit(Call::barrier(), None, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::SidecarLost { .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn nobody_there_is_an_error_that_names_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hfreduce.sock");
    let error = Client::attach(&path, 0, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("hfreduce.sock"), "{error}");
}

#[test]
fn a_forked_child_gets_an_error_that_says_what_to_do() {
    let (loopback, mut client) = Loopback::start(1 << 30);
    let mut owner = Arc::get_mut(&mut client.shared).unwrap().owner;
    // To the client, a child is a process with another number than the one that attached.
    owner += 1;
    std::mem::swap(
        &mut Arc::get_mut(&mut client.shared).unwrap().owner,
        &mut owner,
    );
    let error = client.submit(Call::barrier(), None, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Forked { .. }), "{error}");
    assert!(
        error.to_string().contains("attach again after fork"),
        "{error}"
    );
    Arc::get_mut(&mut client.shared).unwrap().owner = owner;
    loopback.finish(client);
}
