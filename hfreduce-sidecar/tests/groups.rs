//! Groups of ranks over real sidecars and clients: opened on demand, with links of their own, several at once.

mod gang;

use gang::grouped::{across, close, sum_in};
use gang::rdma::Fake;
use gang::{Gang, PATIENCE, f32s, filled, sum, to_f32s, wait_until};
use hfreduce_client::client::{Client, Error};
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, OpKind};
use hfreduce_sidecar::member::MemberOptions;
use hfreduce_sidecar::negotiate::Preference;

// COLL-1.
#[test]
fn groups_of_any_shape_reduce_at_the_same_time_as_the_world() {
    let fake = Fake::new();
    for transport in [Preference::Tcp, Preference::Verbs] {
        let gang = Gang::with(5, 2, |options| MemberOptions {
            transport,
            ..fake.options(options)
        });
        gang.each(|client| {
            let standing = client.standing();
            let (group, expected) = across(&client, 10 + u64::from(standing.local_rank));
            let first = standing.rank - standing.local_rank;
            let own = [first, first + 1];
            let node = client.open(100 + u64::from(standing.node), &own, true, PATIENCE);
            let node = node.unwrap();
            for elements in [1, 700, 5000] {
                assert_eq!(sum_in(&client, group, elements), vec![expected; elements]);
                let pair = (own[0] + own[1]) as f32;
                assert_eq!(sum_in(&client, node, elements), vec![pair; elements]);
                assert_eq!(
                    sum_in(&client, client.world(), elements),
                    vec![45.0; elements]
                );
            }
            close(&client, node);
            close(&client, group);
        });
    }
}

#[test]
fn a_root_and_a_gathering_go_by_the_ranks_of_the_group() {
    let gang = Gang::start(3, 2);
    gang.each(|client| {
        let rank = client.standing().rank;
        let ranks = [1, 3, 4];
        if !ranks.contains(&rank) {
            sum_in(&client, client.world(), 1);
            return;
        }
        let group = client.open(7, &ranks, true, PATIENCE).unwrap();
        assert_eq!(ranks[group.rank as usize], rank);
        let call = Call::new(OpKind::AllGather, DType::F32, 1);
        let input = filled(&client, &f32s(&[rank as f32]));
        let ticket = client
            .submit_in(group, call, Some(input), PATIENCE)
            .unwrap();
        let all = client.wait(ticket, PATIENCE).unwrap().result;
        assert_eq!(to_f32s(&all), [1.0, 3.0, 4.0]);
        let call = Call::new(OpKind::Broadcast { root: 2 }, DType::F32, 1);
        let input = (rank == 4).then(|| filled(&client, &f32s(&[17.0])));
        let ticket = client.submit_in(group, call, input, PATIENCE).unwrap();
        assert_eq!(
            to_f32s(&client.wait(ticket, PATIENCE).unwrap().result),
            [17.0]
        );
        close(&client, group);
        sum_in(&client, client.world(), 1);
    });
}

#[test]
fn ranks_that_mean_different_groups_get_an_error_and_the_world_goes_on() {
    let gang = Gang::start(3, 1);
    gang.each(|client| {
        let rank = client.standing().rank;
        let ranks: &[u32] = if rank == 1 { &[0, 1] } else { &[0, 1, 2] };
        let error = client.open(7, ranks, true, PATIENCE).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(
                error,
                Error::Group {
                    kind: FailureKind::Mismatch,
                    ..
                }
            ),
            "{text}"
        );
        assert!(text.contains("rank 1 opened it with 2 ranks"), "{text}");
        assert!(text.contains("with 3 ranks"), "{text}");
        assert_eq!(sum_in(&client, client.world(), 3), [3.0; 3]);
        let again = client.open(8, &[0, 1, 2], true, PATIENCE).unwrap();
        assert_eq!(sum_in(&client, again, 3), [3.0; 3]);
    });
}

// Without priorities both would be served in turn, and as many chunks of the large one be done meanwhile as the urgent one
// has. What a link holds is not overtaken.
#[test]
fn what_is_urgent_and_called_later_ends_before_much_more_of_what_is_large_is_done() {
    const CHUNK_BYTES: u32 = 64 << 10;
    const LARGE: u64 = 1024;
    const URGENT: u64 = 256;
    let gang = Gang::with(2, 2, |options| MemberOptions {
        chunk_bytes: CHUNK_BYTES,
        window: Some(16),
        ..options
    });
    // Each chunk is read once of each of four ranks, whoever writes the result how often.
    let series = "fireflyer_hfreduce_memory_bytes_total{access=\"read\",buffer=\"input\"}";
    let done = || gang.counted(series) / 4 / u64::from(CHUNK_BYTES);
    let round = |client: &Client, number: u64| {
        let urgent = client
            .open_with(number, &[0, 1, 2, 3], true, 5, PATIENCE)
            .unwrap();
        let [large, small] = [LARGE, URGENT].map(|chunks| {
            let bytes = chunks * u64::from(CHUNK_BYTES);
            let input = client.buffer(bytes as usize, PATIENCE).unwrap();
            (sum(bytes / 4), Some(input))
        });
        sum_in(client, urgent, 1);
        let so_far = done();
        let large = client.submit(large.0, large.1, PATIENCE).unwrap();
        wait_until(|| done() > so_far);
        let before = done();
        let small = client.submit_in(urgent, small.0, small.1, PATIENCE);
        client.wait(small.unwrap(), PATIENCE).unwrap();
        let meanwhile = (done() - before).saturating_sub(URGENT);
        client.wait(large, PATIENCE).unwrap();
        close(client, urgent);
        meanwhile
    };
    let seen = gang.each(|client| [0, 1, 2, 3, 4].map(|number| round(&client, 7 + number)));
    // Of the rank that called last, in the best round: a rank that the machine lets wait between its look and its call
    // sees more. In turn it would be so many in every round.
    let last = |number: usize| seen.iter().map(|rounds| rounds[number]).min();
    let meanwhile = (0..5).filter_map(last).min().unwrap();
    assert!(
        meanwhile < URGENT * 3 / 4,
        "of {LARGE} chunks, meanwhile: {seen:?}"
    );
}
