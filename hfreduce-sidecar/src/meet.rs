//! How two neighbours that are connected and know each other go on: through memory that they share, where both run
//! on one machine and see the same files, else over the connection itself. Each side says over the connection what
//! it can; the one that has dialled tries, and both do what came out.
//!
//! That two sidecars are on one machine is shown by one reaching the other's socket with a token that came over
//! the authenticated connection: paths and even boot ids are alike in pods that share nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use wire::attach::{self, Channel, Listener};
use wire::transport::shared::Opening;
use wire::transport::{self, Tcp, Transport};

use crate::introduce::{HANDSHAKE_LIMIT, limit, nonce};

/// The socket in the run directory where neighbours of the same machine meet.
const SOCKET: &str = "neighbours.sock";
/// Longest offer: a path and a token.
const OFFER_LIMIT_BYTES: usize = 1 << 10;
/// Neighbours that have knocked and are not expected yet: ten at most are ours.
const EARLY_LIMIT: usize = 32;

/// How neighbours are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Preference {
    /// Through shared memory where both run on one machine, else over TCP.
    #[default]
    Auto,
    /// Over TCP always.
    Tcp,
}

/// Why two neighbours could not agree.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error("failed to agree on a transport")]
    Exchange(#[from] io::Error),
    /// The other side's words make no sense.
    #[error("failed to read a neighbour's offer of transports")]
    Offer(#[from] serde_json::Error),
    /// An offer that is too long.
    #[error("failed to read a neighbour's offer of transports: it has {0} bytes")]
    Length(usize),
    /// The shared memory could not be set up.
    #[error("failed to set up shared memory with a neighbour")]
    Transport(#[from] transport::Error),
    /// The socket could not be made.
    #[error(transparent)]
    Socket(#[from] attach::Error),
    /// The other side did not finish.
    #[error("failed to set up shared memory with a neighbour: it did not answer in time")]
    Late,
}

/// What a side can do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Offer {
    /// Where it listens for neighbours on its machine, and what they have to say there.
    #[serde(default)]
    shared: Option<Spot>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spot {
    path: PathBuf,
    token: String,
}

/// What is said at that place.
#[derive(Debug, Serialize, Deserialize)]
struct Knock {
    rank: u32,
    token: String,
}

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It has dialled.
    Dialled,
    /// It was dialled.
    Answered,
}

/// Where neighbours of the same machine are met.
#[derive(Debug)]
pub struct Meeting {
    rank: u32,
    here: Option<Here>,
}

struct Here {
    spot: Spot,
    listener: Listener,
    /// Who has knocked before it was expected.
    early: Mutex<BTreeMap<u32, Channel>>,
}

/// Without the token.
impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Here")
            .field("path", &self.spot.path)
            .finish_non_exhaustive()
    }
}

impl Meeting {
    /// A place for the neighbours of node `rank`, in its run directory.
    pub fn open(rank: u32, preference: Preference, run_dir: &Path) -> Result<Self, Error> {
        let here = match preference {
            Preference::Tcp => None,
            Preference::Auto => {
                let path = std::path::absolute(run_dir)?.join(SOCKET);
                let listener = Listener::bind(&path)?;
                let token = nonce()?.iter().map(|byte| format!("{byte:02x}")).collect();
                Some(Here {
                    spot: Spot { path, token },
                    listener,
                    early: Mutex::default(),
                })
            }
        };
        Ok(Self { rank, here })
    }

    /// Agrees with the neighbour `peer` at the other end of an authenticated connection.
    pub(crate) fn agree(
        &self,
        mut stream: TcpStream,
        peer: u32,
        side: Side,
    ) -> Result<Box<dyn Transport>, Error> {
        limit(&stream, Some(HANDSHAKE_LIMIT))?;
        let here = self.here.as_ref();
        let ours = Offer {
            shared: here.map(|here| here.spot.clone()),
        };
        say(&mut stream, &ours)?;
        let theirs = hear(&mut stream)?;
        let channel = match (here, theirs.shared, side) {
            (Some(_), Some(spot), Side::Dialled) => self.knock(&mut stream, &spot)?,
            (Some(here), Some(_), Side::Answered) => here.answer(&mut stream, peer)?,
            (None, _, _) | (_, None, _) => None,
        };
        limit(&stream, None)?;
        match channel {
            Some(channel) => finish(Opening::new(channel)?),
            None => Ok(Box::new(Tcp::new(stream)?)),
        }
    }

    /// Tries to reach the neighbour on this machine, and hears whether it agrees.
    fn knock(&self, stream: &mut TcpStream, spot: &Spot) -> Result<Option<Channel>, Error> {
        let knock = Knock {
            rank: self.rank,
            token: spot.token.clone(),
        };
        let channel = Channel::connect(&spot.path)
            .and_then(|channel| channel.send(&knock, &[]).map(|()| channel))
            .ok();
        stream.write_all(&[u8::from(channel.is_some())])?;
        let mut agreed = [0];
        stream.read_exact(&mut agreed)?;
        Ok(channel.filter(|_| agreed == [1]))
    }
}

impl Here {
    /// Finds the neighbour that says it has knocked, and says whether it is here.
    fn answer(&self, stream: &mut TcpStream, peer: u32) -> Result<Option<Channel>, Error> {
        let mut tried = [0];
        stream.read_exact(&mut tried)?;
        let channel = match tried {
            [1] => self.expect(peer),
            _ => None,
        };
        stream.write_all(&[u8::from(channel.is_some())])?;
        Ok(channel)
    }

    fn expect(&self, peer: u32) -> Option<Channel> {
        let start = Instant::now();
        // What a neighbour has sent before it said so is here already, unless it went to somebody else.
        while start.elapsed() < HANDSHAKE_LIMIT {
            let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(channel) = early.remove(&peer) {
                return Some(channel);
            }
            let channel = self.listener.accept().ok()??;
            let knock = channel.receive::<Knock>().ok().flatten();
            if let Some(knock) = knock.filter(|knock| knock.token == self.spot.token)
                && early.len() < EARLY_LIMIT
            {
                early.insert(knock.rank, channel);
            }
        }
        None
    }
}

fn say(stream: &mut TcpStream, offer: &Offer) -> Result<(), Error> {
    let words = serde_json::to_vec(offer)?;
    let length = u16::try_from(words.len()).map_err(|_| Error::Length(words.len()))?;
    stream.write_all(&[&length.to_le_bytes()[..], &words].concat())?;
    Ok(())
}

fn hear(stream: &mut TcpStream) -> Result<Offer, Error> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > OFFER_LIMIT_BYTES {
        return Err(Error::Length(length));
    }
    let mut words = vec![0; length];
    stream.read_exact(&mut words)?;
    Ok(serde_json::from_slice(&words)?)
}

/// Waits for the other side's mailbox.
fn finish(mut opening: Opening) -> Result<Box<dyn Transport>, Error> {
    let start = Instant::now();
    loop {
        match opening.finish()? {
            Ok(link) => return Ok(Box::new(link)),
            Err(unfinished) => opening = unfinished,
        }
        let left = HANDSHAKE_LIMIT.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Error::Late);
        }
        let limit = Timespec::try_from(left.min(Duration::from_secs(1))).ok();
        let mut fds = [PollFd::new(&opening, PollFlags::IN)];
        rustix::event::poll(&mut fds, limit.as_ref()).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// The transports on which two sides agree.
    fn agreed(one: &Meeting, other: &Meeting) -> [&'static str; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (answered, _) = listener.accept().unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| other.agree(answered, one.rank, Side::Answered));
            let one = one.agree(dialled, other_rank(one), Side::Dialled).unwrap();
            [one.name(), other.join().unwrap().unwrap().name()]
        })
    }

    fn other_rank(one: &Meeting) -> u32 {
        1 - one.rank
    }

    fn meetings(preferences: [Preference; 2]) -> ([Meeting; 2], tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let meeting = |rank: usize| {
            let folder = dir.path().join(rank.to_string());
            std::fs::create_dir(&folder).unwrap();
            Meeting::open(rank as u32, preferences[rank], &folder).unwrap()
        };
        ([0, 1].map(meeting), dir)
    }

    #[test]
    fn neighbours_that_see_each_others_files_share_memory() {
        let ([one, other], _dir) = meetings([Preference::Auto; 2]);
        assert_eq!(agreed(&one, &other), ["shared memory"; 2]);
    }

    #[test]
    fn one_side_that_wants_tcp_gets_it() {
        for preferences in [
            [Preference::Tcp, Preference::Auto],
            [Preference::Auto, Preference::Tcp],
        ] {
            let ([one, other], _dir) = meetings(preferences);
            assert_eq!(agreed(&one, &other), ["tcp"; 2]);
        }
    }

    // Every pod calls its run directory the same.
    #[test]
    fn a_socket_of_the_same_name_that_is_somebody_elses_is_not_taken_for_the_neighbours() {
        let ([mut one, mut other], _dir) = meetings([Preference::Auto; 2]);
        let mine = one.here.as_mut().unwrap();
        other.here.as_mut().unwrap().spot.path = mine.spot.path.clone();
        assert_eq!(agreed(&one, &other), ["tcp"; 2]);
        let ([one, mut other], _dir) = meetings([Preference::Auto; 2]);
        other.here.as_mut().unwrap().spot.path = PathBuf::from("/nowhere/at/all");
        assert_eq!(agreed(&one, &other), ["tcp"; 2]);
    }
}
