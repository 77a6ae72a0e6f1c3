//! Who is not trusted: unknown programs at the sockets, and processes that break the protocol of their rings. They are
//! let go or refused, and everybody else goes on.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collective::membership::Break;
use contract::identity::{Identity, JobId, Party};
use gang::descriptors::allow_descriptors;
use gang::processes::{Sidecars, get, loopback};
use gang::restarted::Restarted;
use gang::{Gang, PATIENCE, f32s, failure, run, sum, wait_until, wait_until_some};
use hfreduce_client::Call;
use hfreduce_client::attach::{AttachChannel, ClientMessage, RestoredGroup, SidecarAnswer};
use hfreduce_client::client::Client;
use hfreduce_client::entry::{FailureKind, SegmentRange, Submission};
use hfreduce_sidecar::limits::PENDING_PROCESSES;
use link::connect::{Credentials, initiate};
use link::handshake::{HELLO_BYTES, Key};
use link::ring::{SUBMISSION_WORDS, WaitOn, WakeFor};
use link::segment::{Segment, Writers};
use link::wake_fd::WakeFd;
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, ftruncate, memfd_create,
};

/// An answer takes a millisecond; a sidecar that is kept busy or asleep never answers.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

#[test]
fn strangers_on_the_sockets_change_nothing() {
    let gang = Gang::start(2, 1);
    for node in &gang.nodes {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b""] {
            let mut stream = TcpStream::connect(node.address).unwrap();
            stream.write_all(garbage).ok();
            stream.shutdown(std::net::Shutdown::Write).ok();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).ok();
            assert!(answer.is_empty());
        }
        let socket = AttachChannel::connect(&node.socket()).unwrap();
        rustix::net::send(&socket, &[0x80; 1000], rustix::net::SendFlags::NOSIGNAL).unwrap();
    }
    gang.each(|client| run(&client, sum(10), &f32s(&[1.0; 10])).map(drop).unwrap());
}

#[test]
fn wrong_handshakes_at_the_data_port_are_counted_and_fill_no_log() {
    const STRANGERS: u64 = 50;
    let sidecars = Sidecars::start(loopback(2), 1);
    let mut data_port = sidecars.metrics_address(1);
    data_port.set_port(9404);
    for _ in 0..STRANGERS {
        let mut stream = TcpStream::connect(data_port).unwrap();
        stream.write_all(&[0xff; HELLO_BYTES]).unwrap();
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    }
    let counted = || {
        let metrics = get(sidecars.metrics_address(1), "/metrics");
        let mut lines = metrics.lines();
        let count = lines
            .find_map(|line| line.strip_prefix("fireflyer_hfreduce_refused_connections_total "));
        count.unwrap().parse::<u64>().unwrap()
    };
    wait_until(|| counted() >= STRANGERS);
    let log = sidecars.log(1);
    assert!(!log.is_empty() && !log.contains("refused"), "{log}");
}

#[test]
fn too_many_local_connections_are_closed_and_ranks_attach_once_they_leave() {
    let gang = Gang::start(2, 1);
    let node = &gang.nodes[0];
    let is_closed = |channel: &AttachChannel| {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(channel, &mut [0; 1], flags), Ok((_, 0)))
    };
    // The kernel refuses while its own queue is full.
    let connect = |_| wait_until_some(|| AttachChannel::connect(&node.socket()).ok());
    let idle: Vec<_> = (0..=PENDING_PROCESSES).map(connect).collect();
    wait_until(|| idle.iter().any(is_closed));
    assert_eq!(idle.iter().filter(|channel| is_closed(channel)).count(), 1);
    drop(idle);
    gang.each(|client| run(&client, sum(10), &f32s(&[1.0; 10])).map(drop).unwrap());
}

#[test]
fn who_has_another_key_or_attempt_or_comes_too_late_is_refused() {
    let gang = Gang::start(2, 1);
    let identity = Identity {
        job: JobId::new(gang::UID),
        attempt: 1,
        party: Party::Sidecar { rank: 0 },
    };
    let dial = |identity, key| {
        let mut stream = TcpStream::connect(gang.nodes[1].address).unwrap();
        initiate(&mut stream, &Credentials { identity, key })
    };
    let wrong_key = Key::derive(b"another master secret", gang::UID, 1);
    assert!(dial(identity, wrong_key).is_err());
    let stale = Identity {
        attempt: 0,
        ..identity
    };
    assert!(dial(stale, gang::key()).is_err());
    assert!(
        dial(identity, gang::key()).is_err(),
        "rank 0 is connected already"
    );
    gang.each(|client| run(&client, sum(10), &f32s(&[1.0; 10])).map(drop).unwrap());
}

#[test]
fn a_local_rank_that_is_none_or_taken_is_refused_with_the_reason() {
    let gang = Gang::start(1, 2);
    let attach = |rank| Client::attach(&gang.nodes[0].socket(), rank, PATIENCE);
    let _first = attach(0).unwrap();
    let refused = attach(0).unwrap_err().to_string();
    assert!(refused.contains("attached already"), "{refused}");
    let refused = attach(2).unwrap_err().to_string();
    assert!(refused.contains("no local rank 2"), "{refused}");
}

#[test]
fn a_client_of_another_release_is_refused_with_both_versions() {
    let gang = Gang::start(1, 1);
    let ours = hfreduce_client::attach::VERSION;
    for theirs in [ours - 1, ours + 1] {
        // What every release has said so far, and something that a later one might add.
        let attach =
            format!(r#"{{"kind":"attach","version":{theirs},"localRank":0,"later":[{{}}]}}"#);
        let channel = AttachChannel::connect(&gang.nodes[0].socket()).unwrap();
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(&channel, attach.as_bytes(), flags).unwrap();
        let (refused, _) = answer(&channel);
        let refused = format!("{refused:?}");
        let versions = format!("version {theirs}, this sidecar {ours}");
        assert!(refused.contains(&versions), "{refused}");
    }
    gang.each(|client| run(&client, Call::barrier(), &[]).map(drop).unwrap());
}

#[test]
fn who_knocks_when_descriptors_are_short_waits_and_keeps_nobody_busy() {
    const RETRIES: usize = 3;
    let sidecars = Sidecars::start(loopback(1), 1);
    let complaints = || sidecars.log(0).matches("failed to accept").count();
    let process = sidecars.process(0);
    let before = allow_descriptors(process, 3);
    assert!(before > 1024 || before == u64::MAX, "{before}: not raised");
    let channel = AttachChannel::connect(&sidecars.socket(0)).unwrap();
    wait_until(|| complaints() >= RETRIES);
    // A sidecar that is woken without end has said it a thousand times meanwhile.
    assert!(complaints() <= 2 * RETRIES);
    allow_descriptors(process, before);
    drop(channel);
    run(&sidecars.client(0, 0), Call::barrier(), &[]).unwrap();
}

type ByHand = (AttachChannel, Arc<Segment>, WakeFd);

/// Attaches by hand: the socket, the control segment, and the process's end of the wake descriptor.
fn attach_by_hand(socket: &Path, local_rank: u32) -> ByHand {
    attach_again(socket, local_rank, None).1.unwrap()
}

/// The same with what it says was delivered to it; the text of the answer, and none where that is a refusal.
fn attach_again(socket: &Path, local_rank: u32, again: Option<u64>) -> (String, Option<ByHand>) {
    attach_with(socket, local_rank, again, 0)
}

/// The same with so many groups to restore.
fn attach_with(
    socket: &Path,
    local_rank: u32,
    again: Option<u64>,
    groups: u32,
) -> (String, Option<ByHand>) {
    let channel = wait_until_some(|| AttachChannel::connect(socket).ok());
    let version = hfreduce_client::attach::VERSION;
    let attach = ClientMessage::Attach {
        version,
        local_rank,
        again,
        groups,
    };
    channel.send(&attach, &[]).unwrap();
    let (message, fds) = answer(&channel);
    let text = format!("{message:?}");
    let SidecarAnswer::Attached { control_bytes, .. } = message else {
        return (text, None);
    };
    let [control, wake_fd] = <[_; 2]>::try_from(fds).unwrap();
    let control = Segment::open(control, control_bytes as usize).unwrap();
    (
        text,
        Some((channel, Arc::new(control), WakeFd::from_fd(wake_fd))),
    )
}

/// The next answer; the members come unasked.
fn answer(channel: &AttachChannel) -> (SidecarAnswer, Vec<OwnedFd>) {
    wait_until_some(|| {
        let answer = channel.receive_with_fds::<SidecarAnswer>().unwrap();
        answer.filter(|(message, _)| !matches!(message, SidecarAnswer::Members(_)))
    })
}

#[test]
fn a_process_that_breaks_its_ring_is_let_go_and_the_sidecar_goes_on() {
    let submissions: [[u64; 16]; 4] = [
        // No such kind, no such call, a release of nothing, an input that is not registered.
        [9; 16],
        [1, 1, u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [2, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [
            1,
            1,
            0x0001_0101,
            0,
            1 << 60,
            0,
            5,
            u64::MAX,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ],
    ];
    for (at, submission) in submissions.iter().enumerate() {
        let gang = Gang::start(1, 2);
        let socket = gang.nodes[0].socket();
        let honest = Client::attach(&socket, 0, PATIENCE).unwrap();
        let (channel, control, wake_fd) = attach_by_hand(&socket, 1);
        let (mut calls, mut outcomes) = link::ring::client_ends(&control).unwrap();
        calls.push(submission).unwrap();
        wake_fd.notify();
        let (kind, text) = failure(run(&honest, Call::barrier(), &[]));
        if at == 3 {
            // Well formed, so it fails alone, for both.
            assert_eq!(kind, FailureKind::Refused);
            assert!(text.contains("rank 1"), "{text}");
            wait_until_some(|| outcomes.pop().unwrap());
            continue;
        }
        assert_eq!(kind, FailureKind::Broken);
        assert!(text.contains("rank 1"), "{text}");
        drop(channel);
    }
}

#[test]
fn a_call_in_a_group_that_does_not_stand_is_the_end_of_who_makes_it_alone() {
    let nowhere = SegmentRange {
        segment: 77,
        offset: 0,
    };
    let open = |ranks| Submission::Open {
        ticket: 1,
        group: 5,
        ranks,
        replicated: true,
        priority: 0,
        input: nowhere,
    };
    let call = Submission::Call {
        group: 5,
        ticket: 2,
        call: sum(1),
        input: nowhere,
    };
    for before in [None, Some(open(0)), Some(open(2)), Some(open(3))] {
        let gang = Gang::start(1, 2);
        let honest = gang.client(0);
        let (_channel, control, wake_fd) = attach_by_hand(&gang.nodes[0].socket(), 1);
        let (mut calls, _outcomes) = link::ring::client_ends(&control).unwrap();
        for submission in before.into_iter().chain([call]) {
            calls.push(&submission.encode()).unwrap();
        }
        wake_fd.notify();
        let (kind, text) = failure(run(&honest, Call::barrier(), &[]));
        assert_eq!(kind, FailureKind::Broken);
        assert!(text.contains("rank 1"), "{text}");
    }
}

#[test]
fn whatever_lies_in_the_control_segment_the_sidecar_goes_on() {
    let gang = Gang::start(1, 2);
    let socket = gang.nodes[0].socket();
    let (_channel, control, wake_fd) = attach_by_hand(&socket, 1);
    let honest = Client::attach(&socket, 0, PATIENCE).unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for word in control.words() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.store(seed, Ordering::SeqCst);
    }
    wake_fd.notify();
    let (_, text) = failure(run(&honest, Call::barrier(), &[]));
    assert!(text.contains("rank 1"), "{text}");
}

/// A call that is refused: its input is not registered.
fn refused_call(ticket: u64) -> [u64; SUBMISSION_WORDS] {
    let input = SegmentRange {
        segment: 77,
        offset: 0,
    };
    let call = sum(1);
    Submission::Call {
        group: 0,
        ticket,
        call,
        input,
    }
    .encode()
}

#[test]
fn a_process_that_takes_the_flags_off_its_descriptors_stops_nobody_else() {
    let gang = Gang::start(1, 2);
    let socket = gang.nodes[0].socket();
    let honest = Client::attach(&socket, 0, PATIENCE).unwrap();
    let (channel, control, wake_fd) = attach_by_hand(&socket, 1);
    for fd in [channel.as_fd(), wake_fd.as_fd()] {
        fcntl_setfl(fd, OFlags::empty()).unwrap();
    }
    // If it is a counter, it is full now, and who rings again waits.
    rustix::io::write(&wake_fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let (mut calls, mut outcomes) = link::ring::client_ends(&control).unwrap();
    for ticket in 0..1000 {
        // It sleeps, and never reads its wake descriptor.
        outcomes.sleep(WaitOn::WakeFd, WakeFor::Anything).unwrap();
        calls.push(&refused_call(ticket)).unwrap();
        wake_fd.notify();
        let ticket = honest.submit(Call::barrier(), None, PATIENCE).unwrap();
        let (kind, _) = failure(honest.wait(ticket, ANSWERED_WITHIN));
        assert_eq!(kind, FailureKind::Refused);
        wait_until_some(|| outcomes.pop().unwrap());
    }
}

#[test]
fn a_process_that_closes_its_wake_descriptor_is_released_when_it_leaves() {
    let gang = Gang::start(1, 1);
    let (channel, _control, wake_fd) = attach_by_hand(&gang.nodes[0].socket(), 0);
    drop(wake_fd);
    channel.send(&ClientMessage::Detach, &[]).unwrap();
    drop(channel);
    wait_until(|| Client::attach(&gang.nodes[0].socket(), 0, PATIENCE).is_ok());
}

const INPUT_BYTES: u64 = 1 << 16;

/// A memfd of the right size with these seals.
fn memfd(seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("lie", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, INPUT_BYTES).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Restores a segment from descriptors: nothing if it is taken, otherwise why not.
fn restore_segment(
    channel: &AttachChannel,
    segment: u32,
    bytes: u64,
    fds: &[BorrowedFd<'_>],
) -> Option<String> {
    let message = ClientMessage::RestoreSegment { segment, bytes };
    channel.send(&message, fds).unwrap();
    let answer = answer(channel).0;
    (answer != SidecarAnswer::Taken { segment }).then(|| format!("{answer:?}"))
}

#[test]
fn a_restored_segment_is_checked_like_anything_untrusted() {
    let mut gang = Restarted::start("auto", (1, 2));
    let socket = gang.pods.run_dir(0).join(contract::run_dir::SOCKET);
    gang.pods.kill(0);
    gang.clients.truncate(1);
    gang.pods.start_again(0);
    let (refused, _) = attach_again(&socket, 1, Some(hfreduce_client::attach::OPERATION_LIMIT));
    assert!(refused.contains("knows nothing of"), "{refused}");
    let (refused, _) = attach_again(&socket, 7, Some(1));
    assert!(refused.contains("no local rank 7"), "{refused}");
    let (channel, control, wake_fd) = attach_again(&socket, 1, Some(1)).1.unwrap();

    let right = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let (good, open, grows) = (
        memfd(right),
        memfd(SealFlags::SEAL),
        memfd(SealFlags::SHRINK),
    );
    let file = tempfile::tempfile().unwrap();
    let readable = Segment::create("lie", 1, Writers::Creator).unwrap();
    let (fd, bytes) = (good.as_fd(), INPUT_BYTES);
    let lies: [(&str, &[BorrowedFd<'_>], u64); 11] = [
        ("0 descriptors", &[], bytes),
        ("2 descriptors", &[fd, fd], bytes),
        ("not sealed", &[open.as_fd()], bytes),
        ("not sealed", &[grows.as_fd()], bytes),
        ("not", &[file.as_fd()], bytes),
        ("not a memfd", &[channel.as_fd()], bytes),
        ("not a memfd", &[wake_fd.as_fd()], bytes),
        ("failed to map", &[readable.fd()], bytes),
        ("another size", &[fd], 2 * bytes),
        ("no segment has this size", &[fd], 0),
        ("may use for inputs", &[fd], u64::MAX),
    ];
    for (reason, fds, bytes) in lies {
        let refused = restore_segment(&channel, 3, bytes, fds).unwrap();
        assert!(refused.contains(reason), "{refused}");
    }
    assert!(restore_segment(&channel, u32::MAX, bytes, &[fd]).is_some());
    assert_eq!(restore_segment(&channel, 3, bytes, &[fd]), None);
    let twice = restore_segment(&channel, 3, bytes, &[fd]).unwrap();
    assert!(twice.contains("a segment 3 already"), "{twice}");

    // What it restores in good order is used, and nobody else was harmed.
    let (mut calls, mut outcomes) = link::ring::client_ends(&control).unwrap();
    let input = SegmentRange {
        segment: 3,
        offset: 0,
    };
    let call = Submission::Call {
        group: 0,
        ticket: 2,
        call: sum(10),
        input,
    };
    calls.push(&call.encode()).unwrap();
    wake_fd.notify();
    let honest = &gang.clients[0];
    let output = run(honest, sum(10), &f32s(&[1.0; 10])).unwrap();
    assert_eq!(
        output.result[..],
        f32s(&[1.0; 10]),
        "the other has brought zeros"
    );
    wait_until_some(|| outcomes.pop().unwrap());
    // Once it has called, it restores nothing any more.
    let segment = 4;
    channel
        .send(&ClientMessage::RestoreSegment { segment, bytes }, &[fd])
        .unwrap();
    wait_until(|| is_closed(&channel));
}

fn is_closed(channel: &AttachChannel) -> bool {
    matches!(
        channel.receive::<SidecarAnswer>(),
        Err(hfreduce_client::attach::Error::Closed)
    )
}

#[test]
fn a_sidecar_that_has_forgotten_nothing_takes_no_segments_and_believes_no_past() {
    let gang = Gang::start(1, 2);
    let socket = gang.nodes[0].socket();
    let (refused, _) = attach_again(&socket, 1, Some(0));
    assert!(refused.contains("knows nothing of"), "{refused}");
    let (channel, _control, _wake_fd) = attach_by_hand(&socket, 1);
    let honest = Client::attach(&socket, 0, PATIENCE).unwrap();
    let (segment, bytes) = (0, INPUT_BYTES);
    let fd = memfd(SealFlags::SHRINK | SealFlags::GROW);
    channel
        .send(
            &ClientMessage::RestoreSegment { segment, bytes },
            &[fd.as_fd()],
        )
        .unwrap();
    let (_, text) = failure(run(&honest, Call::barrier(), &[]));
    assert!(text.contains("rank 1"), "{text}");
}

#[test]
fn who_lies_about_what_was_delivered_ends_its_own_attempt_and_no_sidecar() {
    let mut gang = Restarted::start("auto", (2, 1));
    let socket = gang.pods.run_dir(1).join(contract::run_dir::SOCKET);
    gang.pods.kill(1);
    gang.clients.truncate(1);
    gang.pods.start_again(1);
    // One was delivered to it, as to the other.
    let _liar = attach_again(&socket, 0, Some(1000)).1.unwrap();
    let broken = || {
        gang.leader
            .view
            .lock()
            .unwrap()
            .as_ref()
            .and_then(|view| view.broken)
    };
    wait_until(|| matches!(broken(), Some(Break::Forgotten { op: 1 })));
    for sidecar in &mut gang.pods.children {
        assert!(sidecar.try_wait().unwrap().is_none(), "it has ended");
    }
}

#[test]
fn what_a_process_tells_of_its_groups_is_checked_and_no_sidecar_ends() {
    let mut gang = Restarted::start("auto", (1, 2));
    let socket = gang.pods.run_dir(0).join(contract::run_dir::SOCKET);
    gang.pods.kill(0);
    gang.clients.truncate(1);
    gang.pods.start_again(0);
    let most = hfreduce_client::attach::GROUP_LIMIT as u32;
    let (refused, _) = attach_with(&socket, 1, Some(1), most + 1);
    assert!(refused.contains("1024 are the most"), "{refused}");
    let (channel, control, wake_fd) = attach_with(&socket, 1, Some(1), 2).1.unwrap();
    let ask = |message: &ClientMessage| {
        channel.send(message, &[]).unwrap();
        let answer = answer(&channel).0;
        (answer != SidecarAnswer::Noted).then(|| format!("{answer:?}"))
    };
    let ranks = |ranks: &[u32]| {
        let ranks = ranks.to_vec();
        ask(&ClientMessage::Ranks { ranks })
    };
    let restore = |group, delivered, closed| {
        ask(&ClientMessage::Group(RestoredGroup {
            group,
            replicated: true,
            priority: 0,
            delivered,
            closed,
            failed: false,
        }))
    };
    for wrong in [&[1, 0][..], &[1, 1], &[0, 2], &[], &[0; 1025]] {
        let refused = ranks(wrong).unwrap();
        assert!(refused.contains("must ascend"), "{refused}");
    }
    assert_eq!(ranks(&[0]), None);
    assert!(ranks(&[0]).unwrap().contains("must ascend"));
    let refused = restore(7, 0, false).unwrap();
    assert!(refused.contains("without its rank 1"), "{refused}");
    for (group, first, closed, reason) in [
        (0, 0, false, "that of all ranks"),
        (7, 0, true, "operations that are over"),
        (7, u64::MAX, false, "operations that are over"),
    ] {
        assert_eq!(ranks(&[0, 1]), None);
        let refused = restore(group, first, closed).unwrap();
        assert!(refused.contains(reason), "{refused}");
    }
    // It says that they have closed one together, of which the other knows nothing, and opened another.
    for (group, first, closed) in [(7, 5, true), (8, 0, false)] {
        assert_eq!(ranks(&[0, 1]), None);
        assert_eq!(restore(group, first, closed), None);
    }
    let honest = &gang.clients[0];
    let (mut calls, _outcomes) = link::ring::client_ends(&control).unwrap();
    calls.push(&refused_call(2)).unwrap();
    wake_fd.notify();
    let (kind, _) = failure(run(honest, sum(1), &f32s(&[1.0])));
    assert_eq!(kind, FailureKind::Refused);
    // The number of the other's group is taken by what it says.
    let refused = honest
        .open(8, &[0], true, PATIENCE)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("rank"), "{refused}");
    // It has restored all.
    channel
        .send(&ClientMessage::Ranks { ranks: vec![1] }, &[])
        .unwrap();
    wait_until(|| is_closed(&channel));
    assert!(
        gang.pods.children[0].try_wait().unwrap().is_none(),
        "it has ended"
    );
}
