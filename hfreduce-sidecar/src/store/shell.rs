//! The thread's own: its sockets, who is at the other end of them, and the replica between them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use store::{Answer, BYTES_LIMIT, Call, ClientId, Command, Effect, Input, Message, Replica};
use tracing::{debug, info, warn};
use wire::bell::Bell;
use wire::handshake::Party;
use wire::store::{FRAME_LIMIT_BYTES, Reply, Request, Word};

use super::Order;
use super::connection::Connection;
use super::guests::{Arrival, Guests, MARK};
use crate::dial::propose;
use crate::introduce::{Credentials, Error, initiate};

/// Sessions of this node: 64 threads of each of 16 processes.
const SESSION_LIMIT: usize = 1 << 10;
/// Largest message of a member: all that the store keeps, and what describes it.
const MESSAGE_LIMIT_BYTES: usize = BYTES_LIMIT + (64 << 20);
/// How often the thread looks whether it should go on.
const LOOK: Duration = Duration::from_secs(1);
/// How long a connection may take to be made.
const DIAL_LIMIT: Duration = Duration::from_secs(2);
/// First and longest pause between two tries: all nodes of a gang knock at one.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A process's session at its connection.
#[derive(Debug)]
struct Client {
    connection: Connection<UnixStream>,
    /// Known once it has asked.
    session: Option<u64>,
    /// Its request under way, and whether that is a cancellation.
    asks: Option<(u64, bool)>,
}

pub(super) struct Shell {
    rank: u32,
    credentials: Credentials,
    replica: Replica,
    listener: UnixListener,
    /// By an own number: a session is known later, if ever.
    clients: BTreeMap<u64, Client>,
    accepted: u64,
    /// Nobody new can be let in at the moment.
    shut: bool,
    /// The connection of each session.
    sessions: BTreeMap<u64, u64>,
    epoch: u64,
    /// Where the first member is, for another.
    first: Option<(u32, SocketAddr)>,
    peers: BTreeMap<u32, Connection<TcpStream>>,
    guests: Guests,
    arrivals: (Sender<Arrival>, Receiver<Arrival>),
    /// Ends the dialling of an earlier epoch.
    over: Arc<AtomicBool>,
    bell: Arc<Bell>,
    /// Why nothing goes on.
    given_up: Option<String>,
}

impl Shell {
    pub(super) fn new(
        rank: u32,
        credentials: Credentials,
        listener: UnixListener,
        guests: Guests,
        bell: Arc<Bell>,
    ) -> Self {
        Self {
            rank,
            credentials,
            replica: Replica::new(rank),
            listener,
            clients: BTreeMap::new(),
            accepted: 0,
            shut: false,
            sessions: BTreeMap::new(),
            epoch: 0,
            first: None,
            peers: BTreeMap::new(),
            guests,
            arrivals: channel(),
            over: Arc::default(),
            bell,
            given_up: None,
        }
    }

    pub(super) fn obey(&mut self, order: Order) {
        match order {
            Order::Enter {
                epoch,
                members,
                from_start,
            } if epoch > self.epoch => self.enter(epoch, &members, from_start),
            Order::Enter { .. } => {}
            Order::GiveUp(reason) => {
                for client in self.clients.keys().copied().collect::<Vec<_>>() {
                    self.refuse(client, &reason);
                }
                self.given_up = Some(reason);
            }
        }
    }

    fn enter(&mut self, epoch: u64, members: &[(u32, SocketAddr)], from_start: bool) {
        self.epoch = epoch;
        self.over.store(true, Ordering::Release);
        self.over = Arc::default();
        self.peers.clear();
        let ranks: Vec<u32> = members.iter().map(|(rank, _)| *rank).collect();
        let first = members
            .first()
            .copied()
            .filter(|(first, _)| *first != self.rank);
        self.first = first;
        info!(
            epoch,
            first = first.map_or(self.rank, |first| first.0),
            "the store goes on in an epoch"
        );
        self.replica.handle(Input::Enter {
            epoch,
            members: ranks.clone(),
            from_start,
        });
        let others: BTreeSet<u32> = match first {
            None => ranks
                .into_iter()
                .filter(|rank| *rank != self.rank)
                .collect(),
            Some(_) => BTreeSet::new(),
        };
        let arrivals = self.arrivals.0.clone();
        self.guests
            .expect(epoch, others, arrivals, Arc::clone(&self.bell));
        self.dial();
    }

    /// Connects to the first member, if it is another.
    fn dial(&self) {
        let Some((peer, address)) = self.first else {
            return;
        };
        let (epoch, over) = (self.epoch, Arc::clone(&self.over));
        let (arrivals, bell) = (self.arrivals.0.clone(), Arc::clone(&self.bell));
        let credentials = self.credentials.clone();
        let dial = move || {
            let (mut pause, longest) = BACKOFF;
            while !over.load(Ordering::Acquire) {
                match connect((peer, address), epoch, &credentials) {
                    Ok(stream) => {
                        arrivals.send((epoch, peer, stream)).ok();
                        bell.ring();
                        return;
                    }
                    Err(error) => {
                        debug!(peer, %address, %error, "the store's first member is not there yet");
                    }
                }
                thread::sleep(pause);
                pause = (pause * 2).min(longest);
            }
        };
        let spawned = thread::Builder::new()
            .name("store-dial".to_owned())
            .spawn(dial);
        if let Err(error) = spawned {
            warn!(%error, "failed to start a thread");
        }
    }

    /// Sleeps until something happens, and does what follows from it.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let (clients, peers) = self.sleep()?;
        self.bell.clear();
        self.take_arrivals();
        self.accept();
        for (client, ready) in clients {
            self.serve(client, ready);
        }
        for (peer, ready) in peers {
            self.listen(peer, ready);
        }
        for effect in self.replica.effects() {
            self.carry_out(effect);
        }
        Ok(())
    }

    /// Which connections are ready, and for what.
    #[expect(clippy::type_complexity, reason = "two lists of the same")]
    fn sleep(&self) -> io::Result<(Vec<(u64, PollFlags)>, Vec<(u32, PollFlags)>)> {
        // Whoever knocks at a shut door would wake the thread for nothing, without end.
        let door = if self.shut {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = vec![
            PollFd::new(&*self.bell, PollFlags::IN),
            PollFd::new(&self.listener, door),
        ];
        let own = fds.len();
        let clients = self.clients.values().map(|client| &client.connection);
        fds.extend(clients.map(|one| PollFd::new(&one.stream, one.wants())));
        let peers = self.peers.values();
        fds.extend(peers.map(|one| PollFd::new(&one.stream, one.wants())));
        let limit = Timespec::try_from(LOOK).ok();
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = fds[own..].iter().map(PollFd::revents);
        let clients = self.clients.keys().copied().zip(ready.by_ref()).collect();
        let peers = self.peers.keys().copied().zip(ready).collect();
        Ok((clients, peers))
    }

    fn take_arrivals(&mut self) {
        let arrived: Vec<Arrival> = self.arrivals.1.try_iter().collect();
        for (epoch, peer, stream) in arrived {
            if epoch != self.epoch {
                continue;
            }
            if let Err(error) = stream
                .set_nonblocking(true)
                .and_then(|()| stream.set_nodelay(true))
            {
                warn!(%error, peer, "failed to set up a connection of the store");
                continue;
            }
            debug!(epoch, peer, "the store is connected");
            let connection = Connection::new(stream, MESSAGE_LIMIT_BYTES, 2 * MESSAGE_LIMIT_BYTES);
            self.peers.insert(peer, connection);
            self.replica.handle(Input::Linked { peer });
        }
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.shut = false;
                    return;
                }
                Err(error) => {
                    if !self.shut {
                        warn!(%error, "failed to accept a process at the store, which has to wait");
                    }
                    self.shut = true;
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let connection = Connection::new(stream, FRAME_LIMIT_BYTES, 2 * FRAME_LIMIT_BYTES);
            self.accepted += 1;
            let client = Client {
                connection,
                session: None,
                asks: None,
            };
            self.clients.insert(self.accepted, client);
            let refused = match &self.given_up {
                Some(reason) => reason.clone(),
                // Sessions that are over count until the others know of it.
                None if self.clients.len().max(self.replica.pending()) > SESSION_LIMIT => {
                    format!("{SESSION_LIMIT} threads of this node use the store already")
                }
                None => continue,
            };
            self.refuse(self.accepted, &refused);
        }
    }

    /// Hears a process.
    fn serve(&mut self, number: u64, ready: PollFlags) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        if ready.is_empty() {
            return;
        }
        if client.connection.flush().is_err() {
            self.leave(number);
            return;
        }
        let mut requests = Vec::new();
        let read = client.connection.read(|frame| {
            let request = Request::decode(frame).map_err(|error| error.to_string())?;
            let command = match &request.body {
                Some(body) => Command::decode(body).map_err(|error| error.to_string())?,
                None => Command::Cancel,
            };
            requests.push((request, command));
            Ok(())
        });
        for (request, command) in requests {
            if let Err(reason) = self.ask(number, &request, command) {
                self.refuse(number, &reason);
                return;
            }
        }
        if let Err(reason) = read {
            // It hears why, if it is still there.
            self.refuse(number, &reason);
        }
    }

    fn ask(&mut self, number: u64, request: &Request, command: Command) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&number) else {
            return Ok(());
        };
        match client.session {
            None if self.sessions.contains_key(&request.session) => {
                return Err("another connection has this session".to_owned());
            }
            None => {
                client.session = Some(request.session);
                self.sessions.insert(request.session, number);
            }
            Some(session) if session != request.session => {
                return Err("a connection has one session".to_owned());
            }
            Some(_) => {}
        }
        client.asks = Some((request.sequence, command == Command::Cancel));
        self.replica.handle(Input::Called(Call {
            client: ClientId {
                node: self.rank,
                number: request.session,
            },
            sequence: request.sequence,
            command,
        }));
        Ok(())
    }

    /// Tells a process why it is not served, and parts.
    fn refuse(&mut self, number: u64, reason: &str) {
        if let Some(client) = self.clients.get_mut(&number) {
            let sequence = client.asks.map_or(1, |(sequence, _)| sequence);
            let word = Word::Refused(reason.to_owned());
            let reply = Reply { sequence, word };
            client.connection.send(&reply.encode()).ok();
        }
        self.leave(number);
    }

    /// A process has closed its connection, or ended.
    fn leave(&mut self, number: u64) {
        let left = self.clients.remove(&number);
        let Some(session) = left.and_then(|client| client.session) else {
            return;
        };
        self.sessions.remove(&session);
        self.replica.handle(Input::Left(ClientId {
            node: self.rank,
            number: session,
        }));
    }

    /// Hears a member.
    fn listen(&mut self, peer: u32, ready: PollFlags) {
        let Some(connection) = self.peers.get_mut(&peer) else {
            return;
        };
        if ready.is_empty() {
            return;
        }
        let mut messages = Vec::new();
        let flushed = connection.flush().map_err(|error| error.to_string());
        let read = flushed.and_then(|()| {
            connection.read(|frame| {
                messages.push(Message::decode(frame).map_err(|error| error.to_string())?);
                Ok(())
            })
        });
        for message in messages {
            self.replica.handle(Input::Received {
                from: peer,
                message,
            });
        }
        if let Err(reason) = read {
            self.part(peer, &reason);
        }
    }

    /// A connection with a member has ended. The member, or another in the next epoch, is connected to again.
    fn part(&mut self, peer: u32, reason: &str) {
        debug!(peer, reason, "a connection of the store has ended");
        if self.peers.remove(&peer).is_some() {
            self.dial();
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => {
                let frame = wire::store::frame(&[&message.encode()]);
                let sent = self.peers.get_mut(&to).map(|one| one.send(&frame));
                if let Some(Err(error)) = sent {
                    self.part(to, &error.to_string());
                }
            }
            Effect::Answer {
                client,
                sequence,
                answer,
            } => {
                let Some(&number) = self.sessions.get(&client.number) else {
                    return;
                };
                let Some(client) = self.clients.get_mut(&number) else {
                    return;
                };
                let asked = client.asks.take_if(|(asked, _)| *asked == sequence);
                let word = match (asked, &answer) {
                    (Some((_, true)), Answer::Nothing) => Word::Cancelled,
                    _ => Word::Answer(answer.encode()),
                };
                let reply = Reply { sequence, word };
                if client.connection.send(&reply.encode()).is_err() {
                    self.leave(number);
                }
            }
        }
    }
}

/// A connection with the first member, which agrees on the epoch.
fn connect(
    (peer, address): (u32, SocketAddr),
    epoch: u64,
    credentials: &Credentials,
) -> Result<TcpStream, Error> {
    let mut stream = TcpStream::connect_timeout(&address, DIAL_LIMIT)?;
    let theirs = initiate(&mut stream, credentials)?;
    match theirs.party {
        Party::Sidecar { rank } if rank == peer => {
            propose(&mut stream, epoch | MARK)?;
            Ok(stream)
        }
        Party::Sidecar { .. } | Party::Operator => Err(Error::Somebody {
            expected: peer as usize,
            answered: theirs,
        }),
    }
}
