//! Events, and what comes of one: the records that change, or why it is refused.

use crate::chains::{self, ChainSpec};
use crate::record::{TableHead, TableRecord, TableUuid};
use crate::register::{self, PathVerdict, Registration};
use crate::sessions;
use crate::state::TableState;
use crate::{
    CHAIN_BITS, MOST_CHAINS, MOST_LISTS, MOST_MEMBERS, MOST_NAME_BYTES, MOST_PATHS,
    MOST_POOL_CHAINS, MOST_SERVICES, MOST_SESSIONS,
};

/// What is asked of the table. Each may be asked again: what is done already is not done twice, except that a client gets
/// another session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableEvent {
    /// The table of this file system begins, if it is not there.
    Begin {
        /// The file system's UUID.
        file_system: TableUuid,
    },
    /// A service has started, or has formatted a path.
    Register(Registration),
    /// Chains of a pool should be there.
    CreateChains {
        /// The pool.
        pool: String,
        /// What should be there.
        chains: Vec<ChainSpec>,
    },
    /// A client wants to write. An earlier session of its name ends.
    OpenSession {
        /// The client's name.
        client: String,
    },
    /// A session is over.
    EndSession {
        /// Its number.
        session: u64,
    },
}

/// What the asker learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableAnswer {
    /// It is so.
    Done,
    /// The number of the pool's newest list of chains; 0 if it has no chains.
    Created(u32),
    /// The service's number, and what is to be done with each path, in their order.
    Registered(u32, Vec<PathVerdict>),
    /// The session's number.
    Opened(u64),
}

/// What comes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStep {
    /// Records to write, all together; the head is among them unless there is nothing to write.
    pub records: Vec<TableRecord>,
    /// Whether that is all. If not, the event has to be asked again when these are written.
    pub is_complete: bool,
    /// Counts when it is complete.
    pub answer: TableAnswer,
}

/// Why an event is refused. Nothing changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableRefusal {
    /// The store has another file system's table.
    #[error(
        "the store holds the chain table of file system {found}, and the keys are of {asked}: use the keys that its data was made with, or an empty store"
    )]
    OtherFileSystem {
        /// What is there.
        found: TableUuid,
        /// What was asked for.
        asked: TableUuid,
    },
    /// A name that cannot be one.
    #[error("the {what} has {bytes} bytes: it needs 1 to {MOST_NAME_BYTES}")]
    Name {
        /// Whose name.
        what: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// An address that is none.
    #[error("{0:?} is no address: give an IP address and a port")]
    Address(String),
    /// Too many paths.
    #[error("a service has {0} paths: at most {MOST_PATHS} are possible")]
    Paths(usize),
    /// A path twice.
    #[error("the path {0} is given twice: name it once")]
    PathTwice(String),
    /// Too many services.
    #[error("there are {MOST_SERVICES} services already: no more are possible")]
    Services,
    /// A number that no chain can have.
    #[error("chain {0}: numbers of chains have {CHAIN_BITS} bits")]
    ChainNumber(u32),
    /// A chain of too few or too many members.
    #[error("chain {chain} has {members} members: it needs 1 to {MOST_MEMBERS}")]
    Members {
        /// Its number.
        chain: u32,
        /// How many.
        members: usize,
    },
    /// A target twice in a chain.
    #[error("chain {chain} has target {target} twice: members are different targets")]
    MemberTwice {
        /// Its number.
        chain: u32,
        /// The target.
        target: TableUuid,
    },
    /// A target that nobody brought.
    #[error("chain {chain}: target {target} is unknown: start the service that has it first")]
    UnknownTarget {
        /// Its number.
        chain: u32,
        /// The target.
        target: TableUuid,
    },
    /// A target of another pool.
    #[error(
        "chain {chain} of pool {asked}: target {target} belongs to pool {pool}: choose another target"
    )]
    OtherPool {
        /// Its number.
        chain: u32,
        /// Its pool.
        asked: String,
        /// The target.
        target: TableUuid,
        /// The target's pool.
        pool: String,
    },
    /// Two members that would be lost together.
    #[error(
        "chain {chain}: targets {one} and {other} are both on service {service}: choose targets of different services"
    )]
    SameService {
        /// Its number.
        chain: u32,
        /// A target.
        one: TableUuid,
        /// Another.
        other: TableUuid,
        /// Where they are.
        service: u32,
    },
    /// The number is taken.
    #[error(
        "chain {chain} is there with other targets: the table wins, and chains keep their targets"
    )]
    ChainExists {
        /// Its number.
        chain: u32,
    },
    /// Too many chains.
    #[error("{0} chains are too many: at most {MOST_CHAINS} are possible")]
    Chains(usize),
    /// Too many chains of a pool.
    #[error("pool {pool} would have {chains} chains: at most {MOST_POOL_CHAINS} are possible")]
    PoolChains {
        /// The pool.
        pool: String,
        /// How many.
        chains: usize,
    },
    /// Too many lists.
    #[error("there are {MOST_LISTS} lists of chains already: no pool can have more chains")]
    Lists,
    /// Too many sessions.
    #[error("{MOST_SESSIONS} sessions are open: no more are possible before one ends")]
    Sessions,
}

impl TableState {
    /// What comes of an event.
    pub fn step(&self, event: &TableEvent) -> Result<TableStep, TableRefusal> {
        match event {
            TableEvent::Begin { file_system } => self.begin(*file_system),
            TableEvent::Register(registration) => register::step(self, registration),
            TableEvent::CreateChains { pool, chains } => chains::step(self, pool, chains),
            TableEvent::OpenSession { client } => sessions::open(self, client),
            TableEvent::EndSession { session } => Ok(sessions::end(self, *session)),
        }
    }

    fn begin(&self, asked: TableUuid) -> Result<TableStep, TableRefusal> {
        let found = self.head().file_system;
        let nothing = TableStep {
            records: Vec::new(),
            is_complete: true,
            answer: TableAnswer::Done,
        };
        if self.head().revision == 0 {
            let head = TableHead {
                file_system: asked,
                ..TableHead::default()
            };
            return Ok(nothing.under(head));
        }
        if found != asked {
            return Err(TableRefusal::OtherFileSystem { found, asked });
        }
        Ok(nothing)
    }
}

impl TableStep {
    /// With the head, if there is anything to write: every change is a revision.
    pub(crate) fn with_head(self, head: TableHead) -> Self {
        if self.records.is_empty() {
            self
        } else {
            self.under(head)
        }
    }

    fn under(mut self, mut head: TableHead) -> Self {
        head.revision += 1;
        self.records.push(TableRecord::Head(head));
        self
    }
}

/// A name that can be one.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), TableRefusal> {
    match name.len() {
        1..=MOST_NAME_BYTES => Ok(()),
        bytes => Err(TableRefusal::Name { what, bytes }),
    }
}
