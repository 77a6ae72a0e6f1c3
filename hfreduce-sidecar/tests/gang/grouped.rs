//! Ranks that open groups, reduce in them and close them.

use hfreduce_client::client::{CallTicket, Client, Group};
use hfreduce_client::{Call, DType, ReduceOp};

use super::{PATIENCE, f32s, filled, to_f32s};

/// The sum of a group's ranks, with theirs added to each element.
pub(crate) fn sum_in(client: &Client, group: Group, elements: usize) -> Vec<f32> {
    let ticket = call_sum_in(client, group, elements);
    to_f32s(&client.wait(ticket, PATIENCE).unwrap().result)
}

/// The same, which is not waited for.
pub(crate) fn call_sum_in(client: &Client, group: Group, elements: usize) -> CallTicket {
    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, elements as u64);
    let rank = client.standing().rank as f32;
    let input = filled(client, &f32s(&vec![rank; elements]));
    client
        .submit_in(group, call, Some(input), PATIENCE)
        .unwrap()
}

/// All ranks of a group close it.
pub(crate) fn close(client: &Client, group: Group) {
    let ticket = client.submit_in(group, Call::close(), None, PATIENCE);
    client.wait(ticket.unwrap(), PATIENCE).unwrap();
}

/// Every so many ranks, in as many groups as there are places in a node: what data parallel training over nodes makes.
pub(crate) fn across(client: &Client, number: u64) -> (Group, f32) {
    let standing = client.standing();
    let ranks: Vec<u32> = (standing.local_rank..standing.world)
        .step_by(standing.local_world as usize)
        .collect();
    let group = client.open(number, &ranks, true, PATIENCE).unwrap();
    (group, ranks.iter().map(|rank| *rank as f32).sum())
}
