//! The engine over etcd: how reads and transactions become its calls, and what its errors mean.

use std::fmt::Display;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::engine::ReadAt;
use crate::error::{CommitError, KvError};
use crate::pb::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::pb::etcdserverpb::kv_client::KvClient;
use crate::pb::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::pb::etcdserverpb::request_op::Request;
use crate::pb::etcdserverpb::response_op::Response;
use crate::pb::etcdserverpb::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, ResponseHeader,
    StatusRequest, TxnRequest,
};
use crate::reads::{Found, KeyRange, Reads};
use crate::transaction::KvTransaction;
use crate::usage::KvUsage;
use crate::{MOST_KEY_BYTES, MOST_LISTED, MOST_VALUE_BYTES};

/// How long a call may take. etcd itself gives up after 7 s.
const CALL_LIMIT: Duration = Duration::from_secs(8);
/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How often a connection is tested while a call waits, and how long the test may take.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// The largest answer: a whole list, with as much again as keys for what else is in it.
const MOST_ANSWER_BYTES: usize = MOST_LISTED * (MOST_VALUE_BYTES + 2 * MOST_KEY_BYTES);

/// The end of a range that has none.
const NO_END: [u8; 1] = [0];

/// The engine. Cheap to clone; all clones share their connections.
#[derive(Clone, Debug)]
pub struct EtcdEngine {
    channel: Channel,
}

impl EtcdEngine {
    /// Uses the etcd whose members answer at these URLs, from within a runtime. Connects when it has to, so that it may be
    /// called before any is up; fails when a URL is none.
    pub fn connect(endpoints: &[String]) -> Result<Self, KvError> {
        let parse = |url: &String| -> Result<Endpoint, KvError> {
            let endpoint = Endpoint::from_shared(url.clone()).map_err(|error| {
                KvError::Failed(format!("{url:?} is no URL of an etcd member: {error}"))
            })?;
            Ok(endpoint
                .connect_timeout(CONNECT_LIMIT)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .tcp_nodelay(true))
        };
        let endpoints: Vec<Endpoint> = endpoints.iter().map(parse).collect::<Result<_, _>>()?;
        let channel = match endpoints.as_slice() {
            [] => {
                return Err(KvError::Failed(
                    "no URL of an etcd member is given".to_owned(),
                ));
            }
            [only] => only.connect_lazy(),
            _ => Channel::balance_list(endpoints.into_iter()),
        };
        Ok(Self { channel })
    }

    fn client(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(MOST_ANSWER_BYTES)
    }

    pub(crate) async fn get(
        &self,
        revision: Option<i64>,
        keys: &[Vec<u8>],
    ) -> ReadAt<Vec<Option<Found>>> {
        let read = |key: &Vec<u8>| {
            operation(Request::Range(RangeRequest {
                key: key.clone(),
                revision: revision.unwrap_or_default(),
                ..RangeRequest::default()
            }))
        };
        let request = TxnRequest {
            compare: Vec::new(),
            success: keys.iter().map(read).collect(),
        };
        let mut client = self.client();
        let answer = read_within(client.txn(request)).await?;
        let revision = read_at(revision, answer.header)?;
        let found = answer.responses.into_iter().map(|response| {
            let kvs = match response.response {
                Some(Response::Range(range)) => range.kvs,
                Some(Response::Put(_) | Response::DeleteRange(_)) | None => Vec::new(),
            };
            kvs.into_iter().next().map(Found::from)
        });
        let found: Vec<_> = found.collect();
        if found.len() == keys.len() {
            Ok((revision, found))
        } else {
            Err(KvError::Failed(
                "etcd answered another number of reads".to_owned(),
            ))
        }
    }

    pub(crate) async fn list(
        &self,
        revision: Option<i64>,
        range: &KeyRange,
        limit: usize,
    ) -> ReadAt<Vec<Found>> {
        let request = RangeRequest {
            key: range.start.clone(),
            range_end: end(range),
            limit: limit as i64,
            revision: revision.unwrap_or_default(),
        };
        let mut client = self.client();
        let answer = read_within(client.range(request)).await?;
        let revision = read_at(revision, answer.header)?;
        Ok((revision, answer.kvs.into_iter().map(Found::from).collect()))
    }

    pub(crate) async fn commit(
        &self,
        reads: &Reads,
        transaction: KvTransaction,
    ) -> Result<(), CommitError> {
        let keys = reads.keys.iter().map(|(key, seen)| Compare {
            key: key.clone(),
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            target_union: Some(TargetUnion::ModRevision(*seen)),
            range_end: Vec::new(),
        });
        let later = reads.revision.unwrap_or_default().saturating_add(1);
        let ranges = reads.ranges.iter().map(|range| Compare {
            key: range.start.clone(),
            result: CompareResult::Less.into(),
            target: CompareTarget::Mod.into(),
            target_union: Some(TargetUnion::ModRevision(later)),
            range_end: end(range),
        });
        let writes = transaction.writes.into_iter().map(|(key, value)| {
            operation(match value {
                Some(value) => Request::Put(PutRequest { key, value }),
                None => Request::DeleteRange(DeleteRangeRequest { key }),
            })
        });
        let request = TxnRequest {
            compare: keys.chain(ranges).collect(),
            success: writes.collect(),
        };
        let mut client = self.client();
        match tokio::time::timeout(CALL_LIMIT, client.txn(request)).await {
            Ok(Ok(answer)) if answer.get_ref().succeeded => Ok(()),
            Ok(Ok(_)) => Err(CommitError::Conflict),
            Ok(Err(status)) => Err(not_committed(&status)),
            Err(elapsed) => Err(CommitError::Unknown(elapsed.to_string())),
        }
    }

    pub(crate) async fn usage(&self) -> Result<KvUsage, KvError> {
        let mut client = MaintenanceClient::new(self.channel.clone());
        let answer = read_within(client.status(StatusRequest {})).await?;
        let positive = |bytes: i64| u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        Ok(KvUsage {
            used_bytes: positive(answer.db_size_in_use).unwrap_or_default(),
            quota_bytes: positive(answer.db_size_quota),
        })
    }
}

impl From<KeyValue> for Found {
    fn from(pair: KeyValue) -> Self {
        Self {
            key: pair.key,
            value: pair.value,
            changed: pair.mod_revision,
        }
    }
}

fn operation(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn end(range: &KeyRange) -> Vec<u8> {
    range.end.clone().unwrap_or_else(|| NO_END.to_vec())
}

/// At which revision an answer was read.
fn read_at(asked: Option<i64>, header: Option<ResponseHeader>) -> Result<i64, KvError> {
    let newest = header.map(|header| header.revision);
    let none = || KvError::Failed("etcd answered without a revision".to_owned());
    asked.or(newest).ok_or_else(none)
}

async fn read_within<T>(
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, KvError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(not_read(&status)),
        Err(elapsed) => Err(KvError::Unavailable(elapsed.to_string())),
    }
}

/// Errors that say nothing but that it may work later.
fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Aborted
            | Code::Internal
            | Code::ResourceExhausted
    )
}

fn not_read(status: &Status) -> KvError {
    let code = status.code();
    if code == Code::OutOfRange && status.message().contains("compacted") {
        KvError::TooOld
    } else if is_passing(code) {
        KvError::Unavailable(text(status))
    } else {
        KvError::Failed(text(status))
    }
}

fn not_committed(status: &Status) -> CommitError {
    let code = status.code();
    if code == Code::ResourceExhausted && status.message().contains("space exceeded") {
        CommitError::Full
    } else if is_passing(code) {
        CommitError::Unknown(text(status))
    } else {
        CommitError::Failed(text(status))
    }
}

fn text(status: &impl Display) -> String {
    format!("etcd: {status}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_come_before_a_commit_are_certain() {
        let of = |code, text: &str| not_committed(&Status::new(code, text));
        let full = of(
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
        );
        assert_eq!(full, CommitError::Full);
        for code in [
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::Cancelled,
            Code::Unknown,
        ] {
            assert!(matches!(of(code, "x"), CommitError::Unknown(_)), "{code:?}");
        }
        let refused = of(
            Code::InvalidArgument,
            "etcdserver: too many operations in txn request",
        );
        assert!(matches!(refused, CommitError::Failed(_)), "{refused}");
    }

    #[test]
    fn a_url_that_is_none_is_refused_by_its_text() {
        for urls in [vec![], vec!["not a url".to_owned()]] {
            let refused = EtcdEngine::connect(&urls).unwrap_err().to_string();
            assert!(refused.contains("URL of an etcd member"), "{refused}");
        }
    }
}
