//! The side that listens: serves one other validator, as often as that measures. Whoever else
//! connects is turned away, and nobody is waited for beyond a deadline.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context as _, bail};
use contract::validation::Screen;
use health::CheckResult;
use link::connect::Acceptor;
use link::transport::BoxedLink;

use super::lane::{Window, on_each};
use super::protocol::{EPOCH, LANES, Message, Party, negotiator};
use super::{AGAIN, CheckContext, Pair, SESSION, absent, figures, share};
use crate::log;
use crate::results::screened;

pub(super) fn run(
    context: &CheckContext<'_>,
    pair: &Pair<'_>,
    address: SocketAddr,
    started: Instant,
) -> anyhow::Result<Vec<CheckResult>> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("failed to listen at {address}"))?;
    let port = Port::open(listener, pair.uid)?;
    log(&format!("waits for its partner at {address}"));
    let (until, end) = (started + pair.patience, started + pair.limit);
    let sessions = port.serve(context, until, end)?;
    if sessions.is_empty() {
        let refused = port.refused.load(Ordering::Relaxed);
        let detail = format!(
            "the run on the partner node did not come within {} s ({refused} connections of others \
             were refused): is that node free?",
            pair.patience.as_secs()
        );
        return Ok(absent(detail));
    }
    Ok(together(sessions))
}

/// Where the other validator connects to.
#[derive(Debug)]
pub(super) struct Port {
    acceptor: Acceptor<Party, Message>,
    lanes: BTreeMap<Party, SocketAddr>,
    refused: Arc<AtomicU32>,
}

impl Port {
    pub(super) fn open(listener: TcpListener, uid: &str) -> anyhow::Result<Self> {
        let refused = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&refused);
        let credentials = Party::listener(uid).credentials(uid);
        let acceptor = Acceptor::open(listener, credentials, negotiator(), move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        // Lanes connect by themselves: where they are does not matter.
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let lanes = (0..LANES).map(|lane| (Party::lane(uid, lane), nowhere));
        Ok(Self {
            acceptor: acceptor.context("failed to accept connections")?,
            lanes: lanes.collect(),
            refused,
        })
    }

    /// What each session says, until no other comes or the end is near. None came at all if there
    /// are none.
    pub(super) fn serve(
        &self,
        context: &CheckContext<'_>,
        until: Instant,
        end: Instant,
    ) -> anyhow::Result<Vec<Vec<CheckResult>>> {
        let mut sessions = Vec::new();
        let mut failed = None;
        let mut next = until;
        loop {
            let round = self.acceptor.begin(EPOCH, self.lanes.clone(), None);
            let links = round.connect_all(|| Instant::now() >= next);
            let Some(links) = links else {
                return match failed {
                    Some(error) if sessions.is_empty() => Err(error),
                    Some(_) | None => Ok(sessions),
                };
            };
            let links = links.into_values().collect();
            match session(context, links, end) {
                Ok(figures) => sessions.push(figures),
                Err(error) => {
                    log(&format!(
                        "a session did not come to its end, waits for another: {error:#}"
                    ));
                    failed = Some(error);
                }
            }
            let again = Instant::now() + share(context, AGAIN);
            // Whoever failed may come again as long as nobody else has.
            let patient = sessions.is_empty().then_some(until);
            next = patient.map_or(again, |until| until.max(again)).min(end);
        }
    }
}

fn session(
    context: &CheckContext<'_>,
    links: Vec<BoxedLink<Message>>,
    end: Instant,
) -> anyhow::Result<Vec<CheckResult>> {
    let first = OnceLock::new();
    let length = OnceLock::new();
    let deadline = end.min(Instant::now() + share(context, SESSION));
    let lanes = on_each(links, deadline, context.fault, |lane| {
        let said = lane.message()?;
        let Message::Start {
            warm_up_ms,
            window_ms,
        } = said
        else {
            bail!("the other side began with {said:?}");
        };
        let window = Window::new(&first, warm_up_ms, window_ms);
        let _of_another_lane = length.set(window.length);
        let received = lane.receive(&window)?;
        Ok([lane.send()?, received])
    })?;
    let length = length.into_inner().unwrap_or_default();
    Ok(figures(&lanes, length))
}

/// What several sessions say: the median of each direction. A wrong byte is wrong however often the
/// others were right.
pub(super) fn together(sessions: Vec<Vec<CheckResult>>) -> Vec<CheckResult> {
    // Each session counts, whatever it says: who dials decides how many there are.
    let every = Screen {
        device: String::new(),
        value: f64::INFINITY,
    };
    let mut sessions = sessions.into_iter();
    let first = sessions.next().unwrap_or_default();
    let mut results = screened(first, &[every], || sessions.next());
    results.sort_by(|one, other| one.device.cmp(&other.device));
    results
}
