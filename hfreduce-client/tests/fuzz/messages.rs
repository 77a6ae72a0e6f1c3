//! Messages of a process to its sidecar, with descriptors, and back.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use hfreduce_client::attach::{
    AttachChannel, ClientMessage, Listener, Members, RestoredGroup, SidecarAnswer, Standing,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sim::{Rng, damage, explore};

/// Two ends of a socket.
pub(crate) fn channels() -> (AttachChannel, AttachChannel) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let one = AttachChannel::connect(&path).unwrap();
    (one, listener.accept().unwrap().unwrap())
}

/// Sends a packet as it is. False when there is no room.
pub(crate) fn send_raw(channel: &AttachChannel, packet: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let packet = [IoSlice::new(packet)];
    rustix::net::sendmsg(channel, &packet, &mut control, SendFlags::NOSIGNAL).is_ok()
}

pub(crate) fn to_sidecar(rng: &mut Rng) -> ClientMessage {
    match rng.below(8) {
        0 => ClientMessage::Attach {
            version: hfreduce_client::attach::VERSION,
            local_rank: rng.range(0..4) as u32,
            again: rng.chance(1, 2).then(|| damage::number(rng)),
            groups: rng.range(0..3) as u32,
        },
        5 => ClientMessage::Ranks {
            ranks: (0..rng.below(9))
                .map(|_| damage::number(rng) as u32)
                .collect(),
        },
        6 => ClientMessage::Group(RestoredGroup {
            group: damage::number(rng),
            replicated: rng.chance(1, 2),
            priority: damage::number(rng) as i8,
            delivered: damage::number(rng),
            closed: rng.chance(1, 2),
            failed: rng.chance(1, 2),
        }),
        4 => ClientMessage::RestoreSegment {
            segment: rng.range(0..4) as u32,
            bytes: damage::number(rng),
        },
        1 => ClientMessage::Allocate {
            bytes: damage::number(rng),
        },
        7 => ClientMessage::Whom {
            group: damage::number(rng),
        },
        2 => ClientMessage::Free {
            segment: rng.range(0..4) as u32,
        },
        _ => ClientMessage::Detach,
    }
}

fn to_client(rng: &mut Rng) -> SidecarAnswer {
    let (segment, bytes) = (rng.range(0..9) as u32, damage::number(rng));
    match rng.below(10) {
        9 => SidecarAnswer::Waits {
            whom: format!("rank {segment}"),
        },
        5 => SidecarAnswer::Taken { segment },
        7 => SidecarAnswer::Noted,
        8 => SidecarAnswer::Over {
            groups: vec![bytes; rng.below(4)],
        },
        6 => SidecarAnswer::Members(Members {
            epoch: damage::number(rng),
            ranks: 5,
            runs: vec![(0, 3), (5, damage::number(rng) as u32)],
        }),
        0 => SidecarAnswer::Attached {
            control_bytes: bytes,
            patience_seconds: 10,
            standing: Standing {
                attempt: 1,
                epoch: 1,
                node: 0,
                nodes: 1,
                local_rank: 0,
                local_world: 1,
                rank: 0,
                world: 1,
            },
        },
        1 => SidecarAnswer::Input { segment, bytes },
        2 => SidecarAnswer::Result { segment, bytes },
        3 => SidecarAnswer::Gone { segment },
        _ => SidecarAnswer::Refused {
            reason: "no such rank".to_owned(),
        },
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn attach() {
    let (client, sidecar) = channels();
    let null = File::open("/dev/null").unwrap();
    let open = open_files();
    explore(4_000, &[], |rng| {
        let packet = |rng: &mut Rng| match rng.below(2) {
            0 => serde_json::to_vec(&to_sidecar(rng)).unwrap(),
            _ => serde_json::to_vec(&to_client(rng)).unwrap(),
        };
        let (mut bytes, other) = (packet(rng), packet(rng));
        damage::anyhow(rng, &mut bytes, &other);
        if bytes.is_empty() {
            return; // That is the end of the connection.
        }
        let fds = vec![null.as_fd(); rng.below(7)];
        assert!(send_raw(&client, &bytes, &fds));
        if rng.chance(1, 2) {
            let received = sidecar.receive_with_fds::<ClientMessage>();
            assert!(!matches!(received, Ok(None)), "something was there");
        } else {
            let received = sidecar.receive::<SidecarAnswer>();
            assert!(!matches!(received, Ok(None)), "something was there");
        }
        // Whatever came, the next message is the next one.
        let message = to_sidecar(rng);
        client.send(&message, &[]).unwrap();
        assert_eq!(sidecar.receive::<ClientMessage>().unwrap(), Some(message));
    });
    // Other tests open and close files meanwhile, but not thousands.
    assert!(open_files() < open + 1000, "descriptors are not closed");
}
