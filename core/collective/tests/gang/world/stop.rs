//! How a sidecar stops: it reports how far it is, asks others whether they are reached, and reports again when that changes.

use collective::machine::Input;
use collective::membership::{MembershipEvent, Reach, probes};
use collective::recovery::EpochReport;
use sim::To;

use super::{Event, Leads, MS, World};

impl World {
    pub(crate) fn machine_stopped(&mut self, node: usize, report: EpochReport) {
        let sidecar = &mut self.sidecars[node];
        sidecar.asked = sidecar.asked.max(sidecar.epoch);
        sidecar.report = Some(report);
        self.report_of(node);
        self.probe_peers(node);
    }

    pub(crate) fn stop(&mut self, node: usize, epoch: u64) {
        let sidecar = &mut self.sidecars[node];
        if epoch < sidecar.asked || epoch < sidecar.epoch {
            return; // From before what it has joined since.
        }
        sidecar.asked = epoch;
        if sidecar
            .joining
            .as_ref()
            .is_some_and(|joining| joining.epoch <= epoch)
        {
            sidecar.joining = None;
        }
        sidecar.said = None;
        if sidecar.machine.is_some() && sidecar.report.is_none() {
            self.handle(node, Input::Revoke);
            return;
        }
        self.probe_peers(node);
    }

    pub(crate) fn probe_peers(&mut self, node: usize) {
        if self.setup.leads == Leads::Test {
            return;
        }
        let now = self.now();
        if self.sidecars[node].asks_since.replace(now).is_none() {
            let probe = Event::Probe { node };
            self.hosts.after(2 * MS, To::Process(node), probe);
        }
    }

    pub(crate) fn probe(&mut self, node: usize) {
        if self.sidecars[node].asks_since.is_none() {
            return;
        }
        self.report_stopped(node);
        let soon = self.now() < self.sidecars[node].asks_since.unwrap() + 260 * MS;
        let pause = if soon { 50 * MS } else { 200 * MS };
        let probe = Event::Probe { node };
        self.hosts.after(pause, To::Process(node), probe);
    }

    pub(crate) fn reach(&self, node: usize) -> Reach {
        let sidecar = &self.sidecars[node];
        let members: Vec<u32> = if sidecar.members.is_empty() {
            sidecar.known.clone()
        } else {
            sidecar.members.iter().map(|&node| node as u32).collect()
        };
        let answers = |&other: &u32| {
            let peer = other as usize;
            let answers = self.hosts.runs(peer) && !self.hosts.is_frozen(peer);
            answers && !self.sidecars[peer].is_out && !self.is_cut(node, peer)
        };
        let (reached, unreached) = probes(&members, node as u32).into_iter().partition(answers);
        Reach { reached, unreached }
    }

    /// Reports, when all processes are there and those that were asked have answered or had the time to; again when
    /// it has changed whom this node reaches.
    pub(crate) fn report_stopped(&mut self, node: usize) {
        let sidecar = &self.sidecars[node];
        let waits = sidecar.attached < self.setup.layout.local(node);
        let Some(since) = sidecar.asks_since.filter(|_| !waits) else {
            return;
        };
        let Some(report) = self.report_of(node) else {
            return;
        };
        let sidecar = &self.sidecars[node];
        let reach = self.reach(node);
        let early = self.now() < since + 250 * MS;
        if sidecar.said.as_ref() == Some(&reach) || early && !reach.unreached.is_empty() {
            return;
        }
        let epoch = sidecar.asked;
        if sidecar.connection.is_none() {
            return;
        }
        self.sidecars[node].said = Some(reach.clone());
        self.report(node, |connection| MembershipEvent::Stopped {
            connection,
            epoch,
            report: report.clone(),
            reach: reach.clone(),
        });
    }
}
