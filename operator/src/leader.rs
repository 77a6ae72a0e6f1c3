//! Leader election by a Lease: one replica plans and writes, the others stand by with warm mirrors.
//! Whether a Lease is stale is judged by our own clock since we saw it change, never by the times
//! inside it: skewed clocks cannot make two leaders. What a deposed leader still sends is stopped
//! by resourceVersions, see `scheduler::Action::Record`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use daemon::{Watchdog, chain};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::cluster::SharedCluster;
use crate::fence::WriteFence;

/// Name of the Lease.
pub const LEASE: &str = "fireflyer-operator";
/// A holder that has not renewed for so long is given up.
const DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for so long steps down: 5 s before anybody takes over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// A renewal that takes longer is given up for another: what hangs is a connection, usually.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How often the holder renews and the others look.
const PERIOD: Duration = Duration::from_secs(2);
/// A replica whose mirrors are stale takes a Lease only when nobody else has wanted it for so long.
const LAST_RESORT: Duration = Duration::from_secs(20);
/// A leader with stale mirrors gives the Lease up for a fresh replica no sooner than after so long.
const LEAST_TERM: Duration = Duration::from_secs(60);
/// Annotation of the Lease: its holder leads with stale mirrors.
const IS_STALE: &str = "fireflyer.dev/is-stale";
/// Annotation of such a Lease: this replica has fresh mirrors.
const YIELD_TO: &str = "fireflyer.dev/yield-to";

/// What this replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It plans and writes.
    Leading,
    /// Another replica leads, or none does yet.
    Standby {
        /// Where the leader's rendezvous service is.
        leader: Option<SocketAddr>,
    },
}

/// The Lease as last seen, and since when it has not changed.
#[derive(Debug)]
struct LeaseObservation {
    version: Option<String>,
    since: Instant,
}

/// Takes part in the election.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    identity: String,
    rendezvous_port: u16,
    seen: Option<LeaseObservation>,
    /// Lets writes pass while the Lease is ours.
    fence: WriteFence,
    /// Whose age decides who should lead.
    cluster: Option<Arc<SharedCluster>>,
    /// Since when the Lease could be taken, and is not because our mirrors are stale.
    free_since: Option<Instant>,
    /// Since when it leads with stale mirrors, because nobody else did.
    last_resort: Option<Instant>,
    /// Whether a fresh replica has asked for the Lease meanwhile.
    is_asked_to_yield: bool,
    /// Watches the loop that plans: while it hangs, another replica had better lead.
    watchdog: Option<Watchdog>,
}

/// `<pod>_<ip>`: says to the others where to send sidecars.
pub fn identity(pod_name: &str, pod_ip: IpAddr) -> String {
    format!("{pod_name}_{pod_ip}")
}

/// The address inside an identity.
fn address(identity: &str, port: u16) -> Option<SocketAddr> {
    let (_, ip) = identity.rsplit_once('_')?;
    Some(SocketAddr::new(ip.parse().ok()?, port))
}

impl Elector {
    /// A candidate of this identity.
    pub fn new(client: Client, namespace: &str, identity: String, rendezvous_port: u16) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            identity,
            rendezvous_port,
            seen: None,
            fence: WriteFence::default(),
            cluster: None,
            free_since: None,
            last_resort: None,
            is_asked_to_yield: false,
            watchdog: None,
        }
    }

    /// A candidate that does not renew while the loop that plans hangs.
    pub fn watched_by(self, watchdog: Watchdog) -> Self {
        Self {
            watchdog: Some(watchdog),
            ..self
        }
    }

    /// A candidate that opens `fence` while it leads, and leaves the lead to others while the
    /// mirrors of `cluster` are stale.
    pub fn guarding(self, fence: WriteFence, cluster: Arc<SharedCluster>) -> Self {
        Self {
            fence,
            cluster: Some(cluster),
            ..self
        }
    }

    /// Whether another replica may see more.
    fn check_stale(&mut self) -> bool {
        let stale = self
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.is_stale());
        if !stale {
            self.begin_anew();
        }
        stale
    }

    fn begin_anew(&mut self) {
        self.free_since = None;
        self.last_resort = None;
        self.is_asked_to_yield = false;
    }

    /// Whether another replica had better lead.
    fn decides_to_yield(&mut self) -> bool {
        let asked = self.is_asked_to_yield;
        let stays = |since: Instant| !asked || since.elapsed() < LEAST_TERM;
        self.check_stale() && !self.last_resort.is_some_and(stays)
    }

    /// Whether a Lease that nobody holds is to be taken.
    fn decides_to_take(&mut self) -> bool {
        if !self.check_stale() {
            return true;
        }
        let since = *self.free_since.get_or_insert_with(Instant::now);
        if since.elapsed() < LAST_RESORT {
            return false;
        }
        self.last_resort.get_or_insert_with(Instant::now);
        true
    }

    /// Takes part until the token is cancelled; then gives the Lease back if it holds it.
    pub async fn run(mut self, role: watch::Sender<Role>, stop: CancellationToken) {
        let mut renewed: Option<Instant> = None;
        let mut period = tokio::time::interval(PERIOD);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = period.tick() => {}
            }
            if renewed.is_some() && self.decides_to_yield() {
                warn!("yields the Lease to a replica with fresh caches");
                self.fence.close();
                role.send_replace(Role::Standby { leader: None });
                renewed = None;
                self.begin_anew();
                self.release().await;
                continue;
            }
            let started = Instant::now();
            let left = renewed.map_or(ATTEMPT, |at| {
                (at + RENEW_DEADLINE).saturating_duration_since(started)
            });
            let now = self.attempt_within(left.min(ATTEMPT)).await;
            match now {
                Some(Role::Leading) => {
                    renewed = Some(started);
                    self.fence.open_until(started + DURATION);
                }
                Some(Role::Standby { .. }) => renewed = None,
                None if renewed.is_some_and(|at| at.elapsed() < RENEW_DEADLINE) => continue,
                None => renewed = None,
            }
            let now = now.unwrap_or(Role::Standby { leader: None });
            if now != Role::Leading {
                self.fence.close();
            }
            role.send_if_modified(|role| {
                let changed = *role != now;
                if changed {
                    info!(role = ?now, "role changed");
                    *role = now;
                }
                changed
            });
        }
        self.fence.close();
        let led = *role.borrow() == Role::Leading;
        role.send_replace(Role::Standby { leader: None });
        if led {
            self.release().await;
        }
    }

    /// Renews or reads the Lease; none when that failed, or must not be while the loop hangs.
    async fn attempt_within(&mut self, limit: Duration) -> Option<Role> {
        if let Some(stalled) = self.watchdog.as_ref().and_then(Watchdog::stalled) {
            let seconds = stalled.as_secs();
            warn!(seconds, "the planning loop hangs: the Lease is not renewed");
            return None;
        }
        match tokio::time::timeout(limit, self.attempt()).await {
            Ok(Ok(now)) => Some(now),
            Ok(Err(error)) => {
                warn!(error = %chain(&error), "failed to renew or read the Lease");
                None
            }
            Err(_elapsed) => {
                let seconds = limit.as_secs_f64();
                warn!(seconds, "failed to renew or read the Lease in time");
                None
            }
        }
    }

    async fn attempt(&mut self) -> Result<Role, kube::Error> {
        let Some(mut lease) = self.api.get_opt(LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(0, now())),
            };
            return self.settle(self.api.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone();
        let since = match &self.seen {
            Some(seen) if seen.version == version => seen.since,
            Some(_) | None => {
                let since = Instant::now();
                self.seen = Some(LeaseObservation { version, since });
                since
            }
        };
        let spec = lease.spec.take().unwrap_or_default();
        let asked = has(&lease, YIELD_TO);
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let transitions = spec.lease_transitions.unwrap_or(0);
        if holder == self.identity {
            let acquired = spec.acquire_time.unwrap_or_else(now);
            lease.spec = Some(self.held(transitions, acquired));
            self.is_asked_to_yield = asked;
        } else if holder.is_empty() || since.elapsed() >= DURATION {
            if !self.decides_to_take() {
                return Ok(Role::Standby { leader: None });
            }
            lease.spec = Some(self.held(transitions.saturating_add(1), now()));
        } else {
            self.begin_anew();
            lease.spec = Some(spec.clone());
            self.ask_for(lease).await;
            return Ok(Role::Standby {
                leader: address(holder, self.rendezvous_port),
            });
        }
        self.annotate(&mut lease);
        self.settle(
            self.api
                .replace(LEASE, &PostParams::default(), &lease)
                .await,
        )
    }

    /// Says on a Lease of ours whether our mirrors are stale.
    fn annotate(&self, lease: &mut Lease) {
        let mut annotations = lease.metadata.annotations.take().unwrap_or_default();
        if self.last_resort.is_some() {
            annotations.insert(IS_STALE.to_owned(), "true".to_owned());
        } else {
            annotations.remove(IS_STALE);
        }
        if !self.is_asked_to_yield {
            annotations.remove(YIELD_TO);
        }
        lease.metadata.annotations = Some(annotations);
    }

    /// Asks a holder whose mirrors are stale for its Lease, if ours are fresh. Once: each write
    /// makes the Lease look alive to the others.
    async fn ask_for(&mut self, mut lease: Lease) {
        if !has(&lease, IS_STALE) || has(&lease, YIELD_TO) || self.check_stale() {
            return;
        }
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(YIELD_TO.to_owned(), self.identity.clone());
        let params = PostParams::default();
        match self.api.replace(LEASE, &params, &lease).await {
            Ok(_) => info!("asks the leader, whose caches are stale, to yield the Lease"),
            Err(error) => debug!(error = %chain(&error), "failed to ask for the Lease"),
        }
    }

    /// A conflict means that another candidate was faster.
    fn settle(&self, written: Result<Lease, kube::Error>) -> Result<Role, kube::Error> {
        match written {
            Ok(_) => Ok(Role::Leading),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                debug!("another replica took the Lease first");
                Ok(Role::Standby { leader: None })
            }
            Err(error) => Err(error),
        }
    }

    fn held(&self, transitions: i32, acquired: MicroTime) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(acquired),
            renew_time: Some(now()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Lets another replica lead at once instead of after the Lease has run out.
    async fn release(&self) {
        let released = async {
            let Some(mut lease) = self.api.get_opt(LEASE).await? else {
                return Ok(());
            };
            if let Some(spec) = &mut lease.spec
                && spec.holder_identity.as_ref() == Some(&self.identity)
            {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                lease.metadata.annotations = None;
                self.api
                    .replace(LEASE, &PostParams::default(), &lease)
                    .await?;
            }
            Ok::<(), kube::Error>(())
        };
        match tokio::time::timeout(PERIOD, released).await {
            Ok(Ok(())) => info!("released the Lease"),
            Ok(Err(error)) => warn!(error = %chain(&error), "failed to release the Lease"),
            Err(_elapsed) => warn!("failed to release the Lease in time"),
        }
    }
}

fn has(lease: &Lease, annotation: &str) -> bool {
    let annotations = lease.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(annotation))
}

fn now() -> MicroTime {
    MicroTime(jiff::Timestamp::now())
}

#[cfg(test)]
mod tests;
