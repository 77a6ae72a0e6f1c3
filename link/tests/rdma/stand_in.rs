//! On a stand-in for libibverbs: what is said on machines without RDMA, and what happens when devices misbehave.

use link::segment::{Segment, Writers};
use link::verbs::channel::{ChannelOptions, Destination, Payload, SlotTarget};
use link::verbs::{
    Access, CompletionQueue, Error, GidChoice, NAME, PairOptions, PathOptions, QueuePair,
    RegisteredRegion, VerbsLibrary, Write, devices, find,
};
use proptest::prelude::*;

use crate::fake::{
    DROPPED, Fake, INFINIBAND, INLINE_REFUSED, NO_DEVICE, OPEN_REFUSED, PORT_DOWN, PORT_MUTE,
    REGISTER_REFUSED, SHUFFLE, STATUS,
};
use crate::nodes::{End, WINDOW, channel, connect, exchange, header, wake_a_sleeper, work_until};

const SMALL: ChannelOptions = ChannelOptions { slots: 4, sends: 8 };
const MEBIBYTE: usize = 1 << 20;

fn words(result: Result<impl Sized, Error>) -> String {
    result
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default()
}

#[test]
fn a_missing_library_an_old_one_and_no_device_are_errors_of_one_sentence() {
    let missing = words(VerbsLibrary::load(Some(
        "/nowhere/libibverbs.so.1".as_ref(),
    )));
    assert!(
        missing.starts_with("failed to load /nowhere/libibverbs.so.1"),
        "{missing}"
    );
    assert!(missing.contains("ibverbs-providers"), "{missing}");
    // Any library is one without our functions.
    let old = words(VerbsLibrary::load(Some("libc.so.6".as_ref())));
    assert_eq!(
        old,
        "failed to find ibv_get_device_list in libc.so.6: it is older than rdma-core 32"
    );
    let fake = Fake::new();
    fake.inject(NO_DEVICE, 0);
    let none = words(devices(&fake.library));
    assert!(none.contains("/dev/infiniband"), "{none}");
    let fake = Fake::new();
    fake.inject(OPEN_REFUSED, 0);
    let refused = words(devices(&fake.library));
    assert!(
        refused.contains("fake0") && refused.contains("may this user open it"),
        "{refused}"
    );
    assert_eq!(NAME, "libibverbs.so.1");
}

#[test]
fn devices_have_ports_and_addresses() {
    let [_, second] = Fake::new().nodes();
    assert_eq!(second.context.name(), "fake1");
    assert!(second.port.active);
    assert_eq!(
        (second.gid.index, second.gid.to_string().as_str()),
        (2, "2 RoceV2 192.0.2.11")
    );
    let wrong = GidChoice::Address("192.0.2.99".parse().unwrap());
    let error = words(second.port.gid("fake1", wrong));
    assert!(
        error.contains("192.0.2.99") && error.contains("2 RoceV2 192.0.2.11"),
        "{error}"
    );
}

#[test]
fn a_device_is_found_by_name_by_address_and_by_whether_its_port_is_up() {
    let fake = Fake::new();
    let found = |name: Option<&str>, choice| {
        find(&fake.library, name, None, choice).map(|(device, _, gid)| {
            let name = device.name().to_owned();
            (name, gid.address().to_string())
        })
    };
    let first = ("fake0".to_owned(), "192.0.2.10".to_owned());
    let second = ("fake1".to_owned(), "192.0.2.11".to_owned());
    let address = |text: &str| GidChoice::Address(text.parse().unwrap());
    assert_eq!(found(None, GidChoice::Automatic).unwrap(), first);
    assert_eq!(found(Some("fake1"), GidChoice::Automatic).unwrap(), second);
    assert_eq!(found(None, address("192.0.2.11")).unwrap(), second);
    let unknown = words(found(Some("mlx5_0"), GidChoice::Automatic));
    assert!(
        unknown.contains("mlx5_0; the devices here are fake0, fake1"),
        "{unknown}"
    );
    let nowhere = words(found(None, address("192.0.2.12")));
    assert!(nowhere.contains("192.0.2.12"), "{nowhere}");
    fake.inject(PORT_MUTE, 0);
    assert_eq!(
        found(None, GidChoice::Automatic).unwrap(),
        second,
        "a sick device is passed by"
    );
    fake.inject(PORT_DOWN, 0);
    assert_eq!(found(None, GidChoice::Automatic).unwrap(), second);
    fake.inject(PORT_DOWN, 1);
    let down = words(found(None, GidChoice::Automatic));
    assert!(
        down.starts_with("failed to find an active port on any RDMA device"),
        "{down}"
    );
}

#[test]
fn memory_that_cannot_be_registered_is_an_error_with_the_reason() {
    let fake = Fake::new();
    let [node, _] = fake.nodes();
    let segment = Segment::create("test", MEBIBYTE, Writers::Everybody).unwrap();
    fake.inject(REGISTER_REFUSED, 0);
    let error = words(RegisteredRegion::register(
        &node.domain,
        &segment,
        Access::default(),
    ));
    // Which of the two it is depends on this machine's limit.
    assert!(
        error.contains("failed to register 1048576 bytes") || error.contains("LimitMEMLOCK"),
        "{error}"
    );
}

#[test]
fn a_region_outlives_its_segment_and_knows_its_bounds() {
    let [node, _] = Fake::new().nodes();
    let segment = Segment::create("test", MEBIBYTE, Writers::Everybody).unwrap();
    let region = RegisteredRegion::register(&node.domain, &segment, Access::default()).unwrap();
    drop(segment);
    assert!(region.remote(0, MEBIBYTE as u64).is_ok());
    for (offset, bytes) in [
        (1, MEBIBYTE as u64),
        (u64::MAX, 2),
        (MEBIBYTE as u64 + 1, 0),
    ] {
        assert!(region.remote(offset, bytes).is_err());
    }
    assert!(
        region.source(0, MEBIBYTE as u32).is_ok() && region.source(1, MEBIBYTE as u32).is_err()
    );
}

#[test]
fn frames_cross_in_both_directions_in_order_with_their_payload() {
    let [one, other] = Fake::new().nodes();
    let mut ends = channel(&one, &other, SMALL, MEBIBYTE);
    exchange(&mut ends, 500, 50_000);
}

#[test]
fn over_infiniband_both_ends_use_gids_where_one_is_reached_by_nothing_else() {
    // The stand-in connects nobody who addresses otherwise.
    for by_gid in 0..4 {
        let fake = Fake::new();
        fake.inject(INFINIBAND, by_gid);
        let [one, other] = fake.nodes();
        let mut ends = channel(&one, &other, SMALL, MEBIBYTE);
        exchange(&mut ends, 10, 1000);
    }
}

#[test]
fn a_device_that_carries_nothing_inside_requests_will_do() {
    let fake = Fake::new();
    let [one, other] = fake.nodes();
    fake.inject(INLINE_REFUSED, 0);
    fake.inject(INLINE_REFUSED, 0);
    let mut ends = channel(&one, &other, SMALL, MEBIBYTE);
    exchange(&mut ends, 100, 1000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn frames_cross_whatever_the_order_of_devices_work(
        seed in any::<u64>(),
        slots in 1u32..6,
        sends in 8u32..40,
    ) {
        let fake = Fake::new();
        let [one, other] = fake.nodes();
        fake.inject(SHUFFLE, seed);
        let options = ChannelOptions { slots: 2 * slots, sends };
        let mut ends = channel(&one, &other, options, MEBIBYTE);
        // Nothing is delivered without somebody polling, so nobody may sleep long.
        exchange(&mut ends, 60, 1000);
    }
}

#[test]
fn a_completion_wakes_whoever_sleeps_on_the_descriptor() {
    let [one, other] = Fake::new().nodes();
    wake_a_sleeper(&mut channel(&one, &other, SMALL, MEBIBYTE));
}

#[test]
fn two_channels_share_a_queue() {
    let [one, other] = Fake::new().nodes();
    let queue = CompletionQueue::new(&one.context, 2 * SMALL.completions()).unwrap();
    let mut near = [0, 1].map(|_| End::with_queue(&one, SMALL, MEBIBYTE, &queue));
    let mut far = [0, 1].map(|_| End::new(&other, SMALL, MEBIBYTE));
    for (near, far) in near.iter_mut().zip(&mut far) {
        connect(near, far, PathOptions::default());
    }
    for number in 0..40 {
        far[0].send(number, 0, 0, 10);
        far[1].send(1000 + number, 0, 0, 10);
    }
    let mut completions = Vec::new();
    while near.iter().any(|end| end.frames.len() < 40) {
        for far in &mut far {
            far.work();
            assert!(far.error.is_none(), "{}", far.words());
        }
        near.iter_mut().for_each(End::post);
        queue.poll(&mut completions).unwrap();
        for completion in completions.drain(..) {
            let mut owners = near.iter_mut();
            let owner = owners.find(|end| end.channel.number() == completion.pair);
            owner.unwrap().take(&completion);
        }
    }
    let first = |end: &End| end.frames[0].0.number;
    assert_eq!((first(&near[0]), first(&near[1])), (0, 1000));
}

#[test]
fn a_failed_write_ends_the_channel_and_gives_every_ticket_back() {
    for (status, expected) in [
        (12, "the peer does not answer"),
        (10, "refused access to its memory"),
        (4, "may not use the memory"),
        (77, "work completion status 77"),
    ] {
        let fake = Fake::new();
        let [one, other] = fake.nodes();
        let [mut one, mut other] = channel(&one, &other, SMALL, MEBIBYTE);
        work_until(&mut [&mut one, &mut other], "windows", |ends| {
            ends.iter().all(|end| end.channel.is_flushed())
        });
        fake.inject(STATUS, status);
        for number in 0..20 {
            one.send(number, 0, 0, 100);
        }
        work_until(&mut [&mut one], "the error", |ends| ends[0].error.is_some());
        assert!(one.words().contains(expected), "{status}: {}", one.words());
        one.left.sort_unstable();
        assert_eq!(one.left, (0..20).collect::<Vec<_>>());
        // The other side notices when it writes.
        other.send(0, 0, 0, 100);
        work_until(&mut [&mut other], "the other's error", |ends| {
            ends[0].error.is_some()
        });
        let words = other.words();
        let noticed = words.contains("does not answer") || words.contains("given up");
        assert!(noticed, "{words}");
    }
}

#[test]
fn a_lost_header_is_noticed() {
    let fake = Fake::new();
    let [one, other] = fake.nodes();
    let [mut one, mut other] = channel(&one, &other, SMALL, MEBIBYTE);
    work_until(&mut [&mut one, &mut other], "windows", |ends| {
        ends.iter().all(|end| end.channel.is_flushed())
    });
    fake.inject(DROPPED, 0);
    one.send(0, 0, 0, 0);
    one.post();
    work_until(&mut [&mut other], "the error", |ends| {
        ends[0].error.is_some()
    });
    assert!(
        other.words().contains("does not hold what was announced"),
        "{}",
        other.words()
    );
}

#[test]
fn payload_that_is_not_wanted_is_not_sent_and_its_frame_comes() {
    let [one, other] = Fake::new().nodes();
    let [mut one, mut other] = channel(&one, &other, SMALL, MEBIBYTE);
    other.channel.refuse(WINDOW).unwrap();
    other.post();
    work_until(&mut [&mut other, &mut one], "the refusal", |ends| {
        ends[0].channel.is_flushed()
    });
    one.memory.bytes_mut()[..100].fill(7);
    one.send(0, 0, 0, 100);
    work_until(&mut [&mut one, &mut other], "the frame", |ends| {
        ends[1].frames.len() == 1 && ends[0].left.len() == 1
    });
    assert_eq!(other.frames[0], (header(0, 100), SlotTarget::Unwanted));
    assert!(other.memory.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_payload_must_be_as_long_as_its_header_says() {
    let [one, other] = Fake::new().nodes();
    let [mut one, _other] = channel(&one, &other, SMALL, MEBIBYTE);
    let payload = Payload {
        ticket: 1,
        source: one.region.source(0, 99).unwrap(),
        destination: Destination {
            window: WINDOW,
            offset: 0,
        },
    };
    assert!(one.channel.push(header(0, 100), Some(payload)).is_err());
    assert!(one.channel.push(header(0, 100), None).is_err());
}

#[test]
fn rings_of_different_sizes_are_refused() {
    let [one, other] = Fake::new().nodes();
    let mut one = End::new(&one, SMALL, MEBIBYTE);
    let other = End::new(&other, ChannelOptions { slots: 6, ..SMALL }, MEBIBYTE);
    let invitation = other.channel.invitation().unwrap();
    let refused = one.channel.connect(&invitation, PathOptions::default());
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the peer's ring has 6 slots, ours has 4"
    );
}

#[test]
fn full_queues_are_errors_and_nothing_is_overwritten() {
    let [one, other] = Fake::new().nodes();
    let queue = CompletionQueue::new(&one.context, 64).unwrap();
    let options = PairOptions {
        sends: 2,
        receives: 1,
        inline_bytes: 0,
    };
    let mut pair = QueuePair::new(&one.domain, &queue, &one.port, &one.gid, options).unwrap();
    let mut peer = QueuePair::new(&other.domain, &queue, &other.port, &other.gid, options).unwrap();
    pair.post_receive(1).unwrap();
    assert!(pair.post_receive(2).is_err());
    let ends = (pair.endpoint(), peer.endpoint());
    pair.connect(&ends.1, PathOptions::default()).unwrap();
    peer.connect(&ends.0, PathOptions::default()).unwrap();
    let write = Write {
        id: 1,
        source: None,
        address: 0,
        key: 0,
        number: None,
        signaled: true,
    };
    pair.post_write(&write).unwrap();
    pair.post_write(&write).unwrap();
    let full = words(pair.post_write(&write));
    assert!(full.starts_with("failed to post a write"), "{full}");
    let mut completions = Vec::new();
    queue.poll(&mut completions).unwrap();
    pair.post_write(&write).unwrap();
}

#[test]
fn a_completion_queue_that_overruns_is_an_error() {
    let fake = Fake::new();
    let [one, other] = fake.nodes();
    let queue = CompletionQueue::new(&one.context, 1).unwrap();
    let mut near = End::with_queue(&one, SMALL, MEBIBYTE, &queue);
    let mut far = End::new(&other, SMALL, MEBIBYTE);
    connect(&mut near, &mut far, PathOptions::default());
    far.send(0, 0, 0, 0);
    far.send(1, 0, 0, 0);
    far.post();
    near.work();
    assert!(near.words().contains("overrun"), "{}", near.words());
}

#[test]
fn everything_goes_in_the_right_order() {
    let fake = Fake::new();
    {
        let [one, other] = fake.nodes();
        let [mut one, other] = channel(&one, &other, SMALL, MEBIBYTE);
        one.send(0, 0, 0, 100);
        one.work();
        assert!(fake.alive() > 0);
        // The stand-in asserts what the verbs demand: no queue with pairs goes, no channel with queues, no event is
        // left unacknowledged.
        drop(other);
    }
    assert_eq!(fake.alive(), 0, "something is left behind");
}
