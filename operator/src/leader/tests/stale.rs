//! Who leads when mirrors are stale.

use super::*;
use crate::cluster::STALE;

/// Mirrors of which the API server has just shown that they are complete.
fn refresh(cluster: &Cluster) {
    let now = crate::cluster::now();
    let mut mirrors = cluster.mirrors();
    mirrors.nodes.is_current(now);
    mirrors.jobs.is_current(now);
    mirrors.attempts.is_current(now);
    mirrors.pods.is_current(now);
    mirrors.claims.is_current(now);
    mirrors.fabrics.is_current(now);
}

/// A candidate whose mirrors are refreshed each second, for as long as it is told to.
fn candidate(server: &Server, number: u8) -> (Candidate, Arc<Mutex<bool>>) {
    let cluster = Arc::new(Cluster::default());
    refresh(&cluster);
    let watched = Arc::new(Mutex::new(true));
    let (kept, goes_on) = (Arc::clone(&cluster), Arc::clone(&watched));
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            if *goes_on.lock().unwrap() {
                refresh(&kept);
            }
        }
    });
    let guarding = |elector: Elector| elector.guarding(Fence::default(), cluster);
    (server.candidate_with(number, guarding), watched)
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_mirrors_are_stale_yields_to_one_whose_are_fresh() {
    let server = Server::default();
    let (mut one, watched) = candidate(&server, 1);
    one.becomes(Role::Leading).await;
    let (mut two, _) = candidate(&server, 2);
    two.follows(Some(one.address)).await;
    *watched.lock().unwrap() = false;
    let hung = Instant::now();
    let took_over = two.becomes(Role::Leading).await;
    let limit = STALE + 3 * PERIOD;
    assert!(took_over - hung <= limit, "{:?}", took_over - hung);
    one.follows(Some(two.address)).await;
    // It does not come back as long as its mirrors are stale.
    sleep(LAST_RESORT * 3).await;
    assert_eq!(*two.role.borrow(), Role::Leading);
}

#[tokio::test(start_paused = true)]
async fn if_nobody_is_fresh_one_leads_all_the_same_and_stays() {
    let server = Server::default();
    let (mut one, watched) = candidate(&server, 1);
    one.becomes(Role::Leading).await;
    *watched.lock().unwrap() = false;
    one.follows(None).await;
    let yielded = Instant::now();
    let again = one.becomes(Role::Leading).await;
    let waited = LAST_RESORT..=LAST_RESORT + 3 * PERIOD;
    assert!(waited.contains(&(again - yielded)), "{:?}", again - yielded);
    let stays = one.role.wait_for(|role| *role != Role::Leading);
    timeout(STALE * 3, stays).await.unwrap_err();
}
