//! The side that dials: it decides when a session begins and how long it counts.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use health::CheckResult;
use link::connect::Round;
use link::transport::BoxedLink;

use super::lane::{Window, on_each};
use super::protocol::{EPOCH, LANES, Message, Party, negotiator};
use super::{CheckContext, Pair, SESSION, WARM_UP, WINDOW, absent, figures, share};

/// How long is looked for why nobody answers.
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn run(
    context: &CheckContext<'_>,
    pair: &Pair<'_>,
    address: SocketAddr,
    started: Instant,
) -> anyhow::Result<Vec<CheckResult>> {
    let Some(links) = connect(address, pair.uid, started + pair.patience) else {
        return unreachable(&address).map(absent);
    };
    let deadline = Instant::now() + share(context, SESSION);
    let [warm_up_ms, window_ms] = [WARM_UP, WINDOW]
        .map(|part| u32::try_from(share(context, part).as_millis()).unwrap_or(u32::MAX));
    let start = Message::Start {
        warm_up_ms,
        window_ms,
    };
    let first = OnceLock::new();
    let window = Window::new(&first, warm_up_ms, window_ms);
    let lanes = on_each(links, deadline, context.fault, |lane| {
        lane.say(start)?;
        Ok([lane.send()?, lane.receive(&window)?])
    });
    let lanes = lanes.with_context(|| format!("failed to measure with {address}"))?;
    Ok(figures(&lanes, window.length))
}

/// The lanes, if all are there in time.
pub(super) fn connect(
    address: SocketAddr,
    uid: &str,
    until: Instant,
) -> Option<Vec<BoxedLink<Message>>> {
    let negotiator = Arc::new(negotiator());
    let connect = |lane| {
        let credentials = Party::lane(uid, lane).credentials(uid);
        let members = BTreeMap::from([(Party::listener(uid), address)]);
        let round = Round::new(credentials, Arc::clone(&negotiator), EPOCH, members, None);
        let links = round.connect_all(|| Instant::now() >= until);
        let link = links.and_then(|mut links| links.pop_first());
        Some(link?.1)
    };
    (0..LANES).map(connect).collect()
}

/// Why the partner is not reached, and what to do. Where nobody listens its run does not wait.
fn unreachable(address: &SocketAddr) -> anyhow::Result<String> {
    match TcpStream::connect_timeout(address, LOOK) {
        Ok(_) => bail!(
            "failed to agree with the partner at {address}: somebody answers, but not for this \
             run: is it the pod of the partner's run?"
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(format!(
            "the run on the partner node does not wait at {address}: was it there before this one?"
        )),
        Err(error) => bail!(
            "failed to reach the partner at {address} ({}): is its pod Running? does a \
             NetworkPolicy or firewall block it?",
            error.kind()
        ),
    }
}
