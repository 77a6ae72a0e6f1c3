//! The rules of the election, against an API server that keeps one Lease, on a clock that jumps to
//! whatever is due next.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

mod stale;

use super::*;
use crate::testing::{failure, response};

const PORT: u16 = 9443;
/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(600);
/// How long a loop may take to go round.
const STALLED: Duration = Duration::from_secs(60);
/// Timers are rounded up to a millisecond.
const ROUNDING: Duration = Duration::from_millis(10);

/// How a candidate's requests fare.
#[derive(Clone, Copy)]
enum Link {
    Good,
    /// The API server answers that it is broken.
    Refused,
    /// Nothing arrives.
    Silent,
    /// Nothing arrives of the next request, as on a connection that is dead.
    SilentOnce,
    /// Writes arrive, their answers come so much later.
    Late(Duration),
}

#[derive(Default)]
struct Stored {
    lease: Option<Value>,
    version: u64,
    conflicts: u32,
    /// Who takes the Lease right before the next write of anybody else.
    rival: Option<String>,
    roles: Vec<(String, watch::Receiver<Role>)>,
    /// When the Lease was written last.
    written: watch::Sender<Option<Instant>>,
}

impl Stored {
    fn answer(&mut self, method: &Method, body: Value) -> (u16, Value) {
        if *method == Method::GET {
            return match &self.lease {
                Some(lease) => (200, lease.clone()),
                None => failure(404, "NotFound"),
            };
        }
        if let Some(rival) = self.rival.take() {
            self.write(held_by(&rival));
        }
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        if version(&body) != self.lease.as_ref().map(version).unwrap_or_default() {
            self.conflicts += 1;
            return failure(409, "Conflict");
        }
        (200, self.write(body))
    }

    fn write(&mut self, mut lease: Value) -> Value {
        let holder = &lease["spec"]["holderIdentity"];
        for (identity, role) in &self.roles {
            let leads = *role.borrow() == Role::Leading;
            assert!(
                !leads || holder == identity,
                "{identity} leads while the Lease goes to {holder}"
            );
        }
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        self.written.send_replace(Some(Instant::now()));
        lease
    }
}

/// A Lease by a holder whose clock is 26 years slow, and which promises less than ours do.
fn held_by(identity: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE, "namespace": "system"},
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": 1,
            "renewTime": "2000-01-01T00:00:00.000000Z",
        },
    })
}

#[derive(Clone, Default)]
struct Server {
    stored: Arc<Mutex<Stored>>,
}

struct Candidate {
    address: SocketAddr,
    role: watch::Receiver<Role>,
    link: Arc<Mutex<Link>>,
    watchdog: Watchdog,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap()
    }

    fn written(&self) -> Instant {
        self.stored().written.borrow().unwrap()
    }

    /// A candidate that takes part from now on.
    fn candidate(&self, number: u8) -> Candidate {
        self.candidate_with(number, |elector| elector)
    }

    fn candidate_with(&self, number: u8, prepare: impl FnOnce(Elector) -> Elector) -> Candidate {
        let link = Arc::new(Mutex::new(Link::Good));
        let (server, shared) = (self.clone(), Arc::clone(&link));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, mut shared) = (server.clone(), shared.lock().unwrap());
            let link = *shared;
            if let Link::SilentOnce = link {
                *shared = Link::Good;
            }
            drop(shared);
            async move { Ok::<_, Infallible>(server.serve(link, request).await) }
        });
        let identity = name(number);
        let client = Client::new(service, "system");
        let watchdog = Watchdog::new(STALLED);
        let elector = Elector::new(client, "system", identity.clone(), PORT);
        let elector = prepare(elector.watched_by(watchdog.clone()));
        let (sender, role) = watch::channel(Role::Standby { leader: None });
        self.stored().roles.push((identity.clone(), role.clone()));
        let stop = CancellationToken::new();
        Candidate {
            address: address(&identity, PORT).unwrap(),
            role,
            link,
            watchdog,
            task: tokio::spawn(elector.run(sender, stop.clone())),
            stop,
        }
    }

    async fn serve(&self, link: Link, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let answer = match link {
            Link::Silent | Link::SilentOnce => pending().await,
            Link::Refused => failure(500, "InternalError"),
            Link::Good | Link::Late(_) => self.stored().answer(&parts.method, body),
        };
        if let Link::Late(delay) = link
            && parts.method != Method::GET
        {
            sleep(delay).await;
        }
        response(answer)
    }
}

fn name(number: u8) -> String {
    identity("operator", [10, 0, 0, number].into())
}

impl Candidate {
    fn is_linked(&self, link: Link) {
        *self.link.lock().unwrap() = link;
    }

    /// Waits until it has this role, and says when that was.
    async fn becomes(&mut self, wanted: Role) -> Instant {
        let becomes = self.role.wait_for(|role| *role == wanted);
        timeout(DEADLINE, becomes).await.unwrap().unwrap();
        Instant::now()
    }

    async fn follows(&mut self, leader: Option<SocketAddr>) -> Instant {
        self.becomes(Role::Standby { leader }).await
    }
}

/// A leader and a standby.
async fn pair(server: &Server) -> (Candidate, Candidate) {
    let mut one = server.candidate(1);
    one.becomes(Role::Leading).await;
    let mut two = server.candidate(2);
    two.follows(Some(one.address)).await;
    (one, two)
}

#[test]
fn the_leaders_address_is_in_its_identity() {
    let identity = identity("fireflyer-operator-7d_x", "10.98.0.3".parse().unwrap());
    assert_eq!(address(&identity, 9443), "10.98.0.3:9443".parse().ok());
    assert_eq!(address("nobody", 9443), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_steps_down_before_another_takes_over() {
    for trouble in [Link::Refused, Link::Silent] {
        let server = Server::default();
        let (mut one, mut two) = pair(&server).await;
        one.is_linked(trouble);
        let stepped_down = one.follows(None).await;
        let renewed = server.written();
        assert!(stepped_down - renewed <= RENEW_DEADLINE + ROUNDING);
        let took_over = two.becomes(Role::Leading).await;
        assert!(took_over - renewed >= DURATION);
        one.is_linked(Link::Good);
        one.follows(Some(two.address)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_when_it_was_sent_however_late_its_answer_is() {
    let server = Server::default();
    let (mut one, _two) = pair(&server).await;
    let mut writes = server.stored().written.subscribe();
    one.is_linked(Link::Late(ATTEMPT - Duration::from_secs(1)));
    writes.changed().await.unwrap();
    one.is_linked(Link::Silent);
    let stepped_down = one.follows(None).await;
    assert!(stepped_down - server.written() <= RENEW_DEADLINE + ROUNDING);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_waits_until_the_lease_has_not_changed_for_its_duration_by_its_own_clock() {
    let server = Server::default();
    server.stored().write(held_by(&name(9)));
    let mut one = server.candidate(1);
    one.follows(address(&name(9), PORT)).await;
    sleep(DURATION - PERIOD).await;
    server.stored().write(held_by(&name(9)));
    let renewed = server.written();
    let took_over = one.becomes(Role::Leading).await;
    // It looks every period: one until it sees the change, one until it sees that there is none.
    let waited = DURATION..=DURATION + 2 * PERIOD + ROUNDING;
    assert!(waited.contains(&(took_over - renewed)));
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_beaten_to_the_lease_stays_on_standby() {
    // Beaten to a Lease that ran out, and to one that nobody had created.
    for exists in [true, false] {
        let server = Server::default();
        if exists {
            server.stored().write(held_by(&name(8)));
        }
        server.stored().rival = Some(name(9));
        let mut one = server.candidate(1);
        let leader = address(&name(9), PORT);
        let follows = one.role.wait_for(|role| {
            assert_ne!(*role, Role::Leading);
            *role == Role::Standby { leader }
        });
        timeout(DEADLINE, follows).await.unwrap().unwrap();
        assert_eq!(server.stored().conflicts, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_shuts_down_lets_another_lead_at_once() {
    let server = Server::default();
    let (one, mut two) = pair(&server).await;
    let stopped = Instant::now();
    one.stop.cancel();
    one.task.await.unwrap();
    let took_over = two.becomes(Role::Leading).await;
    assert!(took_over - stopped <= PERIOD + ROUNDING);
}

#[tokio::test(start_paused = true)]
async fn one_request_that_hangs_does_not_cost_the_leadership() {
    let server = Server::default();
    let (one, _two) = pair(&server).await;
    for _ in 0..5 {
        let before = server.written();
        one.is_linked(Link::SilentOnce);
        let mut writes = server.stored().written.subscribe();
        writes.changed().await.unwrap();
        assert!(server.written() - before <= PERIOD + ATTEMPT + ROUNDING);
        assert!(!one.role.has_changed().unwrap(), "it leads without a break");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_loop_hangs_lets_another_lead() {
    let server = Server::default();
    let (mut one, mut two) = pair(&server).await;
    let went_round = Instant::now();
    one.watchdog.touch();
    let stepped_down = one.follows(None).await;
    assert!(stepped_down - went_round >= STALLED);
    assert!(stepped_down - went_round <= STALLED + RENEW_DEADLINE + ROUNDING);
    let renewed = server.written();
    let took_over = two.becomes(Role::Leading).await;
    assert!(took_over - renewed >= DURATION);
    // Once it is on standby, nothing is expected of its loop, and it takes part again.
    one.watchdog.rest();
    one.follows(Some(two.address)).await;
}
