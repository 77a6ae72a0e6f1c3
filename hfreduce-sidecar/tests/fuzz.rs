//! Real sidecars under fire: unknown programs at their sockets, and a process that breaks its protocol in every way that a random
//! number thinks of. Who is honest gets its results beside unknown programs, and an answer beside a hostile rank of its own job.
//! `cargo xtask fuzz sockets --minutes M` and `cargo xtask fuzz neighbours --minutes M` go on for longer.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod gang;

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use contract::identity::{Identity, JobId, Party};
use gang::grouped::call_sum_in;
use gang::{Gang, PATIENCE, f32s, filled, run, sum, to_f32s, wait_until_some};
use hfreduce_client::attach::{AttachChannel, ClientMessage, RestoredGroup, SidecarAnswer};
use hfreduce_client::client::{CallTicket, Client, Error, Group};
use hfreduce_client::entry::{SegmentRange, Submission};
use link::handshake::{Initiator, NONCE_BYTES};
use link::ring::{WaitOn, WakeFor};
use link::segment::{Segment, Writers};
use link::wake_fd::WakeFd;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sim::{Rng, explore};

/// An answer takes milliseconds; a sidecar that is kept busy or asleep never answers.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
/// How long an answer is waited for at a time.
const LOOK: Duration = Duration::from_millis(50);

fn number(rng: &mut Rng) -> u64 {
    let edges = [
        0,
        1,
        64,
        65,
        4096,
        1 << 32,
        1 << 47,
        1 << 60,
        u64::MAX - 1,
        u64::MAX,
    ];
    match rng.below(3) {
        0 => rng.next_u64(),
        1 => rng.range(0..100),
        _ => *rng.pick(&edges),
    }
}

/// Changes, cuts or lengthens bytes.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.extend((0..rng.below(600)).map(|_| rng.next_u64() as u8)),
            2 => drop(bytes.splice(at..at, number(rng).to_string().into_bytes())),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = rng.next_u64() as u8;
                }
            }
        }
    }
}

/// Somebody who does not know the key dials a sidecar's data port.
fn dial(rng: &mut Rng, gang: &Gang) {
    let node = rng.pick(&gang.nodes);
    let Ok(mut stream) = TcpStream::connect(node.address) else {
        return;
    };
    let identity = Identity {
        job: JobId::new(gang::UID),
        attempt: 1,
        party: Party::Sidecar {
            rank: rng.below(3) as u32,
        },
    };
    let nonce: [u8; NONCE_BYTES] = std::array::from_fn(|_| rng.next_u64() as u8);
    let key = link::handshake::Key::new([rng.next_u64() as u8; 32]);
    let (_, hello) = Initiator::new(key, identity, nonce);
    let mut bytes = hello.to_vec();
    damage(rng, &mut bytes);
    stream.write_all(&bytes).ok();
    if rng.chance(1, 2) {
        // A proof that proves nothing, and more.
        let proof: Vec<u8> = (0..rng.below(100)).map(|_| rng.next_u64() as u8).collect();
        stream.write_all(&proof).ok();
    }
    if rng.chance(1, 2) {
        stream.shutdown(Shutdown::Write).ok();
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .ok();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
    }
}

/// A segment that an earlier sidecar is said to have made.
fn restore_segment(rng: &mut Rng) -> ClientMessage {
    let any = number(rng);
    ClientMessage::RestoreSegment {
        segment: *rng.pick(&[0, 1, 2, u32::MAX]),
        bytes: *rng.pick(&[4096, 4096, 8192, any]),
    }
}

/// A segment as it should be, one that can be cut off under its readers, or none at all.
fn descriptor(rng: &mut Rng) -> OwnedFd {
    match rng.below(4) {
        0 => File::open("/dev/null").unwrap().into(),
        1 => {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let fd = rustix::fs::memfd_create("unsealed", flags).unwrap();
            rustix::fs::ftruncate(&fd, 4096).unwrap();
            fd
        }
        _ => {
            let segment = Segment::create("restored", 4096, Writers::Everybody).unwrap();
            segment.fd().try_clone_to_owned().unwrap()
        }
    }
}

/// Says something over an attach socket, with descriptors that may be none of ours.
fn say(rng: &mut Rng, channel: &AttachChannel) {
    let message = match rng.below(8) {
        5 => ClientMessage::Ranks {
            ranks: (0..rng.below(4)).map(|_| rng.below(3) as u32).collect(),
        },
        6 => ClientMessage::Group(RestoredGroup {
            group: rng.range(0..3),
            replicated: rng.chance(1, 2),
            priority: 0,
            delivered: number(rng),
            closed: rng.chance(1, 2),
            failed: rng.chance(1, 2),
        }),
        0 => ClientMessage::Attach {
            version: hfreduce_client::attach::VERSION + rng.below(2) as u32,
            local_rank: rng.below(3) as u32,
            again: rng.chance(1, 2).then(|| number(rng)),
            groups: rng.below(3) as u32,
        },
        4 => restore_segment(rng),
        1 => ClientMessage::Allocate { bytes: number(rng) },
        7 => ClientMessage::Whom { group: number(rng) },
        2 => ClientMessage::Free {
            segment: number(rng) as u32,
        },
        _ => ClientMessage::Detach,
    };
    let mut packet = serde_json::to_vec(&message).unwrap();
    damage(rng, &mut packet);
    if packet.is_empty() {
        return;
    }
    let fd = descriptor(rng);
    let fds: Vec<BorrowedFd<'_>> = vec![fd.as_fd(); rng.below(4)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let packet = [IoSlice::new(&packet)];
    rustix::net::sendmsg(channel, &packet, &mut control, SendFlags::NOSIGNAL).ok();
}

fn all_is_well(gang: &Gang, clients: &[Client]) {
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(move || {
                let result = run(client, sum(100), &f32s(&[1.0; 100])).unwrap();
                let world = gang.world() as f32;
                assert!(to_f32s(&result.result).iter().all(|&sum| sum == world));
            });
        }
    });
}

#[test]
fn sockets() {
    let gang = Gang::start(2, 1);
    let clients = [gang.client(0), gang.client(1)];
    explore(60, &[], |rng| {
        let mut channels = Vec::new();
        for _ in 0..8 {
            match rng.below(4) {
                0 => dial(rng, &gang),
                1 => channels.extend(AttachChannel::connect(&rng.pick(&gang.nodes).socket())),
                _ => {
                    if !channels.is_empty() {
                        let at = rng.below(channels.len());
                        say(rng, &channels[at]);
                    }
                }
            }
        }
        all_is_well(&gang, &clients);
    });
}

/// A process of the job that has attached as it should, and what it got.
struct Hostile {
    channel: AttachChannel,
    control: Arc<Segment>,
    wake_fd: WakeFd,
}

fn attach(rng: &mut Rng, gang: &Gang) -> Option<Hostile> {
    let channel = AttachChannel::connect(&gang.nodes[0].socket()).unwrap();
    let hello = ClientMessage::Attach {
        version: hfreduce_client::attach::VERSION,
        local_rank: 1,
        // One that claims to have been here before may be refused, and is then no neighbour.
        again: rng
            .chance(1, 4)
            .then(|| *rng.pick(&[0, 1, 1 << 40, 1 << 50])),
        groups: 0,
    };
    channel.send(&hello, &[]).unwrap();
    let said = wait_until_some(|| channel.receive_with_fds::<SidecarAnswer>().transpose());
    let Ok((SidecarAnswer::Attached { control_bytes, .. }, fds)) = said else {
        return None;
    };
    let [control, wake_fd] = <[_; 2]>::try_from(fds).unwrap();
    let control = Arc::new(Segment::open(control, control_bytes as usize).unwrap());
    let wake_fd = WakeFd::from_fd(wake_fd);
    Some(Hostile {
        channel,
        control,
        wake_fd,
    })
}

impl Hostile {
    fn misbehave(&self, rng: &mut Rng) {
        let Some((mut calls, mut outcomes)) = link::ring::client_ends(&self.control) else {
            return;
        };
        for _ in 0..1 + rng.below(12) {
            match rng.below(6) {
                0 | 1 => {
                    let input = SegmentRange {
                        segment: rng.below(3) as u32,
                        offset: *rng.pick(&[0, 64, 4096, 1 << 40]),
                    };
                    let call = sum(*rng.pick(&[0, 1, 100, 1 << 20, 1 << 62]));
                    let ticket = rng.range(0..4);
                    let submission = Submission::Call {
                        group: 0,
                        ticket,
                        call,
                        input,
                    };
                    let mut words = submission.encode();
                    for _ in 0..rng.below(3) {
                        words[rng.below(words.len())] = number(rng);
                    }
                    calls.push(&words).ok();
                }
                2 => {
                    let ticket = rng.range(0..4);
                    calls.push(&Submission::Release { ticket }.encode()).ok();
                }
                3 => {
                    let words = self.control.words();
                    let near_indices = *rng.pick(&[32, 32, words.len()]);
                    words[rng.below(near_indices)].store(number(rng), Ordering::SeqCst);
                }
                4 => say(rng, &self.channel),
                _ => {
                    outcomes.pop().ok();
                    outcomes.sleep(WaitOn::WakeFd, WakeFor::Anything).ok();
                }
            }
            self.wake_fd.notify();
        }
    }
}

/// What each rank brings to a sum of the world, in every element.
fn brought(client: &Client) -> f32 {
    client.standing().rank as f32 + 1.0
}

/// Calls a sum of the world, and does not wait for it.
fn call(client: &Client, count: u64) -> CallTicket {
    let input = vec![brought(client); count as usize];
    let input = (count > 0).then(|| filled(client, &f32s(&input)));
    client.submit(sum(count), input, PATIENCE).unwrap()
}

/// Comes in place of a process that has left without a call, and calls what the others wait for.
fn come_in_place_of(gang: &Gang, local_rank: u32, count: u64) -> Option<(Client, CallTicket)> {
    let successor = Client::attach(&gang.nodes[0].socket(), local_rank, LOOK).ok()?;
    let ticket = call(&successor, count);
    Some((successor, ticket))
}

/// The honest ranks add up among themselves, whatever their neighbour does: rightly, or they learn that it was lost.
fn sum_among(honest: &[Client; 2], groups: [Group; 2]) {
    const COUNT: usize = 300;
    let all: f32 = honest
        .iter()
        .map(|client| client.standing().rank as f32)
        .sum();
    let called = [0, 1].map(|at| call_sum_in(&honest[at], groups[at], COUNT));
    for (client, ticket) in honest.iter().zip(called) {
        match client.wait(ticket, ANSWERED_WITHIN) {
            Ok(output) => assert_eq!(to_f32s(&output.result), [all; COUNT]),
            Err(Error::Operation { text, .. }) => assert!(text.contains("rank 1"), "{text}"),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn neighbours() {
    explore(12, &[], |rng| {
        let gang = Gang::start(1, 3);
        let honest = [gang.client(0), gang.client(2)];
        let groups = thread::scope(|scope| {
            let open = |client: &Client| client.open(7, &[0, 2], true, PATIENCE).unwrap();
            let opened = honest
                .each_ref()
                .map(|client| scope.spawn(move || open(client)));
            opened.map(|opened| opened.join().unwrap())
        });
        let Some(hostile) = attach(rng, &gang) else {
            // It was sent away, and its place is free.
            let [one, other] = honest;
            all_is_well(&gang, &[one, gang.client(1), other]);
            return;
        };
        hostile.misbehave(rng);
        let count = *rng.pick(&[0, 100]);
        let tickets = honest.each_ref().map(|client| call(client, count));
        sum_among(&honest, groups);
        if rng.chance(1, 2) {
            hostile.misbehave(rng);
            sum_among(&honest, groups);
        }
        drop(hostile);
        let mut successor = None;
        let since = Instant::now();
        let mut answers = Vec::new();
        for (client, ticket) in honest.iter().zip(tickets) {
            let answered = wait_until_some(|| match client.wait(ticket, LOOK) {
                // It called the same, or it was let go and named.
                Ok(output) => Some(Ok(Some(output))),
                Err(Error::Operation { .. }) => Some(Ok(None)),
                // It left without a call: then another one may come for it, and is waited for.
                Err(Error::Timeout { .. }) => {
                    let came = successor.take();
                    successor = came.or_else(|| come_in_place_of(&gang, 1, count));
                    None
                }
                Err(other) => Some(Err(other)),
            });
            answers.push(answered.unwrap());
        }
        assert!(since.elapsed() < ANSWERED_WITHIN, "{:?}", since.elapsed());
        // The sidecar goes on: it answers the next one who comes.
        let refused = Client::attach(&gang.nodes[0].socket(), 7, PATIENCE);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("no local rank 7"), "{refused}");
        let Some((successor, ticket)) = successor else {
            return;
        };
        // Nobody was lost: all three have added up, and go on.
        answers.push(Some(successor.wait(ticket, PATIENCE).unwrap()));
        let [one, other] = honest;
        let clients = [one, successor, other];
        let all = clients.iter().map(brought).sum::<f32>();
        for output in answers {
            let result = output.unwrap().result;
            assert_eq!(to_f32s(&result), vec![all; count as usize]);
        }
        all_is_well(&gang, &clients);
    });
}
