//! The loop of a service: what came over links, from disks and from the manager goes to members of chains, and what they want
//! done is done. One thread owns all of it.

mod links;
mod targets;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use chain_link::{Buffers, ChainMap, ChunkBytes, LARGE_BYTES, ReceivedFrame};
use craq::encoding::ChainFrame;
use craq::{ChainRefusal, ChainRequest, ChunkId, Edit, Effect, Input, Reader, Reply, Version};
use link::wake_fd::WakeFd;
use tracing::{error, warn};

use crate::io::{DiskDone, DiskRead, Failure};
use crate::service::{Command, ServiceError, ServiceTarget};
use crate::target::{ContentRead, EditOutcome};

pub(crate) use links::Ports;
use links::{Links, Source};
use targets::Targets;

/// The longest sleep: links that are lost are dialled again then.
const SLEEP: Duration = Duration::from_millis(500);
/// Frames of a link that are handled before the next link's: one, if it is large, which goes on to the next member while the
/// next comes.
const FRAMES_AT_ONCE: usize = 64;
/// Requests of clients that are not answered. Nothing more is read from clients then.
const MOST_REQUESTS: usize = 4096;
/// Bytes of those of them that write. More are refused for now, so that reads go on while a chain waits for a member. What
/// other services send is bounded by the same limit there.
const MOST_WRITE_BYTES: u64 = 256 << 20;

/// For whom a content is read.
#[derive(Debug)]
pub(crate) enum ReadFor {
    /// A client.
    Reader(Reader),
    /// Another member.
    Member,
}

/// A content that is read.
#[derive(Debug)]
pub(crate) struct ReadOf {
    chain: u32,
    chunk: ChunkId,
    version: Version,
    whom: ReadFor,
}

/// A request of a client that is not answered.
#[derive(Debug)]
struct OpenRequest {
    /// Over which connection it came.
    connection: u64,
    /// The client's number for it.
    number: u64,
    chain: u32,
    /// At which version of the chain.
    version: u64,
    /// What it writes.
    bytes: u64,
}

/// The state of the loop.
#[derive(Debug)]
pub(crate) struct Engine {
    links: Links,
    targets: Targets,
    buffers: Arc<Buffers>,
    map: Arc<ChainMap>,
    /// The first of them is being handled.
    inputs: VecDeque<(u32, Input<ChunkBytes>)>,
    requests: BTreeMap<u64, OpenRequest>,
    last_request: u64,
    /// Of the open requests.
    write_bytes: u64,
    commands: Receiver<Command>,
    done: Receiver<(usize, DiskDone<ReadOf>)>,
    wakes: Arc<WakeFd>,
}

impl Engine {
    pub(crate) fn new(
        number: u32,
        ports: Ports,
        targets: Vec<ServiceTarget>,
        buffers: &Arc<Buffers>,
        (wakes, commands): (Arc<WakeFd>, Receiver<Command>),
    ) -> Result<Self, ServiceError> {
        let (sender, done): (Sender<(usize, DiskDone<ReadOf>)>, _) = channel();
        let targets = Targets::open(targets, buffers, (&sender, &wakes))?;
        Ok(Self {
            links: Links::new(number, ports, buffers),
            targets,
            buffers: Arc::clone(buffers),
            map: Arc::default(),
            inputs: VecDeque::new(),
            requests: BTreeMap::new(),
            last_request: 0,
            write_bytes: 0,
            commands,
            done,
            wakes,
        })
    }

    pub(crate) fn run(mut self) {
        while self.turn() {
            self.links.flush();
            if let Err(error) = self.sleep() {
                error!(%error, "failed to wait for links: the service ends");
                return;
            }
        }
    }

    fn sleep(&mut self) -> io::Result<()> {
        let hears_clients = self.requests.len() < MOST_REQUESTS;
        let most = self
            .targets
            .next_write()
            .map_or(SLEEP, |next| next.min(SLEEP));
        self.links.wait(&self.wakes, hears_clients, most)
    }

    /// Handles what has come. False: the service ends.
    fn turn(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Follow(map) => self.follow(map),
                Command::Status(answer) => {
                    // Who asked may have gone.
                    answer.send(self.targets.status()).ok();
                }
                Command::Stop => return false,
            }
        }
        for service in self.links.establish() {
            self.connected(service);
        }
        while let Ok((target, done)) = self.done.try_recv() {
            self.disk_did(target, done);
        }
        for source in self.links.ready() {
            for _ in 0..FRAMES_AT_ONCE {
                let Some(frame) = self.links.receive(source) else {
                    break;
                };
                let is_large = frame.bytes >= LARGE_BYTES;
                self.received(source, frame);
                if is_large {
                    break;
                }
            }
        }
        self.requests_of_gone_clients();
        self.work();
        true
    }

    fn follow(&mut self, map: Arc<ChainMap>) {
        self.map = map;
        self.links.follow(&self.map);
        for (&chain, of) in &self.map.chains {
            self.targets.join(chain, of);
        }
        let gone: Vec<u32> = self
            .targets
            .chains()
            .filter(|chain| !self.map.chains.contains_key(chain))
            .collect();
        gone.into_iter().for_each(|chain| self.targets.leave(chain));
        let tables: Vec<_> = self
            .map
            .chains
            .iter()
            .map(|(chain, of)| (*chain, of.table.clone()))
            .collect();
        for (chain, table) in tables {
            self.input(chain, Input::Table(table));
        }
    }

    /// There is a new link to a service.
    fn connected(&mut self, service: u32) {
        let map = Arc::clone(&self.map);
        for (&chain, of) in &map.chains {
            if let Some(member) = of.member_on(service) {
                self.input(chain, Input::Connected(member));
            }
        }
    }

    fn received(&mut self, source: Source, received: ReceivedFrame) {
        let ReceivedFrame {
            chain,
            version,
            frame,
            ..
        } = received;
        let Ok(chain) = u32::try_from(chain) else {
            return;
        };
        match (source, frame) {
            (Source::Service(service), ChainFrame::Message(message)) => {
                let of = self.map.chains.get(&chain);
                if let Some(from) = of.and_then(|of| of.member_on(service)) {
                    let input = Input::Message {
                        from,
                        version,
                        message,
                    };
                    self.input(chain, input);
                }
            }
            (Source::Client(connection), ChainFrame::Request { number, request }) => {
                self.last_request += 1;
                let client = self.last_request;
                let bytes = write_bytes(&request);
                self.write_bytes += bytes;
                let open = OpenRequest {
                    connection,
                    number,
                    chain,
                    version,
                    bytes,
                };
                self.requests.insert(client, open);
                if !self.targets.has(chain) {
                    let reply = Reply::Refused(ChainRefusal::NotReady);
                    return self.answer(client, &reply);
                }
                if bytes > 0 && self.write_bytes > MOST_WRITE_BYTES {
                    return self.answer(client, &Reply::Refused(ChainRefusal::Busy));
                }
                let input = Input::Request {
                    client,
                    version,
                    request,
                };
                self.input(chain, input);
            }
            // Members say messages, clients ask. Who says something else has a bug, or is none.
            (source, _) => self.links.cut(source, "it sent what is not for it to send"),
        }
    }

    /// Something happens to the member of a chain that is here. What follows from it is done first, and what that leads to
    /// afterwards, so that messages keep their order.
    fn input(&mut self, chain: u32, input: Input<ChunkBytes>) {
        self.inputs.push_back((chain, input));
        if self.inputs.len() > 1 {
            return;
        }
        while let Some((chain, input)) = self.inputs.front().cloned() {
            for effect in self.targets.handle(chain, input) {
                self.carry_out(chain, effect);
            }
            self.inputs.pop_front();
        }
    }

    fn carry_out(&mut self, chain: u32, effect: Effect<ChunkBytes>) {
        match effect {
            Effect::Send {
                to,
                version,
                message,
            } => {
                let of = self.map.chains.get(&chain);
                if let Some(service) = of.and_then(|of| of.service_of(to)) {
                    let frame = ChainFrame::Message(message);
                    self.links
                        .send(Source::Service(service), (chain, version), &frame);
                }
            }
            Effect::Load { chunk, version } => self.read(chain, chunk, version, ReadFor::Member),
            Effect::Serve {
                reader,
                chunk,
                version,
            } => self.read(chain, chunk, version, ReadFor::Reader(reader)),
            Effect::Answer { client, reply } => self.answer(client, &reply),
            Effect::Broken { chunk, why } => {
                error!(chain, ?chunk, why, "the chain stops at this member");
            }
        }
    }

    fn read(&mut self, chain: u32, chunk: ChunkId, version: Version, whom: ReadFor) {
        let range = match &whom {
            ReadFor::Reader(reader) => reader.offset..reader.offset.saturating_add(reader.length),
            ReadFor::Member => 0..u32::MAX,
        };
        let who = ReadOf {
            chain,
            chunk,
            version,
            whom,
        };
        match self.targets.read(chain, chunk, version, range) {
            Ok(ContentRead::Plan(guard, plan)) => {
                let read = DiskRead { guard, plan, who };
                self.targets.start_read(chain, read);
            }
            Ok(ContentRead::Nothing) => match self.buffers.nothing() {
                Ok(bytes) => self.has_read(who, Ok(bytes)),
                Err(error) => self.has_read(who, Err(Failure::Memory(error.to_string()))),
            },
            Err(ChainRefusal::Damaged) => self.is_damaged(who),
            Err(why) => self.has_not_read(&who, why),
        }
    }

    fn has_read(&mut self, who: ReadOf, read: Result<ChunkBytes, Failure>) {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(Failure::Bad(_)) => return self.is_damaged(who),
            Err(Failure::Disk(error)) => {
                warn!(%error, "failed to read a chunk");
                return self.has_not_read(&who, ChainRefusal::Busy);
            }
            Err(Failure::Memory(error)) => {
                warn!(error, "failed to read a chunk");
                return self.has_not_read(&who, ChainRefusal::Busy);
            }
        };
        let ReadOf {
            chain,
            chunk,
            version,
            whom,
        } = who;
        match whom {
            ReadFor::Member => {
                let input = Input::Loaded {
                    chunk,
                    version,
                    content: bytes,
                };
                self.input(chain, input);
            }
            ReadFor::Reader(reader) => {
                let Some(open) = self.close(reader.client) else {
                    return;
                };
                let frame = ChainFrame::Bytes {
                    number: open.number,
                    version,
                    bytes,
                };
                let source = Source::Client(open.connection);
                self.links.send(source, (chain, open.version), &frame);
            }
        }
    }

    /// A client asks another member, or again.
    fn has_not_read(&mut self, who: &ReadOf, why: ChainRefusal) {
        match &who.whom {
            ReadFor::Reader(reader) => self.answer(reader.client, &Reply::Refused(why)),
            // A member that is not answered asks again over its next connection.
            ReadFor::Member => {
                warn!(chain = who.chain, %why, "a content for another member was not read");
            }
        }
    }

    fn is_damaged(&mut self, who: ReadOf) {
        warn!(chain = who.chain, chunk = ?who.chunk, "bytes of a chunk are damaged, and are repaired from the chain");
        if let ReadFor::Reader(_) = who.whom {
            self.has_not_read(&who, ChainRefusal::Damaged);
        }
        self.input(who.chain, Input::Damaged { chunk: who.chunk });
    }

    fn answer(&mut self, client: u64, reply: &Reply) {
        if let Some(open) = self.close(client) {
            let frame = ChainFrame::Reply {
                number: open.number,
                reply: *reply,
            };
            let about = (open.chain, open.version);
            self.links
                .send(Source::Client(open.connection), about, &frame);
        }
    }

    fn close(&mut self, client: u64) -> Option<OpenRequest> {
        let open = self.requests.remove(&client)?;
        self.write_bytes -= open.bytes;
        Some(open)
    }

    /// Nobody waits for their answers. Their writes may go on.
    fn requests_of_gone_clients(&mut self) {
        if !self.links.take_lost_clients() {
            return;
        }
        let Self {
            requests,
            links,
            write_bytes,
            ..
        } = self;
        requests.retain(|_, open| {
            let is_there = links.has_client(open.connection);
            if !is_there {
                *write_bytes -= open.bytes;
            }
            is_there
        });
    }

    fn disk_did(&mut self, target: usize, done: DiskDone<ReadOf>) {
        match done {
            DiskDone::Read(DiskRead { guard, plan, who }, read) => {
                self.targets.end_read(target, guard, &plan, &read);
                self.has_read(who, read);
            }
            DiskDone::Written(job, written) => self.targets.written(target, job, written),
            DiskDone::Flushed(sequence, flushed) => self.targets.flushed(target, sequence, flushed),
        }
    }

    /// Gives disks what there is to write, and members what was written.
    fn work(&mut self) {
        while let Some(event) = self.targets.next_event() {
            let (chunk, version) = (event.chunk, event.version);
            let input = match event.outcome {
                EditOutcome::Durable => Input::Durable { chunk, version },
                EditOutcome::Discarded => Input::Discarded { chunk, version },
                EditOutcome::Lost => Input::Lost { chunk, version },
            };
            self.input(event.chain, input);
        }
        self.targets.start_writes();
    }
}

fn write_bytes(request: &ChainRequest<ChunkBytes>) -> u64 {
    match request {
        ChainRequest::Write(write) => match &write.edit {
            Edit::Write { bytes, .. } | Edit::Replace { content: bytes } => bytes.len() as u64,
            Edit::Truncate { .. } | Edit::Remove => 0,
        },
        ChainRequest::Read { .. } => 0,
    }
}
