//! The table in this process: as it was last read, and how it is changed. Every change depends on the head, which every
//! change writes: whoever commits has seen the whole table as it is.

use std::sync::Arc;

use chain_table::{
    DamagedRecord, HEAD_KEY, TableAnswer, TableEvent, TableHead, TableRecord, TableRefusal,
    TableState,
};
use kv::{CommitError, KvError, KvSnapshot, KvStore, KvTransaction, MOST_LISTED};
use tokio::sync::{Mutex, watch};
use tracing::{debug, info};

/// Before the key of each record.
const PREFIX: &str = "chain-table/";
/// How often one change may meet another, or not learn its outcome.
const MOST_ATTEMPTS: u32 = 64;

/// Why nothing has changed, or only a part has. The event may be asked again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// It may not.
    #[error(transparent)]
    Refused(#[from] TableRefusal),
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] KvError),
    /// A record cannot be.
    #[error(transparent)]
    Damaged(#[from] DamagedRecord),
    /// The store does not take it.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

/// Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct TableKeeper(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: KvStore,
    /// As it was last read or written. Its revision never falls.
    state: watch::Sender<Arc<TableState>>,
    /// Changes of this process do not meet one another.
    turn: Mutex<()>,
}

impl TableKeeper {
    pub(crate) fn new(store: KvStore) -> Self {
        Self(Arc::new(Inner {
            store,
            state: watch::Sender::default(),
            turn: Mutex::default(),
        }))
    }

    /// The table as this process knows it.
    pub(crate) fn state(&self) -> Arc<TableState> {
        self.0.state.borrow().clone()
    }

    /// The table, and every later one that this process learns of, except those that are replaced before they are seen.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<TableState>> {
        self.0.state.subscribe()
    }

    /// Reads the table again, if it has changed.
    pub(crate) async fn refresh(&self) -> Result<(), ChangeError> {
        let mut snapshot = self.0.store.snapshot();
        self.read(&mut snapshot).await?;
        Ok(())
    }

    /// Changes the table as an event says, in one transaction or several. Answers also at which revision that was so.
    pub(crate) async fn change(
        &self,
        event: &TableEvent,
    ) -> Result<(TableAnswer, u64), ChangeError> {
        let _turn = self.0.turn.lock().await;
        let mut attempts = 0;
        loop {
            let mut snapshot = self.0.store.snapshot();
            let state = self.read(&mut snapshot).await?;
            let step = state.step(event)?;
            if step.records.is_empty() {
                return Ok((step.answer, state.head().revision));
            }
            match snapshot.commit(transaction(&step.records)).await {
                Ok(()) => {
                    let revision = self.committed(&state, step.records);
                    if step.is_complete {
                        return Ok((step.answer, revision));
                    }
                    attempts = 0;
                }
                Err(error @ (CommitError::Conflict | CommitError::Unknown(_))) => {
                    debug!(%error, "reading the table again");
                    attempts += 1;
                    if attempts == MOST_ATTEMPTS {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The table at a snapshot, on whose head it depends from now on.
    async fn read(&self, snapshot: &mut KvSnapshot) -> Result<Arc<TableState>, ChangeError> {
        let found = snapshot.get(&[key(HEAD_KEY)]).await?;
        let head = match found.into_iter().flatten().next() {
            Some(value) => match TableRecord::parse(HEAD_KEY, &value)? {
                TableRecord::Head(head) => head,
                // The key says what it is.
                TableRecord::Service(..)
                | TableRecord::Target(..)
                | TableRecord::Chain(..)
                | TableRecord::List(..)
                | TableRecord::Session(..) => TableHead::default(),
            },
            None => TableHead::default(),
        };
        let known = self.state();
        if *known.head() == head {
            return Ok(known);
        }
        let state = Arc::new(load(snapshot).await?);
        self.publish(&state);
        Ok(state)
    }

    fn committed(&self, before: &TableState, records: Vec<TableRecord>) -> u64 {
        let mut state = before.clone();
        for record in records {
            log(&record);
            state.apply(record);
        }
        let revision = state.head().revision;
        self.publish(&Arc::new(state));
        revision
    }

    fn publish(&self, state: &Arc<TableState>) {
        self.0.state.send_if_modified(|known| {
            let is_newer = state.head().revision > known.head().revision;
            if is_newer {
                known.clone_from(state);
            }
            is_newer
        });
    }
}

fn key(record: &str) -> Vec<u8> {
    [PREFIX, record].concat().into_bytes()
}

fn transaction(records: &[TableRecord]) -> KvTransaction {
    let mut transaction = KvTransaction::default();
    for record in records {
        match record.value() {
            Some(value) => transaction.put(key(&record.key()), value),
            None => transaction.delete(key(&record.key())),
        }
    }
    transaction
}

/// Everything at a snapshot, page by page.
async fn load(snapshot: &mut KvSnapshot) -> Result<TableState, ChangeError> {
    let mut state = TableState::default();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let prefix = PREFIX.as_bytes();
        let page = snapshot.list(prefix, after.as_deref(), MOST_LISTED).await?;
        let is_last = page.len() < MOST_LISTED;
        for (key, value) in &page {
            let name = String::from_utf8_lossy(key.get(PREFIX.len()..).unwrap_or_default());
            state.apply(TableRecord::parse(&name, value)?);
        }
        if is_last {
            return Ok(state);
        }
        after = page.into_iter().next_back().map(|(key, _)| key);
    }
}

fn log(record: &TableRecord) {
    match record {
        TableRecord::Head(_) => {}
        TableRecord::Service(number, service) => {
            info!(
                number,
                node = service.node,
                address = service.member_address,
                "service changed"
            );
        }
        TableRecord::Target(target, record) => {
            info!(%target, service = record.service, path = record.path, life = record.life, "target changed");
        }
        TableRecord::Chain(number, chain) => {
            debug!(chain = number, version = chain.version, "chain changed");
        }
        TableRecord::List(number, list) => {
            info!(
                number,
                pool = list.pool,
                chains = list.chains.len(),
                "list of chains made"
            );
        }
        TableRecord::Session(number, Some(session)) => {
            info!(session = number, client = session.client, "session opened");
        }
        TableRecord::Session(number, None) => info!(session = number, "session ended"),
    }
}
