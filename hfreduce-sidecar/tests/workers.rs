//! What holds while threads beside the engine compute: a node whose arithmetic takes long is not taken for a dead one, and
//! whoever goes meanwhile takes no memory along that is still read or written. That results are the same with workers and
//! without is what all other tests here show, since every second node of theirs has some.

mod gang;

use std::thread;
use std::time::{Duration, Instant};

use collective::machine::Timing;
use gang::{
    Gang, PATIENCE, counter, f32s, failure, filled, held_workers, run, sum, to_f32s, wait_until,
};
use hfreduce_client::entry::FailureKind;
use hfreduce_sidecar::member::MemberOptions;

#[test]
fn a_sum_that_takes_longer_than_a_lost_node_delays_no_heartbeat() {
    // A tenth of what is usual.
    let timing = Timing {
        heartbeat: Duration::from_millis(25),
        suspect: Duration::from_millis(500),
        lost: Duration::from_secs(1),
        ..Timing::default()
    };
    let (slow, begins, allow) = held_workers();
    let options = |options: MemberOptions, rank| MemberOptions {
        timing,
        workers: if rank == 0 {
            slow.clone()
        } else {
            options.workers
        },
        ..options
    };
    let gang = Gang::over(2, 2, options, |_| {});
    let allow = allow; // Dropped before the gang, which waits for its workers.
    thread::scope(|scope| {
        let ranks = (0..4).map(|rank| {
            let client = gang.client(rank);
            scope.spawn(move || run(&client, sum(1000), &f32s(&[1.0; 1000])).unwrap())
        });
        let ranks: Vec<_> = ranks.collect();
        begins.recv_timeout(PATIENCE).unwrap();
        let start = Instant::now();
        wait_until(|| {
            let metrics = gang.nodes[1].registry.text().unwrap();
            let suspects = counter(&metrics, "fireflyer_hfreduce_suspects_total ");
            assert_eq!(suspects, 0, "a node that computes is a suspect");
            start.elapsed() > timing.lost + timing.suspect
        });
        assert!(ranks.iter().all(|rank| !rank.is_finished()));
        drop(allow);
        for rank in ranks {
            assert_eq!(to_f32s(&rank.join().unwrap().result), [4.0; 1000]);
        }
    });
}

#[test]
fn who_is_left_learns_of_a_loss_while_a_sum_is_under_way_and_the_node_ends_in_good_order() {
    let (slow, begins, allow) = held_workers();
    let gang = Gang::with(1, 2, |options| MemberOptions {
        workers: slow.clone(),
        ..options
    });
    let allow = allow; // Dropped before the gang, which waits for its workers.
    let (stays, goes) = (gang.client(0), gang.client(1));
    let tickets = [&stays, &goes].map(|client| {
        let input = filled(client, &f32s(&[1.0; 1000]));
        client.submit(sum(1000), Some(input), PATIENCE).unwrap()
    });
    begins.recv_timeout(PATIENCE).unwrap();
    goes.abandon();
    let (kind, text) = failure(stays.wait(tickets[0], PATIENCE));
    assert_eq!(kind, FailureKind::Broken, "{text}");
    // Its input and the result are in the hands of a worker.
    drop(stays);
    drop(allow);
    drop(gang);
}
