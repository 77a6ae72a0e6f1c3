//! A gang whose sidecars are killed and started again, as the kubelet does it.

use std::thread;
use std::time::Duration;

use hfreduce_client::client::{CallTicket, Client, Output};
use hfreduce_client::{Call, DType, ReduceOp};

use super::leader::Leader;
use super::pods::Pods;
use super::{PATIENCE, f32s, filled, to_f32s};

/// Nobody is given up while a busy machine starts a process.
const PEER_LOSS: Duration = Duration::from_secs(60);

/// Nodes whose processes call sums, and check them.
pub(crate) struct Restarted {
    pub(crate) leader: Leader,
    pub(crate) pods: Pods,
    pub(crate) clients: Vec<Client>,
}

impl Restarted {
    pub(crate) fn start(transport: &str, (nodes, procs): (u32, u32)) -> Self {
        let leader = Leader::start(nodes as usize, PEER_LOSS);
        let pods = Pods::of_processes((nodes, procs), leader.address, transport);
        let ranks = 0..nodes * procs;
        let clients: Vec<Client> = ranks.map(|rank| pods.client_of(rank)).collect();
        let gang = Self {
            leader,
            pods,
            clients,
        };
        gang.check(gang.call_all(10), 10);
        gang
    }

    pub(crate) fn call_all(&self, elements: usize) -> Vec<CallTicket> {
        let call = |client| submit(client, elements);
        self.clients.iter().map(call).collect()
    }

    /// All ranks have taken part, and nobody was put out.
    pub(crate) fn check(&self, tickets: Vec<CallTicket>, elements: usize) {
        thread::scope(|scope| {
            for (client, ticket) in self.clients.iter().zip(tickets) {
                scope.spawn(move || whole(&client.wait(ticket, PATIENCE).unwrap(), elements));
            }
        });
        let view = self.leader.view.lock().unwrap().clone().unwrap();
        assert!(
            view.members
                .into_iter()
                .eq(0..self.pods.children.len() as u32)
        );
    }
}

pub(crate) fn submit(client: &Client, elements: usize) -> CallTicket {
    let rank = client.standing().rank as f32;
    let input = filled(client, &f32s(&vec![rank + 1.0; elements]));
    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, elements as u64);
    client.submit(call, Some(input), PATIENCE).unwrap()
}

/// The result has the contributions of all ranks, and the input is as it was.
pub(crate) fn whole(output: &Output, elements: usize) {
    let world = output.members.ranks;
    let all = (1..=world).sum::<u32>() as f32;
    let sums = to_f32s(&output.result);
    assert_eq!(sums.len(), elements);
    assert!(sums.iter().all(|sum| *sum == all), "{:?}", &sums[..1]);
    assert_eq!(output.members.runs.len(), 1);
    let input = to_f32s(output.input.as_ref().unwrap());
    assert!(input.iter().all(|one| *one == input[0]));
}
