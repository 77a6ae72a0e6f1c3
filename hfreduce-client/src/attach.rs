//! The unix socket between a trainer's processes and their sidecar: attaching, and handing over the
//! descriptors of segments. Packets keep their bounds, so a message is a packet. The sidecar makes
//! every segment and wake descriptor. Descriptors from a client are taken in one case: one that comes back to a sidecar
//! that has lost its memory restores the segments that an earlier one has made for it. Operations go over the rings.

mod message;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use message::{
    ClientMessage, GROUP_LIMIT, GROUPS_IN_PACKET, Members, OPERATION_LIMIT, RANKS_LIMIT,
    RestoredGroup, SidecarAnswer, Standing, VERSION,
};

/// Largest packet: the members of an attempt of 2,600 nodes of which every other one is lost.
const PACKET_LIMIT_BYTES: usize = 16 << 10;
/// Most descriptors in one packet: the control segment and the client's end of the wake descriptor.
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
    pub fn accept(&self) -> Result<Option<AttachChannel>, Error> {
        match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(AttachChannel(fd))),
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
pub struct AttachChannel(OwnedFd);

impl AsFd for AttachChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AttachChannel {
    /// Connects to the sidecar at `path`. Never waits: an error where too many others wait to be accepted.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let failed = |doing, source: Errno| Error::Socket {
            doing,
            path: path.display().to_string(),
            source: source.into(),
        };
        let address = SocketAddrUnix::new(path).map_err(|source| failed("name", source))?;
        let fd = socket(SocketFlags::NONBLOCK).map_err(|source| failed("create", source))?;
        rustix::net::connect(&fd, &address).map_err(|source| failed("connect to", source))?;
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
            // The other side has ended with something of ours unread. Before what it has said itself the kernel reports
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
    use link::segment::{Segment, SegmentView, Writers};

    fn pair() -> (AttachChannel, AttachChannel, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = Listener::bind(&path).unwrap();
        let client = AttachChannel::connect(&path).unwrap();
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
        let announced = SidecarAnswer::Result {
            segment: 1,
            bytes: segment.len() as u64,
        };
        server.send(&announced, &[segment.fd()]).unwrap();
        poll(&client);
        let (received, fds) = client.receive_with_fds::<SidecarAnswer>().unwrap().unwrap();
        assert_eq!(received, announced);
        assert_eq!(
            SegmentView::open(&fds[0], segment.len()).unwrap().bytes()[3],
            9
        );
        drop(server);
        poll(&client);
        let closed = client.receive_with_fds::<SidecarAnswer>();
        assert!(matches!(closed, Err(Error::Closed)));
    }

    #[test]
    fn last_words_arrive_also_from_who_has_not_read_everything() {
        let (server, client, _dir) = pair();
        let members = Members::new(1, &[0], 1);
        server.send(&SidecarAnswer::Members(members), &[]).unwrap();
        client.send(&ClientMessage::Detach, &[]).unwrap();
        drop(client);
        assert_eq!(server.receive().unwrap(), Some(ClientMessage::Detach));
        let end = server.receive::<ClientMessage>();
        assert!(matches!(end, Err(Error::Closed)), "{end:?}");
    }

    #[test]
    fn descriptors_of_a_client_are_not_taken() {
        let (server, client, _dir) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        client
            .send(&ClientMessage::Detach, &[writer.as_fd()])
            .unwrap();
        drop(writer);
        poll(&server);
        assert_eq!(server.receive().unwrap(), Some(ClientMessage::Detach));
        // The end comes when nobody holds the other side any more; a taken descriptor would be for good.
        poll(&reader);
        assert_eq!(rustix::io::read(&reader, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn who_connects_behind_too_many_others_gets_an_error_instead_of_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let _nobody_accepts = Listener::bind(&path).unwrap();
        let connect = |_| AttachChannel::connect(&path);
        let (waiting, refused): (Vec<_>, Vec<_>) =
            (0..2 * BACKLOG).map(connect).partition(Result::is_ok);
        assert!(waiting.len() >= BACKLOG as usize);
        assert!(
            matches!(refused[..], [Err(Error::Socket { .. }), ..]),
            "{refused:?}"
        );
    }

    #[test]
    fn garbage_is_refused_and_names_the_socket() {
        let (server, client, dir) = pair();
        rustix::net::send(&client, b"\xff\x00{", SendFlags::empty()).unwrap();
        poll(&server);
        assert!(matches!(
            server.receive::<ClientMessage>(),
            Err(Error::Parse(_))
        ));
        let missing = AttachChannel::connect(&dir.path().join("none")).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
