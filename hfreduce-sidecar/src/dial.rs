//! Dialling a neighbour until it answers, and agreeing with it on the epoch.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::handshake::Party;
use tracing::{debug, warn};

use crate::frame::Link;
use crate::introduce::{Credentials, Error, HANDSHAKE_LIMIT, initiate, limit};
use crate::linker::Arrivals;
use crate::negotiate::{Negotiator, Side};

/// How long a connection may take to be made before it is tried again.
const DIAL_LIMIT: Duration = Duration::from_secs(2);
/// First and longest pause between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// After so long without an answer somebody should look: who starts late is there by then.
const LATE: Duration = Duration::from_secs(30);
/// What the door says once it agrees on the epoch.
pub(crate) const AGREED: [u8; 1] = [1];

/// A neighbour that is being dialled.
pub(crate) struct Dial {
    pub(crate) peer: usize,
    pub(crate) address: SocketAddr,
    pub(crate) epoch: u64,
    pub(crate) credentials: Credentials,
    pub(crate) over: Arc<AtomicBool>,
    /// Takes the connection, with the neighbour's rank.
    pub(crate) arrivals: Arrivals,
    pub(crate) negotiator: Arc<Negotiator>,
}

impl Dial {
    /// Dials from a thread of its own, until the link stands or its epoch is over.
    pub(crate) fn spawn(self) {
        let peer = self.peer;
        let named = thread::Builder::new().name(format!("dial-{peer}"));
        if let Err(error) = named.spawn(move || self.run()) {
            warn!(%error, peer, "failed to start a thread");
        }
    }

    fn run(&self) {
        let (mut pause, longest) = BACKOFF;
        let (begun, mut named) = (Instant::now(), false);
        while !self.over.load(Ordering::Acquire) {
            match self.once() {
                Ok(link) => {
                    self.arrivals.hand((self.peer, link));
                    return;
                }
                Err(Error::Exchange(error)) if !named && begun.elapsed() > LATE => {
                    named = true;
                    let (peer, address) = (self.peer, self.address);
                    warn!(peer, %address, %error, "this member does not answer at its data port, and is waited for");
                }
                Err(Error::Exchange(error)) => {
                    debug!(peer = self.peer, address = %self.address, %error, "not there yet");
                }
                Err(error) => warn!(peer = self.peer, address = %self.address, %error, "refused"),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }

    fn once(&self) -> Result<Link, Error> {
        let mut stream = TcpStream::connect_timeout(&self.address, DIAL_LIMIT)?;
        self.negotiator.tune(&stream)?;
        let theirs = initiate(&mut stream, &self.credentials)?;
        match theirs.party {
            Party::Sidecar { rank } if rank as usize == self.peer => {
                propose(&mut stream, self.epoch)?;
                Ok(self.negotiator.agree(stream, rank, Side::Dialled)?)
            }
            Party::Sidecar { .. } | Party::Operator => Err(Error::Somebody {
                expected: self.peer,
                answered: theirs,
            }),
        }
    }
}

/// Names the epoch to a neighbour that was dialled, and waits until it agrees.
pub(crate) fn propose(stream: &mut TcpStream, epoch: u64) -> io::Result<()> {
    limit(stream, Some(HANDSHAKE_LIMIT))?;
    stream.write_all(&epoch.to_le_bytes())?;
    let mut agreed = [0; AGREED.len()];
    stream.read_exact(&mut agreed)?;
    limit(stream, None)
}
