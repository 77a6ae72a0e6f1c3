//! The calls: who may make which, messages to events, and what goes wrong to a status.

use std::io;
use std::sync::Arc;

use chain_link::{PeerRole, StoragePeer};
use chain_table::{
    ChainSpec, PathVerdict, RegisteredPath, Registration, TableAnswer, TableEvent, TableRefusal,
    TableUuid,
};
use daemon::CancellationToken;
use kv::{CommitError, KvError};
use storage_rpc::pb::manager::chain_manager_server::ChainManager;
use storage_rpc::pb::manager::path_answer::Action;
use storage_rpc::pb::manager::{
    CreateChainsRequest, CreateChainsResponse, EndSessionRequest, EndSessionResponse, ListRequest,
    ListResponse, OpenSessionRequest, OpenSessionResponse, PathAnswer, RegisterRequest,
    RegisterResponse, ReportRequest, ReportResponse, WatchRequest, WatchResponse,
};
use storage_rpc::peer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tracing::{debug, warn};

use crate::keeper::{ChangeError, TableKeeper};
use crate::list::{self, Reports};
use crate::watch::Watcher;

/// Watchers of one manager: all services and all clients that there may be.
const MOST_WATCHERS: usize = 1 << 13;
/// Messages that a slow watcher has not taken; later tables wait, and only the newest of them is sent.
const MOST_UNSENT: usize = 2;

/// Answers the calls.
#[derive(Debug)]
pub(crate) struct Service {
    keeper: TableKeeper,
    reports: Reports,
    watchers: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl Service {
    pub(crate) fn new(keeper: TableKeeper, shutdown: CancellationToken) -> Self {
        Self {
            keeper,
            reports: Reports::default(),
            watchers: Arc::new(Semaphore::new(MOST_WATCHERS)),
            shutdown,
        }
    }

    async fn change(&self, event: &TableEvent) -> Result<(TableAnswer, u64), Status> {
        self.keeper
            .change(event)
            .await
            .map_err(|error| status(&error))
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ChainManager for Service {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn register(&self, request: Request<RegisterRequest>) -> Answer<RegisterResponse> {
        allow(&request, &[PeerRole::Service])?;
        let request = request.into_inner();
        if request.life == 0 {
            return Err(Status::invalid_argument("a life is not 0"));
        }
        let path = |path: storage_rpc::pb::manager::RegisteredPath| {
            let target = match path.target.as_slice() {
                [] => None,
                bytes => Some(uuid(bytes)?),
            };
            Ok(RegisteredPath {
                path: path.path,
                target,
                fresh: fresh()?,
            })
        };
        let paths = request.paths.into_iter().map(path);
        let event = TableEvent::Register(Registration {
            node: request.node,
            life: request.life,
            member_address: request.member_address,
            client_address: request.client_address,
            paths: paths.collect::<Result<_, Status>>()?,
        });
        let (TableAnswer::Registered(service, verdicts), _) = self.change(&event).await? else {
            return Err(Status::internal("a registration had another answer"));
        };
        let paths = verdicts.into_iter().map(path_answer).collect();
        Ok(Response::new(RegisterResponse { service, paths }))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Answer<ReportResponse> {
        allow(&request, &[PeerRole::Service])?;
        let ReportRequest { service, targets } = request.into_inner();
        let state = self.keeper.state();
        for report in targets {
            let target = uuid(&report.target)?;
            if state.service_of(target) == Some(service) {
                self.reports.take(target, report);
            } else {
                debug!(%target, service, "a report of a target that this service does not have");
            }
        }
        Ok(Response::new(ReportResponse {}))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        let peer = peer(&request)?;
        let permit = Arc::clone(&self.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many watch already"))?;
        let (messages, stream) = mpsc::channel(MOST_UNSENT);
        let watcher = Watcher::new(request.into_inner().service);
        let (keeper, shutdown) = (self.keeper.clone(), self.shutdown.clone());
        tokio::spawn(async move {
            let watching = watch(watcher, &keeper, &messages, permit);
            tokio::select! {
                () = watching => {}
                () = messages.closed() => {}
                () = shutdown.cancelled() => {}
            }
            debug!(%peer, "watches no longer");
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Answer<OpenSessionResponse> {
        allow(&request, &[PeerRole::Client])?;
        let client = request.into_inner().client;
        let event = TableEvent::OpenSession { client };
        let (TableAnswer::Opened(session), revision) = self.change(&event).await? else {
            return Err(Status::internal("a session had another answer"));
        };
        Ok(Response::new(OpenSessionResponse { session, revision }))
    }

    async fn end_session(&self, request: Request<EndSessionRequest>) -> Answer<EndSessionResponse> {
        allow(&request, &[PeerRole::Client])?;
        let session = request.into_inner().session;
        self.change(&TableEvent::EndSession { session }).await?;
        Ok(Response::new(EndSessionResponse {}))
    }

    async fn create_chains(
        &self,
        request: Request<CreateChainsRequest>,
    ) -> Answer<CreateChainsResponse> {
        allow(&request, &MEMBERS)?;
        let CreateChainsRequest { pool, chains } = request.into_inner();
        let spec = |spec: storage_rpc::pb::manager::ChainSpec| {
            let targets = spec.targets.iter().map(|target| uuid(target));
            Ok(ChainSpec {
                chain: spec.chain,
                targets: targets.collect::<Result<_, Status>>()?,
            })
        };
        let chains = chains
            .into_iter()
            .map(spec)
            .collect::<Result<_, Status>>()?;
        let event = TableEvent::CreateChains { pool, chains };
        let (TableAnswer::Created(list), _) = self.change(&event).await? else {
            return Err(Status::internal("a creation had another answer"));
        };
        Ok(Response::new(CreateChainsResponse { list }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<ListResponse> {
        // Who makes volumes is a client, and needs to know how much room there is.
        peer(&request)?;
        self.keeper
            .refresh()
            .await
            .map_err(|error| status(&error))?;
        Ok(Response::new(list::list(
            &self.keeper.state(),
            &self.reports,
        )))
    }
}

/// Sends a watcher each table, or the newest of those that came while it was slow.
async fn watch(
    mut watcher: Watcher,
    keeper: &TableKeeper,
    messages: &mpsc::Sender<Result<WatchResponse, Status>>,
    _permit: OwnedSemaphorePermit,
) {
    let mut states = keeper.subscribe();
    loop {
        let state = states.borrow_and_update().clone();
        for message in watcher.next(&state) {
            if messages.send(Ok(message)).await.is_err() {
                return;
            }
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

/// Everybody but clients.
const MEMBERS: [PeerRole; 3] = [PeerRole::Service, PeerRole::Manager, PeerRole::Meta];

fn allow<T>(request: &Request<T>, roles: &[PeerRole]) -> Result<(), Status> {
    let peer: StoragePeer = peer(request)?;
    match peer.role() {
        Some(role) if roles.contains(&role) => Ok(()),
        _ => Err(Status::permission_denied(format!(
            "{peer} may not make this call"
        ))),
    }
}

fn uuid(bytes: &[u8]) -> Result<TableUuid, Status> {
    let number = <[u8; 16]>::try_from(bytes).map(u128::from_be_bytes);
    let refused = |_| {
        let length = bytes.len();
        Status::invalid_argument(format!("a target's UUID has {length} bytes: it needs 16"))
    };
    number.map(TableUuid).map_err(refused)
}

/// A UUID that nobody has, of version 4.
fn fresh() -> Result<TableUuid, Status> {
    let random = |error: io::Error| Status::internal(format!("failed to draw a UUID: {error}"));
    let nonce = link::connect::nonce().map_err(random)?;
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&nonce[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(TableUuid(u128::from_be_bytes(bytes)))
}

fn path_answer(verdict: PathVerdict) -> PathAnswer {
    let (action, target, why) = match verdict {
        PathVerdict::Serve(target) => (Action::Serve, target, String::new()),
        PathVerdict::Format(target) => (Action::Format, target, String::new()),
        PathVerdict::Offline { target, why } => {
            warn!(%target, why, "a target stays offline");
            (Action::Offline, target, why)
        }
    };
    PathAnswer {
        action: action.into(),
        target: target.0.to_be_bytes().to_vec(),
        why,
    }
}

fn status(error: &ChangeError) -> Status {
    let text = daemon::chain(error);
    match error {
        ChangeError::Refused(refusal) => refused(refusal, text),
        ChangeError::Read(KvError::TooOld | KvError::Unavailable(_))
        | ChangeError::Commit(CommitError::Conflict | CommitError::Unknown(_)) => {
            Status::unavailable(text)
        }
        ChangeError::Commit(CommitError::Full) => Status::resource_exhausted(text),
        ChangeError::Read(KvError::Failed(_) | KvError::Limit(_))
        | ChangeError::Commit(CommitError::Failed(_) | CommitError::Limit(_))
        | ChangeError::Damaged(_) => {
            warn!(error = text, "failed to change the table");
            Status::internal(text)
        }
    }
}

fn refused(refusal: &TableRefusal, text: String) -> Status {
    match refusal {
        TableRefusal::Name { .. }
        | TableRefusal::Address(_)
        | TableRefusal::Paths(_)
        | TableRefusal::PathTwice(_)
        | TableRefusal::ChainNumber(_)
        | TableRefusal::Members { .. }
        | TableRefusal::MemberTwice { .. } => Status::invalid_argument(text),
        TableRefusal::OtherFileSystem { .. }
        | TableRefusal::UnknownTarget { .. }
        | TableRefusal::OtherPool { .. }
        | TableRefusal::SameService { .. }
        | TableRefusal::ChainExists { .. } => Status::failed_precondition(text),
        TableRefusal::Services
        | TableRefusal::Chains(_)
        | TableRefusal::PoolChains { .. }
        | TableRefusal::Lists
        | TableRefusal::Sessions => Status::resource_exhausted(text),
    }
}
