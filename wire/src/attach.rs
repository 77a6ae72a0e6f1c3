//! The unix socket between a trainer's processes and their sidecar: attaching, and handing over the
//! descriptors of segments. Packets keep their bounds, so a message is a packet. The sidecar makes
//! every segment and bell. Descriptors from a client are taken in one case: one that comes back to a sidecar
//! that has lost its memory lends what an earlier one has made for it. Operations go over the rings.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of socket, rings and entries together: the wheel in a trainer's image may be older or newer
/// than the sidecar, and a refusal names both.
pub const VERSION: u32 = 6;
/// Largest packet: the members of an attempt of 2,600 nodes of which every other one is lost.
const PACKET_LIMIT_BYTES: usize = 16 << 10;
/// No process has called as many operations: one in a microsecond for eight years.
pub const OPERATION_LIMIT: u64 = 1 << 48;
/// Groups of which one process tells a sidecar that has lost its memory: as many as a node may take part in, and as many
/// that ended with an epoch.
pub const GROUP_LIMIT: usize = 1024;
/// Groups in one [`ToClient::Over`].
pub const GROUPS_IN_PACKET: usize = 512;
/// Ranks in one [`ToSidecar::Ranks`].
pub const RANKS_LIMIT: usize = 1024;
/// Most descriptors in one packet: the control segment and the client's end of the bell.
const PACKET_FDS: usize = 2;
/// Connections the kernel holds for us before they are accepted: a node's processes at once.
const BACKLOG: i32 = 64;

/// Why the socket is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket could not be made or reached.
    #[error("failed to {doing} {path}")]
    Socket {
        /// What failed.
        doing: &'static str,
        /// The socket's path.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The connection failed.
    #[error("failed to exchange a message over the sidecar's socket")]
    Exchange(#[source] io::Error),
    /// The other side closed it.
    #[error("the sidecar's socket was closed by the other side")]
    Closed,
    /// The other side does not speak our protocol.
    #[error("failed to parse a message of the sidecar's socket")]
    Parse(#[source] serde_json::Error),
    /// A message came without the descriptors that belong to it, or with more.
    #[error("failed to accept a message of the sidecar's socket: {0} descriptors came with it")]
    Descriptors(usize),
    /// A message is too long.
    #[error("failed to send a message of {0} bytes over the sidecar's socket")]
    TooLong(usize),
}

/// What a process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ToSidecar {
    /// First: who this is.
    Attach {
        /// `VERSION` of the client.
        version: u32,
        /// Its rank on the node.
        local_rank: u32,
        /// For one that comes back to a sidecar started in place of another: its first operation of the world whose
        /// end it was not told, counted from 0. It calls those again, in their order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<u64>,
        /// How many other groups it tells of then, at most [`GROUP_LIMIT`].
        #[serde(default, skip_serializing_if = "is_zero")]
        groups: u32,
    },
    /// The next ranks of the group that it tells of next; at most [`RANKS_LIMIT`].
    Ranks {
        /// Global ranks, which ascend from message to message.
        ranks: Vec<u32>,
    },
    /// A group of these ranks that it has opened. These two come before anything is lent, and each is answered before
    /// the next.
    Group(Told),
    /// A segment for inputs that an earlier sidecar has made for it. With its descriptor. Answered before the
    /// next one is lent, and before anything is called.
    Lend {
        /// Its number, which it keeps.
        segment: u32,
        /// Its size.
        bytes: u64,
    },
    /// A segment for inputs is needed.
    Allocate {
        /// At least this large.
        bytes: u64,
    },
    /// A segment for inputs is not needed any more.
    Free {
        /// Its number.
        segment: u32,
    },
    /// Leaving on purpose.
    Detach,
}

/// What a process was told in a group other than the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// The number of the group.
    pub group: u64,
    /// Whether some of its ranks can go on without others.
    pub replicated: bool,
    /// Of what is computed for it.
    pub priority: i8,
    /// The first operation whose end it was not told. It calls those again, in their order.
    pub told: u64,
    /// Whether the one before has closed the group.
    pub closed: bool,
    /// Whether the group has failed for good: what is called in it fails.
    pub failed: bool,
}

fn is_zero(groups: &u32) -> bool {
    *groups == 0
}

/// What the sidecar says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ToClient {
    /// Attached. With two descriptors: the control segment, and the client's end of the bell.
    Welcome {
        /// Size of the control segment.
        control_bytes: u64,
        /// Where this process stands in the gang.
        standing: Standing,
        /// How long to look for another sidecar when this one is gone, in seconds. 0: what it knew goes with it.
        patience_seconds: u32,
    },
    /// The members of an epoch, before anything is told that they did together.
    Members(Members),
    /// What it was told of a group is noted.
    Noted,
    /// Groups that this process has closed and need not tell of any more: all ranks were told. Said before the answer to
    /// its next opening.
    Over {
        /// Their numbers; at most [`GROUPS_IN_PACKET`].
        groups: Vec<u64>,
    },
    /// A segment that was lent is in use again.
    Taken {
        /// Its number.
        segment: u32,
    },
    /// A segment for inputs, to be mapped for writing. With its descriptor.
    Input {
        /// Its number.
        segment: u32,
        /// Its size.
        bytes: u64,
    },
    /// A segment for results, to be mapped for reading. With its descriptor.
    Result {
        /// Its number.
        segment: u32,
        /// Its size.
        bytes: u64,
    },
    /// A segment for results is gone; its number will not be used again.
    Gone {
        /// Its number.
        segment: u32,
    },
    /// The last request is refused.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Where a process stands in the gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// The attempt.
    pub attempt: u32,
    /// The membership inside it.
    pub epoch: u64,
    /// Rank of the node.
    pub node: u32,
    /// Nodes of the gang.
    pub nodes: u32,
    /// Rank of the process on its node.
    pub local_rank: u32,
    /// Processes of its node.
    pub local_world: u32,
    /// Rank of the process.
    pub rank: u32,
    /// Processes of the gang.
    pub world: u32,
}

/// Who takes part in the operations of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Members {
    /// The epoch.
    pub epoch: u64,
    /// Processes on all of its nodes: what an average divides by.
    pub ranks: u32,
    /// Its nodes by their ranks in the attempt, as runs from a first to a last, ascending.
    pub runs: Vec<(u32, u32)>,
}

impl Members {
    /// The members of an epoch; `nodes` ascends, each with `local_world` processes.
    #[must_use]
    pub fn new(epoch: u64, nodes: &[u32], local_world: u32) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &node in nodes {
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(node) => *last = node,
                Some(_) | None => runs.push((node, node)),
            }
        }
        let ranks = (nodes.len() as u32).saturating_mul(local_world);
        Self { epoch, ranks, runs }
    }

    /// Its nodes, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.runs.iter().flat_map(|&(first, last)| first..=last)
    }
}

/// The sidecar's listening socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, in place of whatever an earlier sidecar left there.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let failed = |doing, source: Errno| Error::Socket {
            doing,
            path: path.display().to_string(),
            source: source.into(),
        };
        let address = SocketAddrUnix::new(path).map_err(|source| failed("name", source))?;
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(source) => return Err(failed("replace", source)),
        }
        let fd = socket(SocketFlags::NONBLOCK).map_err(|source| failed("create", source))?;
        rustix::net::bind(&fd, &address).map_err(|source| failed("bind", source))?;
        rustix::net::listen(&fd, BACKLOG).map_err(|source| failed("listen on", source))?;
        // The trainer may run as another user than the sidecar; the pod's own folder is the fence.
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::chmod(path, mode).map_err(|source| failed("open up", source))?;
        Ok(Self(fd))
    }

    /// The next connection, if one waits.
    pub fn accept(&self) -> Result<Option<Channel>, Error> {
        match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(Channel(fd))),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(source) => Err(Error::Exchange(source.into())),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection, at either end. It never blocks: poll it first.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    /// Connects to the sidecar at `path`.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let failed = |doing, source: Errno| Error::Socket {
            doing,
            path: path.display().to_string(),
            source: source.into(),
        };
        let address = SocketAddrUnix::new(path).map_err(|source| failed("name", source))?;
        let fd = socket(SocketFlags::empty()).map_err(|source| failed("create", source))?;
        rustix::net::connect(&fd, &address).map_err(|source| failed("connect to", source))?;
        rustix::io::ioctl_fionbio(&fd, true).map_err(|source| failed("set up", source))?;
        Ok(Self(fd))
    }

    /// Nothing is sent or received any more; the other side sees the end.
    pub fn shutdown(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both).ok();
    }

    /// Sends a message with its descriptors.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let packet = serde_json::to_vec(message).map_err(Error::Parse)?;
        if packet.len() > PACKET_LIMIT_BYTES {
            return Err(Error::TooLong(packet.len()));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::Descriptors(fds.len()));
        }
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(
                &self.0,
                &[IoSlice::new(&packet)],
                &mut control,
                SendFlags::NOSIGNAL,
            )
        });
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(Error::Closed),
            Err(source) => Err(Error::Exchange(source.into())),
        }
    }

    /// The next message, if one waits. Descriptors that come with it are closed unasked.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let mut packet = [0; PACKET_LIMIT_BYTES];
        self.packet(&mut packet, &mut RecvAncillaryBuffer::default())?
            .map(|bytes| serde_json::from_slice(&packet[..bytes]).map_err(Error::Parse))
            .transpose()
    }

    /// The next message with its descriptors, if one waits.
    pub fn receive_with_fds<T: DeserializeOwned>(
        &self,
    ) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
        let mut packet = [0; PACKET_LIMIT_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some(bytes) = self.packet(&mut packet, &mut control)? else {
            return Ok(None);
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let message = serde_json::from_slice(&packet[..bytes]).map_err(Error::Parse)?;
        Ok(Some((message, fds)))
    }

    fn packet(
        &self,
        packet: &mut [u8],
        control: &mut RecvAncillaryBuffer<'_>,
    ) -> Result<Option<usize>, Error> {
        let mut receive = || {
            rustix::io::retry_on_intr(|| {
                let into = &mut [IoSliceMut::new(packet)];
                rustix::net::recvmsg(&self.0, into, control, RecvFlags::CMSG_CLOEXEC)
            })
        };
        let received = match receive() {
            // The other side has ended with something of ours unread. Before what it has said itself the kernel tells
            // that, once.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        match received {
            // No message of ours is empty, so nothing means the end.
            Ok(message) if message.bytes == 0 => Err(Error::Closed),
            Ok(message) => Ok(Some(message.bytes)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::CONNRESET) => Err(Error::Closed),
            Err(source) => Err(Error::Exchange(source.into())),
        }
    }
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags | SocketFlags::CLOEXEC,
        None,
    )
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags};

    use super::*;
    use crate::segment::{Segment, View, Writers};

    fn pair() -> (Channel, Channel, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = Listener::bind(&path).unwrap();
        let client = Channel::connect(&path).unwrap();
        poll(&listener);
        let server = listener.accept().unwrap().unwrap();
        (server, client, dir)
    }

    fn poll(fd: &impl AsFd) {
        let limit = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1);
    }

    #[test]
    fn a_segment_passes_with_its_message() {
        let (server, client, _dir) = pair();
        let mut segment = Segment::create("test", 1, Writers::Creator).unwrap();
        segment.bytes_mut()[3] = 9;
        let announced = ToClient::Result {
            segment: 1,
            bytes: segment.len() as u64,
        };
        server.send(&announced, &[segment.fd()]).unwrap();
        poll(&client);
        let (heard, fds) = client.receive_with_fds::<ToClient>().unwrap().unwrap();
        assert_eq!(heard, announced);
        assert_eq!(View::open(&fds[0], segment.len()).unwrap().bytes()[3], 9);
        drop(server);
        poll(&client);
        let closed = client.receive_with_fds::<ToClient>();
        assert!(matches!(closed, Err(Error::Closed)));
    }

    #[test]
    fn members_are_told_as_runs_and_read_as_nodes() {
        let nodes = [0, 1, 2, 5, 7, 8];
        let members = Members::new(4, &nodes, 8);
        assert_eq!(members.runs, [(0, 2), (5, 5), (7, 8)]);
        assert_eq!((members.epoch, members.ranks), (4, 48));
        assert!(members.nodes().eq(nodes));
    }

    #[test]
    fn last_words_are_heard_also_from_who_has_not_read_everything() {
        let (server, client, _dir) = pair();
        let members = Members::new(1, &[0], 1);
        server.send(&ToClient::Members(members), &[]).unwrap();
        client.send(&ToSidecar::Detach, &[]).unwrap();
        drop(client);
        assert_eq!(server.receive().unwrap(), Some(ToSidecar::Detach));
        let end = server.receive::<ToSidecar>();
        assert!(matches!(end, Err(Error::Closed)), "{end:?}");
    }

    #[test]
    fn descriptors_of_a_client_are_not_taken() {
        let (server, client, _dir) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        client.send(&ToSidecar::Detach, &[writer.as_fd()]).unwrap();
        drop(writer);
        poll(&server);
        assert_eq!(server.receive().unwrap(), Some(ToSidecar::Detach));
        // The end comes when nobody holds the other side any more; a taken descriptor would be for good.
        poll(&reader);
        assert_eq!(rustix::io::read(&reader, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn garbage_is_refused_and_names_the_socket() {
        let (server, client, dir) = pair();
        rustix::net::send(&client, b"\xff\x00{", SendFlags::empty()).unwrap();
        poll(&server);
        assert!(matches!(
            server.receive::<ToSidecar>(),
            Err(Error::Parse(_))
        ));
        let missing = Channel::connect(&dir.path().join("none")).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
