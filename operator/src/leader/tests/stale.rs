//! Who leads when mirrors are stale.

use super::*;
use crate::cluster::STALE;

/// Mirrors of which the API server has just shown that they are complete.
fn refresh(cluster: &SharedCluster) {
    let now = crate::cluster::now();
    let mut mirrors = cluster.mirrors();
    mirrors.nodes.note_current(now);
    mirrors.jobs.note_current(now);
    mirrors.attempts.note_current(now);
    mirrors.pods.note_current(now);
    mirrors.claims.note_current(now);
    mirrors.validations.note_current(now);
    mirrors.fabrics.note_current(now);
}

/// A candidate whose mirrors are refreshed each second, until it is stopped.
fn candidate(server: &Server, number: u8) -> (Candidate, Arc<Mutex<bool>>) {
    let cluster = Arc::new(SharedCluster::default());
    refresh(&cluster);
    let watched = Arc::new(Mutex::new(true));
    let (refreshed, goes_on) = (Arc::clone(&cluster), Arc::clone(&watched));
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            if *goes_on.lock().unwrap() {
                refresh(&refreshed);
            }
        }
    });
    let guarding = |elector: Elector| elector.guarding(WriteFence::default(), cluster);
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

/// Two candidates of which nobody is fresh; the first leads all the same.
async fn last_resort(server: &Server) -> (Candidate, Candidate, Arc<Mutex<bool>>) {
    let (mut one, watched) = candidate(server, 1);
    one.becomes(Role::Leading).await;
    let (mut two, other) = candidate(server, 2);
    two.follows(Some(one.address)).await;
    *watched.lock().unwrap() = false;
    *other.lock().unwrap() = false;
    two.is_linked(Link::Silent);
    one.follows(None).await;
    one.becomes(Role::Leading).await;
    two.is_linked(Link::Good);
    (one, two, other)
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_last_resort_yields_once_another_is_fresh_and_has_led_a_minute() {
    let server = Server::default();
    let (mut one, mut two, watched) = last_resort(&server).await;
    let led = Instant::now();
    *watched.lock().unwrap() = true;
    let took_over = two.becomes(Role::Leading).await;
    let minute = Duration::from_secs(60);
    let limit = minute..=minute + 3 * PERIOD + ROUNDING;
    assert!(limit.contains(&(took_over - led)), "{:?}", took_over - led);
    one.follows(Some(two.address)).await;
    sleep(LAST_RESORT * 3).await;
    assert_eq!(*two.role.borrow(), Role::Leading);
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_last_resort_takes_the_lead_back_if_the_fresh_one_did_not() {
    let server = Server::default();
    let (mut one, two, watched) = last_resort(&server).await;
    *watched.lock().unwrap() = true;
    // It asks for the lead, and is gone when it could have it.
    sleep(Duration::from_secs(30)).await;
    two.is_linked(Link::Silent);
    let yielded = one.follows(None).await;
    let again = one.becomes(Role::Leading).await;
    let waited = LAST_RESORT..=LAST_RESORT + 3 * PERIOD;
    assert!(waited.contains(&(again - yielded)), "{:?}", again - yielded);
    let stays = one.role.wait_for(|role| *role != Role::Leading);
    timeout(STALE * 3, stays).await.unwrap_err();
}
