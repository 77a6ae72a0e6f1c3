//! What each rank gets for itself, over real sidecars and clients: gathers, scatters, all-to-alls, and messages between
//! two ranks.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod gang;

use std::time::Duration;

use gang::rdma::Fake;
use gang::{Gang, PATIENCE, f32s, filled, run, sum, to_f32s};
use hfreduce_client::client::{CallTicket, Client, Error, Group};
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, OpKind, parts};
use hfreduce_sidecar::member::MemberOptions;
use hfreduce_sidecar::negotiate::Preference;

fn submit(client: &Client, group: Group, call: Call, input: Option<&[f32]>) -> CallTicket {
    let input = input.map(|input| filled(client, &f32s(input)));
    client.submit_in(group, call, input, PATIENCE).unwrap()
}

fn take(client: &Client, ticket: CallTicket) -> Vec<f32> {
    to_f32s(&client.wait(ticket, PATIENCE).unwrap().result)
}

fn floats(kind: OpKind, count: usize) -> Call {
    Call::new(kind, DType::F32, count as u64)
}

/// How many elements a rank has for another, and what they are.
fn part(from: u32, to: u32, most: usize) -> Vec<f32> {
    let length = (from * 31 + to * 17) as usize * 257 % (most + 1);
    (0..length)
        .map(|at| (from * 1000 + to) as f32 + at as f32 / 1024.0)
        .collect()
}

fn all_to_all(client: &Client, group: Group, most: usize, odd: u64) -> CallTicket {
    let others = 0..group.size;
    let sent: Vec<Vec<f32>> = others
        .clone()
        .map(|to| part(group.rank, to, most))
        .collect();
    let send: Vec<u64> = sent.iter().map(|part| part.len() as u64).collect();
    let mut receive: Vec<u64> = others
        .map(|from| part(from, group.rank, most).len() as u64)
        .collect();
    receive[0] += odd;
    let lists = parts::bytes(group.size);
    let elements = f32s(&sent.concat());
    let mut input = client.buffer(lists + elements.len(), PATIENCE).unwrap();
    parts::write(&send, &receive, &mut input[..lists]);
    input[lists..].copy_from_slice(&elements);
    let call = Call::new(OpKind::AllToAll { with: None }, DType::F32, 0);
    client
        .submit_in(group, call, Some(input), PATIENCE)
        .unwrap()
}

fn expected(group: Group, most: usize) -> Vec<f32> {
    let parts = (0..group.size).map(|from| part(from, group.rank, most));
    parts.collect::<Vec<_>>().concat()
}

// COLL-1.
#[test]
fn each_rank_gets_what_is_for_it_over_any_transport() {
    let fake = Fake::new();
    for transport in [Preference::Tcp, Preference::Verbs] {
        let gang = Gang::with(4, 2, |options| MemberOptions {
            transport,
            ..fake.options(options)
        });
        gang.each(|client| {
            let world = client.world();
            for most in [0, 3, 900, 5000] {
                let ticket = all_to_all(&client, world, most, 0);
                assert_eq!(take(&client, ticket), expected(world, most));
                for root in [0, 3, 7] {
                    let own = part(world.rank, 8, most.max(1));
                    let own = vec![own.first().copied().unwrap_or(0.5); most];
                    let call = floats(OpKind::Gather { root }, most);
                    let ticket = submit(&client, world, call, Some(&own));
                    let all = take(&client, ticket);
                    if world.rank == root {
                        assert_eq!(all.len(), 8 * most);
                        let mine = root as usize * most;
                        assert_eq!(all[mine..mine + most], own);
                    } else {
                        assert_eq!(all, Vec::<f32>::new());
                    }
                    let whole: Vec<f32> = (0..8 * most).map(|at| at as f32).collect();
                    let call = floats(OpKind::Scatter { root }, most);
                    let brought = (world.rank == root).then_some(&whole[..]);
                    let ticket = submit(&client, world, call, brought);
                    let mine = world.rank as usize * most;
                    assert_eq!(take(&client, ticket), whole[mine..mine + most]);
                }
            }
        });
    }
}

#[test]
fn messages_of_two_ranks_arrive_in_their_order_whatever_the_others_do() {
    let gang = Gang::with(3, 2, |options| MemberOptions {
        chunk_bytes: 4096,
        ..options
    });
    gang.each(|client| {
        let world = client.world();
        let next = (world.rank + 1) % world.size;
        let before = (world.rank + world.size - 1) % world.size;
        let of = |from: u32, number: usize| vec![(from * 10) as f32 + number as f32; number * 700];
        let mut received = Vec::new();
        for number in (0..4).rev() {
            // The tags the other way round than they are sent.
            let call = Call {
                tag: number as u64,
                ..floats(OpKind::Receive { from: before }, number * 700)
            };
            received.push((number, submit(&client, world, call, None)));
        }
        let sum = Call::all_reduce(DType::F32, hfreduce_client::ReduceOp::Sum, 1);
        let total = submit(&client, world, sum, Some(&[1.0]));
        let sent: Vec<CallTicket> = (0..4)
            .map(|number| {
                let call = Call {
                    tag: number as u64,
                    ..floats(OpKind::Send { to: next }, number * 700)
                };
                submit(&client, world, call, Some(&of(world.rank, number)))
            })
            .collect();
        assert_eq!(take(&client, total), [6.0]);
        for (number, ticket) in received {
            assert_eq!(take(&client, ticket), of(before, number));
        }
        for ticket in sent {
            take(&client, ticket);
        }
        // Under one tag they come as they were sent.
        let tickets: Vec<CallTicket> = (0..3)
            .flat_map(|number| {
                let send = floats(OpKind::Send { to: next }, 5);
                let receive = floats(OpKind::Receive { from: before }, 5);
                [
                    submit(&client, world, send, Some(&[number as f32; 5])),
                    submit(&client, world, receive, None),
                ]
            })
            .collect();
        for (number, pair) in tickets.chunks(2).enumerate() {
            assert_eq!(take(&client, pair[1]), [number as f32; 5]);
            take(&client, pair[0]);
        }
    });
}

#[test]
fn messages_meet_in_any_order_however_many_were_called_for_before() {
    // More than a ring holds, and than two nodes may have operations' messages in flight.
    const SENT: u64 = 200;
    const RECEIVED: u64 = 300;
    let gang = Gang::start(2, 1);
    gang.each(|client| {
        let world = client.world();
        let other = 1 - world.rank;
        let of = |from: u32, tag: u64| [(from * 1000) as f32 + tag as f32; 3];
        let send = |tag| {
            let call = floats(OpKind::Send { to: other }, 3);
            submit(
                &client,
                world,
                Call { tag, ..call },
                Some(&of(world.rank, tag)),
            )
        };
        let receive = |tag| {
            let call = floats(OpKind::Receive { from: other }, 3);
            submit(&client, world, Call { tag, ..call }, None)
        };
        let sent: Vec<CallTicket> = (0..SENT).map(send).collect();
        // Each is waited for before the next is called for.
        for tag in (0..SENT).rev() {
            assert_eq!(take(&client, receive(tag)), of(other, tag));
        }
        for ticket in sent {
            take(&client, ticket);
        }
        let received: Vec<CallTicket> = (0..RECEIVED).map(receive).collect();
        // All have called for theirs, and none is sent.
        let sum = Call::all_reduce(DType::F32, hfreduce_client::ReduceOp::Sum, 1);
        let total = submit(&client, world, sum, Some(&[1.0]));
        assert_eq!(take(&client, total), [2.0]);
        for tag in (0..RECEIVED).rev() {
            let sent = send(tag);
            assert_eq!(take(&client, received[tag as usize]), of(other, tag));
            take(&client, sent);
        }
    });
}

#[test]
fn groups_exchange_beside_each_other() {
    let gang = Gang::start(3, 2);
    gang.each(|client| {
        let standing = client.standing();
        let ranks: Vec<u32> = (0..3).map(|node| 2 * node + standing.local_rank).collect();
        let number = 7 + u64::from(standing.local_rank);
        let group = client.open(number, &ranks, false, PATIENCE).unwrap();
        let tickets = [client.world(), group, client.world(), group]
            .map(|group| (group, all_to_all(&client, group, 2000, 0)));
        for (group, ticket) in tickets.into_iter().rev() {
            assert_eq!(take(&client, ticket), expected(group, 2000));
        }
        let close = client.submit_in(group, Call::close(), None, PATIENCE);
        client.wait(close.unwrap(), PATIENCE).unwrap();
    });
}

fn failure(client: &Client, ticket: CallTicket) -> (FailureKind, String) {
    match client.wait(ticket, PATIENCE) {
        Err(Error::Operation { kind, text, .. }) => (kind, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_disagrees_about_a_part_is_named_on_all_ranks_and_the_next_operation_runs() {
    let gang = Gang::start(3, 1);
    gang.each(|client| {
        let world = client.world();
        let odd = u64::from(world.rank == 2);
        let ticket = all_to_all(&client, world, 50, odd);
        let (kind, text) = failure(&client, ticket);
        assert_eq!(kind, FailureKind::Mismatch);
        let count = part(0, 2, 50).len();
        let one = format!("rank 0 called alltoall({count} x f32 with rank 2)");
        let other = format!("rank 2 called alltoall({} x f32 with rank 0)", count + 1);
        assert!(text.contains(&one) && text.contains(&other), "{text}");
        let ticket = match world.rank {
            1 => submit(&client, world, Call::barrier(), None),
            _ => all_to_all(&client, world, 50, 0),
        };
        let (kind, text) = failure(&client, ticket);
        assert_eq!(kind, FailureKind::Mismatch);
        assert!(text.contains("rank 1 called barrier()"), "{text}");
        assert!(text.contains("called alltoall(f32)"), "{text}");
        let ticket = all_to_all(&client, world, 50, 0);
        assert_eq!(take(&client, ticket), expected(world, 50));
    });
}

#[test]
fn a_message_of_another_size_is_an_error_on_both_ranks_and_nobody_else() {
    let gang = Gang::start(3, 1);
    gang.each(|client| {
        let world = client.world();
        let ticket = match world.rank {
            0 => submit(
                &client,
                world,
                floats(OpKind::Send { to: 2 }, 4),
                Some(&[1.0; 4]),
            ),
            2 => submit(&client, world, floats(OpKind::Receive { from: 0 }, 5), None),
            _ => submit(&client, world, Call::barrier(), None),
        };
        if world.rank != 1 {
            let (kind, text) = failure(&client, ticket);
            assert_eq!(kind, FailureKind::Mismatch);
            assert!(
                text.contains("rank 0 called send(4 x f32 to rank 2)"),
                "{text}"
            );
            assert!(
                text.contains("rank 2 called recv(5 x f32 from rank 0)"),
                "{text}"
            );
            let barrier = submit(&client, world, Call::barrier(), None);
            take(&client, barrier);
        } else {
            take(&client, ticket);
        }
        let ticket = submit(
            &client,
            world,
            floats(OpKind::Send { to: 9 }, 4),
            Some(&[1.0; 4]),
        );
        let (kind, text) = failure(&client, ticket);
        assert_eq!(kind, FailureKind::Refused);
        assert!(text.contains("is not a rank of the group"), "{text}");
    });
}

#[test]
fn lists_that_lie_are_refused_on_all_ranks() {
    let gang = Gang::start(2, 1);
    gang.each(|client| {
        let world = client.world();
        let lists = parts::bytes(2);
        let mut input = client.buffer(lists + 64, PATIENCE).unwrap();
        let most = if world.rank == 1 { 1 << 60 } else { 1 };
        parts::write(&[most, 1], &[1, 1], &mut input[..lists]);
        let call = Call::new(OpKind::AllToAll { with: None }, DType::F32, 0);
        let ticket = client
            .submit_in(world, call, Some(input), PATIENCE)
            .unwrap();
        let (kind, text) = failure(&client, ticket);
        assert_eq!(kind, FailureKind::Refused);
        assert!(
            text.contains("its parts are not one for each rank"),
            "{text}"
        );
        let ticket = all_to_all(&client, world, 9, 0);
        assert_eq!(take(&client, ticket), expected(world, 9));
    });
}

// COLL-2.
#[test]
fn a_process_that_dies_ends_the_messages_of_the_others_with_its_name() {
    let gang = Gang::start(3, 1);
    gang.each(|client| {
        let world = client.world();
        match world.rank {
            0 => {
                let ticket = submit(&client, world, floats(OpKind::Receive { from: 1 }, 5), None);
                let (kind, text) = failure(&client, ticket);
                assert_eq!(kind, FailureKind::Broken);
                assert!(text.contains("rank 2 on node 2 died"), "{text}");
            }
            1 => {
                let ticket = all_to_all(&client, world, 9, 0);
                let (kind, _) = failure(&client, ticket);
                assert_eq!(kind, FailureKind::Broken);
            }
            _ => {
                let call = floats(OpKind::Receive { from: 0 }, 1);
                let ticket = submit(&client, world, call, None);
                let late = client.wait(ticket, Duration::from_millis(50));
                assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
                client.abandon();
            }
        }
    });
}

#[test]
fn who_sends_to_a_rank_that_has_left_gets_an_error_at_once() {
    let gang = Gang::start(1, 2);
    gang.each(|client| {
        run(&client, sum(1), &f32s(&[1.0])).unwrap();
        if client.standing().rank == 0 {
            let send = floats(OpKind::Send { to: 1 }, 1);
            let ticket = submit(&client, client.world(), send, Some(&[1.0]));
            let (kind, text) = failure(&client, ticket);
            assert_eq!(kind, FailureKind::Refused);
            assert!(text.contains("the rank that it is for has left"), "{text}");
        }
    });
}
