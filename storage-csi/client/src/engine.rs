//! The loop of a client: what came over links and what is asked goes to the clients of chains, and what they want done is
//! done.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use chain_link::{
    Buffers, ChainLink, ChainMap, ChunkBytes, Dialler, LinkError, MappedChain, ReceivedFrame, wait,
};
use craq::encoding::ChainFrame;
use craq::{ChainCall, ChainClient, ChainOutcome, ClientEffect, ClientInput, SessionId, TargetId};
use link::wake_fd::WakeFd;
use tracing::{debug, error, info, warn};

/// The time between two ticks of the clients of chains.
const TICK: Duration = Duration::from_millis(100);
/// Frames of a link that are handled before the next link's.
const FRAMES_AT_ONCE: usize = 64;

/// The function that takes the outcome of a call.
pub(crate) type Then = Box<dyn FnOnce(ChainOutcome<ChunkBytes>) + Send>;

/// What a client is asked to do.
pub(crate) enum Command {
    Follow(Arc<ChainMap>),
    Call {
        chain: u32,
        what: ChainCall<ChunkBytes>,
        then: Then,
    },
    Stop,
}

/// The state of the loop.
pub(crate) struct Engine {
    session: SessionId,
    dialler: Dialler,
    buffers: Arc<Buffers>,
    map: Arc<ChainMap>,
    links: BTreeMap<u32, ChainLink>,
    chains: BTreeMap<u32, ChainClient<ChunkBytes>>,
    calls: BTreeMap<u64, Then>,
    last_call: u64,
    ticked: Instant,
    commands: Receiver<Command>,
    wakes: Arc<WakeFd>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(
        session: SessionId,
        dialler: Dialler,
        buffers: &Arc<Buffers>,
        (wakes, commands): (Arc<WakeFd>, Receiver<Command>),
    ) -> Self {
        Self {
            session,
            dialler,
            buffers: Arc::clone(buffers),
            map: Arc::default(),
            links: BTreeMap::new(),
            chains: BTreeMap::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            ticked: Instant::now(),
            commands,
            wakes,
        }
    }

    pub(crate) fn run(mut self) {
        let mut ready = Vec::new();
        while self.turn(&ready) {
            self.flush();
            match self.sleep() {
                Ok(said) => ready = said,
                Err(error) => {
                    error!(%error, "failed to wait for links: the client ends");
                    return;
                }
            }
        }
    }

    fn sleep(&self) -> io::Result<Vec<u32>> {
        let most = TICK.saturating_sub(self.ticked.elapsed());
        let said = wait(&self.wakes, self.links.values(), most)?;
        let ready = self.links.keys().zip(said).filter(|(_, said)| *said);
        Ok(ready.map(|(service, _)| *service).collect())
    }

    /// Handles what has come. False: the client ends.
    fn turn(&mut self, ready: &[u32]) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Follow(map) => self.follow(map),
                Command::Call { chain, what, then } => {
                    self.last_call += 1;
                    let call = self.last_call;
                    self.calls.insert(call, then);
                    self.input(chain, ClientInput::Call { call, what });
                }
                Command::Stop => return false,
            }
        }
        self.establish();
        for &service in ready {
            for _ in 0..FRAMES_AT_ONCE {
                let received = self.links.get_mut(&service).map(ChainLink::receive);
                match received {
                    Some(Ok(Some(frame))) => self.received(frame),
                    Some(Ok(None)) | None => break,
                    Some(Err(error)) => self.lost(service, &error),
                }
            }
        }
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            let busy = self.chains.iter().filter(|(_, client)| !client.is_idle());
            let busy: Vec<u32> = busy.map(|(chain, _)| *chain).collect();
            for chain in busy {
                self.input(chain, ClientInput::Tick);
            }
            self.dial();
        }
        true
    }

    fn follow(&mut self, map: Arc<ChainMap>) {
        let before = std::mem::replace(&mut self.map, map);
        // A service that has moved is not the one that the link is to.
        for (service, address) in &before.services {
            if self.map.services.get(service) != Some(address) {
                self.dialler.forget(*service);
                self.disconnect(*service, &before);
            }
        }
        let tables: Vec<_> = self
            .chains
            .keys()
            .filter_map(|chain| Some((*chain, self.map.chains.get(chain)?.table.clone())))
            .collect();
        for (chain, table) in tables {
            self.input(chain, ClientInput::Table(table));
        }
        // A chain may have come, or have a member, that its client did not know when the link was made.
        let map = Arc::clone(&self.map);
        let linked: Vec<u32> = self.links.keys().copied().collect();
        for service in linked {
            self.members_on(service, &map, ClientInput::Connected);
        }
        self.dial();
    }

    fn dial(&mut self) {
        for (&service, address) in &self.map.services {
            if !self.links.contains_key(&service) {
                self.dialler.dial(service, address.clients);
            }
        }
    }

    fn establish(&mut self) {
        for (peer, link) in self.dialler.take_established() {
            info!(%peer, "linked");
            let link = ChainLink::new(link, Arc::clone(&self.buffers));
            self.links.insert(peer.number(), link);
            let map = Arc::clone(&self.map);
            self.members_on(peer.number(), &map, ClientInput::Connected);
        }
    }

    fn lost(&mut self, service: u32, error: &LinkError) {
        warn!(service, %error, "lost the link to a storage service");
        let map = Arc::clone(&self.map);
        self.disconnect(service, &map);
    }

    fn disconnect(&mut self, service: u32, map: &ChainMap) {
        if self.links.remove(&service).is_some() {
            self.members_on(service, map, ClientInput::Disconnected);
        }
    }

    /// Says something of each member on a service to the clients of its chains.
    fn members_on(
        &mut self,
        service: u32,
        map: &ChainMap,
        what: impl Fn(TargetId) -> ClientInput<ChunkBytes>,
    ) {
        let member = |chain: &u32| {
            let member = map.chains.get(chain)?.member_on(service)?;
            Some((*chain, member))
        };
        let members: Vec<_> = self.chains.keys().filter_map(member).collect();
        for (chain, member) in members {
            self.input(chain, what(member));
        }
    }

    fn received(&mut self, received: ReceivedFrame) {
        let Ok(chain) = u32::try_from(received.chain) else {
            return;
        };
        match received.frame {
            ChainFrame::Reply { number, reply } => {
                let request = number;
                self.input(chain, ClientInput::Reply { request, reply });
            }
            ChainFrame::Bytes {
                number,
                version,
                bytes,
            } => {
                let input = ClientInput::Bytes {
                    request: number,
                    version,
                    bytes,
                };
                self.input(chain, input);
            }
            // Nothing that a service says to a client.
            ChainFrame::Message(_) | ChainFrame::Request { .. } => {
                debug!(chain, "ignored a frame that is for members");
            }
        }
    }

    fn input(&mut self, chain: u32, input: ClientInput<ChunkBytes>) {
        if !self.chains.contains_key(&chain) {
            self.begin(chain);
        }
        let mut effects = Vec::new();
        if let Some(client) = self.chains.get_mut(&chain) {
            client.handle(input, &mut effects);
        }
        for effect in effects {
            self.carry_out(chain, effect);
        }
    }

    /// The first call of a chain.
    fn begin(&mut self, chain: u32) {
        let mut client = ChainClient::new(self.session);
        // Without a call it sends nothing.
        let mut effects = Vec::new();
        if let Some(MappedChain { table, services }) = self.map.chains.get(&chain) {
            client.handle(ClientInput::Table(table.clone()), &mut effects);
            for (service, member) in services.iter().zip(&table.members) {
                if self.links.contains_key(service) {
                    client.handle(ClientInput::Connected(member.target), &mut effects);
                }
            }
        }
        self.chains.insert(chain, client);
    }

    fn carry_out(&mut self, chain: u32, effect: ClientEffect<ChunkBytes>) {
        match effect {
            ClientEffect::Send {
                to,
                version,
                request,
                what,
            } => {
                let of = self.map.chains.get(&chain);
                let service = of.and_then(|of| of.service_of(to));
                let Some(service) = service else {
                    return;
                };
                let Some(link) = self.links.get_mut(&service) else {
                    return;
                };
                let frame = ChainFrame::Request {
                    number: request,
                    request: what,
                };
                if let Err(error) = link.send(chain.into(), version, &frame) {
                    self.lost(service, &error);
                }
            }
            ClientEffect::End { call, outcome } => {
                if let Some(then) = self.calls.remove(&call) {
                    then(outcome);
                }
            }
        }
    }

    fn flush(&mut self) {
        let mut lost = Vec::new();
        for (service, link) in &mut self.links {
            if let Err(error) = link.flush() {
                lost.push((*service, error));
            }
        }
        for (service, error) in lost {
            self.lost(service, &error);
        }
    }
}
