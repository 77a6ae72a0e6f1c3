//! The side that dials: it decides when a session begins and how long it counts.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use health::CheckResult;
use link::connect::Round;
use link::transport::BoxedLink;

use super::lane::{Window, on_each};
use super::protocol::{EPOCH, LANES, Message, Party, negotiator};
use super::{CheckContext, Pair, SESSION, WARM_UP, WINDOW, figures, share};

/// How long is looked for why nobody answers.
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn run(
    context: &CheckContext<'_>,
    pair: &Pair<'_>,
    address: SocketAddr,
    until: Instant,
) -> anyhow::Result<Vec<CheckResult>> {
    let links = connect(address, pair.uid, until)?;
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

fn connect(
    address: SocketAddr,
    uid: &str,
    until: Instant,
) -> anyhow::Result<Vec<BoxedLink<Message>>> {
    let negotiator = Arc::new(negotiator());
    let connect = |lane| {
        let credentials = Party::lane(uid, lane).credentials(uid);
        let members = BTreeMap::from([(Party::listener(uid), address)]);
        let round = Round::new(credentials, Arc::clone(&negotiator), EPOCH, members, None);
        let links = round.connect_all(|| Instant::now() >= until);
        let link = links.and_then(|mut links| links.pop_first());
        link.map_or_else(|| Err(unreachable(&address)), |(_, link)| Ok(link))
    };
    (0..LANES).map(connect).collect()
}

/// Why the partner is not reached, and what to do.
fn unreachable(address: &SocketAddr) -> anyhow::Error {
    match TcpStream::connect_timeout(address, LOOK) {
        Ok(_) => anyhow!(
            "failed to agree with the partner at {address}: somebody answers, but not for this \
             run: is it the pod of the partner's run?"
        ),
        Err(error) => anyhow!(
            "failed to reach the partner at {address} ({}): is its pod Running? does a \
             NetworkPolicy or firewall block it?",
            error.kind()
        ),
    }
}
