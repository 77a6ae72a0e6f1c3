//! Gangs of which nobody knows any more who takes part: what was written down was changed or
//! deleted.

use std::sync::atomic::{AtomicBool, Ordering};

use collective::membership::{Commit, Connection, Endpoint, MembershipEvent};
use futures::future::{BoxFuture, ready};
use tokio::time::{Instant, timeout};
use topology::OnPeerLoss;

use super::*;
use crate::rendezvous::gang_session::Outbox;
use crate::rendezvous::gangs::{Input, start as start_gangs};
use crate::rendezvous::store::{CommitStore, StoreError};
use crate::training_job::apply::commit;

/// A store that has lost what was written down, until it is put back.
#[derive(Default)]
struct Lost(AtomicBool);

impl CommitStore for Lost {
    fn last(&self, gang: Arc<Gang>) -> BoxFuture<'static, Result<Option<Commit>, StoreError>> {
        let lost = commit::CommitUnknown::Damaged {
            attempt: gang.attempt,
            what: "ConfigMap digits-1-2-ab".to_owned(),
        };
        let last = match self.0.load(Ordering::Relaxed) {
            true => Ok(None),
            false => Err(lost.into()),
        };
        Box::pin(ready(last))
    }

    fn commit(
        &self,
        _gang: Arc<Gang>,
        _commit: Commit,
        _after: Option<u64>,
    ) -> BoxFuture<'static, Result<(), Option<Commit>>> {
        Box::pin(ready(Err(None)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_gang_whose_record_was_deleted_is_stuck_and_says_what_was_until_it_is_back() {
    let mut one = gang(1, 2);
    Arc::make_mut(&mut one.gang).policy.on_peer_loss = OnPeerLoss::Shrink;
    let gang = Arc::clone(&one.gang);
    let store = Arc::new(Lost::default());
    let (sender, mut reports) = watch::channel(Reports::default());
    let (_role, role) = watch::channel(Role::Leading);
    let (_gone, gone) = watch::channel(Vec::new());
    let (_stalled, stalled) = watch::channel(Vec::new());
    let planner = Planner {
        reports: sender,
        gone,
        stalled,
    };
    let directory = Arc::new(Changing(Mutex::new(one)));
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let shared = Arc::clone(&store) as Arc<dyn CommitStore>;
    let (handle, gangs) = start_gangs(directory, shared, role, planner, metrics);
    tokio::spawn(gangs);

    let asked = Instant::now();
    let connection = Connection(1);
    let (frames, _sent) = tokio::sync::mpsc::channel(9);
    let hello = MembershipEvent::Hello {
        connection,
        rank: 0,
        endpoint: Endpoint {
            address: IpAddr::from([10, 0, 0, 1]),
            port: 9404,
        },
        joined: Some(2),
    };
    let features = Features::OURS;
    let connected = Input::Connected {
        gang: Arc::clone(&gang),
        connection,
        outbox: Outbox { frames, features },
        hello,
    };
    handle.send(connected).await;
    let is_stuck = reports.wait_for(|reports| !reports.stuck.is_empty());
    let known = timeout(DEADLINE * 6, is_stuck)
        .await
        .unwrap()
        .unwrap()
        .clone();
    let stuck = &known.stuck[&(gang.job.clone(), 1)];
    let message =
        "failed to read the members of attempt 1: ConfigMap digits-1-2-ab was changed or deleted";
    assert_eq!((stuck.attempt, &*stuck.message), (1, message));
    // Another leader may have replaced it just then.
    let waited = Instant::now() - asked;
    assert!((4..=6).contains(&waited.as_secs()), "{waited:?}");
    store.0.store(true, Ordering::Relaxed);
    let is_free = reports.wait_for(|reports| reports.stuck.is_empty());
    timeout(DEADLINE, is_free).await.unwrap().unwrap();
}
