//! Two links to each other in one process.

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;
use crate::attach::Listener;
use crate::frame::{Claim, Mark};
use crate::op::Call;
use crate::segment::Writers;

const MARK: Mark = Mark { done: 0, told: 0 };

/// Two links to each other.
fn pair() -> (Shared, Shared) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let one = Opening::new(Channel::connect(&path).unwrap()).unwrap();
    let other = Opening::new(listener.accept().unwrap().unwrap()).unwrap();
    (
        one.finish().unwrap().unwrap(),
        other.finish().unwrap().unwrap(),
    )
}

fn block(content: &[u8]) -> Arc<Block> {
    let block = Block::new(Segment::create("test", content.len(), Writers::Creator).unwrap());
    let mut whole = block.write(0..content.len()).unwrap();
    whole.copy_from_slice(content);
    drop(whole);
    block
}

fn up(slot: u8, payload: u32) -> Header {
    let call = Call::barrier();
    let (claim, mark) = (Claim { rank: 0, call }, MARK);
    Header {
        slot,
        payload,
        ..Header::empty(1, 1, Body::Up { claim, mark })
    }
}

fn down(payload: u32) -> Header {
    Header {
        payload,
        ..Header::empty(1, 1, Body::Down { mark: MARK })
    }
}

fn credit(slot: u8) -> Header {
    Header {
        slot,
        ..Header::empty(1, 1, Body::Credit)
    }
}

fn beds(link: &Shared) -> usize {
    let mut beds = Vec::new();
    link.beds(&mut beds);
    beds.len()
}

fn send(link: &mut Shared, header: &Header, payload: Option<(u64, Reading)>) -> Vec<u64> {
    let payload = payload.map(|(token, bytes)| Outgoing {
        token,
        bytes,
        answer: None,
    });
    link.push(header, payload).unwrap();
    flush(link)
}

fn flush(link: &mut Shared) -> Vec<u64> {
    let mut left = Vec::new();
    link.flush(&mut left).unwrap();
    left
}

fn receive(link: &mut Shared) -> (Header, Option<Reading>) {
    match link.receive(&mut |_| Ok(Place::Discard)).unwrap() {
        Received::Frame(header, lent) => (header, lent.map(|lent| lent.bytes)),
        other @ (Received::Part | Received::Nothing) => panic!("{other:?}"),
    }
}

#[test]
fn what_goes_up_is_read_where_it_lies_until_its_slot_is_returned() {
    let (mut child, mut parent) = pair();
    let part = block(b"a part of a chunk");
    let lent = part.read(2..6).unwrap();
    assert!(send(&mut child, &up(3, 4), Some((7, lent))).is_empty());
    let (header, lent) = receive(&mut parent);
    assert_eq!(
        (header, &**lent.as_ref().unwrap()),
        (up(3, 4), &b"part"[..])
    );
    assert!(part.write(2..6).is_err(), "it is read");
    drop(lent);
    send(&mut parent, &credit(3), None);
    assert_eq!(receive(&mut child).0, credit(3));
    assert_eq!(flush(&mut child), [7]);
    part.write(2..6).unwrap();
}

#[test]
fn two_groups_have_slots_of_the_same_number_and_each_gets_its_own_back() {
    let (mut child, mut parent) = pair();
    let part = block(b"parts of two groups");
    let of = |group, header| Header { group, ..header };
    for group in [1, 2] {
        let lent = part.read(0..5).unwrap();
        send(&mut child, &of(group, up(3, 5)), Some((10 + group, lent)));
    }
    for group in [2, 1] {
        receive(&mut parent);
        send(&mut parent, &of(group, credit(3)), None);
        receive(&mut child);
        assert_eq!(flush(&mut child), [10 + group]);
    }
    part.write(0..5).unwrap();
}

#[test]
fn what_goes_down_is_copied_and_then_used_again() {
    let (mut child, mut parent) = pair();
    let result = block(b"a result");
    let mine = block(&[0; 8]);
    let lent = result.read(0..8).unwrap();
    assert!(send(&mut parent, &down(8), Some((9, lent))).is_empty());
    assert!(flush(&mut parent).is_empty(), "nobody has looked");
    let mut place = |_: &Header| Ok(Place::Into(mine.write(0..8).unwrap()));
    let received = child.receive(&mut place).unwrap();
    assert!(matches!(received, Received::Frame(header, None) if header == down(8)));
    assert_eq!(&*mine.read(0..8).unwrap(), b"a result");
    assert_eq!(flush(&mut parent), [9]);
}

#[test]
fn more_frames_than_the_ring_holds_wait_for_room_and_come_in_order() {
    let (mut one, mut other) = pair();
    for slot in 0..200 {
        send(&mut one, &credit(slot), None);
    }
    assert!(!one.is_flushed());
    for slot in 0..200 {
        assert_eq!(receive(&mut other).0, credit(slot));
        flush(&mut one);
    }
    let nothing = other.receive(&mut |_| Ok(Place::Discard)).unwrap();
    assert!(matches!(nothing, Received::Nothing) && one.is_flushed());
}

#[test]
fn who_waits_for_room_is_not_put_to_sleep_when_there_is_some() {
    let (mut child, mut parent) = pair();
    let result = block(b"result");
    send(&mut parent, &down(6), Some((1, result.read(0..6).unwrap())));
    assert!(parent.sleep(Sleep::Word, Depth::Deep).unwrap());
    assert_eq!(beds(&parent), 1, "what is copied can wait");
    assert!(parent.sleep(Sleep::Word, Depth::Light).unwrap());
    assert_eq!(beds(&parent), 2, "for what comes, and for what is copied");
    parent.awake();
    receive(&mut child);
    assert!(!parent.sleep(Sleep::Word, Depth::Light).unwrap());
    assert_eq!(flush(&mut parent), [1]);
    assert!(parent.sleep(Sleep::Bell, Depth::Light).unwrap() && beds(&parent) == 1);
    send(&mut child, &credit(0), None);
    assert!(!parent.sleep(Sleep::Bell, Depth::Light).unwrap());
}

#[test]
fn what_finds_no_room_waits_for_it_however_deep_the_sleep() {
    let (mut one, _other) = pair();
    for slot in 0..200 {
        send(&mut one, &credit(slot), None);
    }
    assert!(one.sleep(Sleep::Word, Depth::Deep).unwrap());
    assert_eq!(beds(&one), 2);
}

#[test]
fn a_slot_that_comes_back_does_not_wake_who_sleeps_deeply() {
    let (mut one, mut other) = pair();
    let rings = |other: &Shared| {
        let mut fds = [PollFd::from_borrowed_fd(other.socket(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    };
    for (depth, wakes) in [(Depth::Deep, false), (Depth::Light, true)] {
        assert!(other.sleep(Sleep::Bell, depth).unwrap());
        send(&mut one, &credit(1), None);
        assert_eq!(rings(&other), wakes);
        assert_eq!(receive(&mut other).0, credit(1));
    }
    other.wake().unwrap();
    assert!(other.sleep(Sleep::Bell, Depth::Deep).unwrap());
    send(&mut one, &down(0), None);
    assert!(rings(&other), "a result cannot wait");
}

#[test]
fn what_a_side_said_before_it_died_comes_before_its_end() {
    let (mut one, mut other) = pair();
    send(&mut one, &credit(1), None);
    drop(one);
    other.wake().unwrap();
    assert_eq!(receive(&mut other).0, credit(1));
    let end = other.receive(&mut |_| Ok(Place::Discard));
    assert!(matches!(end, Err(Error::Closed)));
}

#[test]
fn what_could_not_be_sent_is_given_back_with_the_link() {
    let (one, mut other) = pair();
    drop(one);
    let part = block(b"a part");
    let bytes = part.read(0..6).unwrap();
    let payload = Outgoing {
        token: 5,
        bytes,
        answer: None,
    };
    other.push(&up(0, 6), Some(payload)).unwrap();
    let mut left = Vec::new();
    other.flush(&mut left).unwrap_err();
    other.abandon(&mut left);
    assert_eq!(left, [5]);
    part.write(0..6).unwrap();
}

#[test]
fn a_segment_that_is_gone_is_unmapped_on_the_other_side() {
    let (mut one, mut other) = pair();
    for round in 0..3 {
        let part = block(b"gone soon");
        send(&mut one, &up(0, 4), Some((round, part.read(0..4).unwrap())));
        drop(receive(&mut other));
        send(&mut other, &credit(0), None);
        receive(&mut one);
        assert_eq!(flush(&mut one), [round]);
    }
    other.wake().unwrap();
    assert_eq!(other.views.len(), 1);
}

/// A part whose answer belongs there.
fn part_for(link: &mut Shared, slot: u8, part: &Arc<Block>, place: Writing) -> Vec<u64> {
    let payload = Outgoing {
        token: slot.into(),
        bytes: part.read(0..4).unwrap(),
        answer: Some(place),
    };
    let header = Header {
        chunk: slot.into(),
        ..up(slot, 4)
    };
    link.push(&header, Some(payload)).unwrap();
    flush(link)
}

fn answer_to(slot: u8) -> Header {
    Header {
        chunk: slot.into(),
        ..down(4)
    }
}

/// The place of the answer to the part that comes next.
fn receive_part(link: &mut Shared) -> Result<Option<Writing>, Error> {
    match link.receive(&mut |_| Ok(Place::Discard))? {
        Received::Frame(_, lent) => Ok(lent.unwrap().answer),
        other @ (Received::Part | Received::Nothing) => panic!("{other:?}"),
    }
}

fn results() -> Arc<Block> {
    Block::new(Segment::create("test", 64, Writers::UntilSealed).unwrap())
}

#[test]
fn an_answer_is_written_where_it_belongs_and_nothing_is_copied() {
    let (mut child, mut parent) = pair();
    let (part, results) = (block(b"part"), results());
    for round in 0..3 {
        let place = results.write(8..12).unwrap();
        part_for(&mut child, round, &part, place);
        assert!(results.read(8..12).is_err(), "the parent writes there");
        let mut answer = receive_part(&mut parent).unwrap().unwrap();
        answer.copy_from_slice(&[b'0' + round; 4]);
        drop(answer);
        send(&mut parent, &credit(round), None);
        send(&mut parent, &answer_to(round), None);
        receive(&mut child);
        let mut place = |header: &Header| panic!("{header:?} is in place");
        let received = child.receive(&mut place).unwrap();
        assert!(matches!(received, Received::Frame(header, None) if header == answer_to(round)));
        assert_eq!(&*results.read(8..12).unwrap(), [b'0' + round; 4]);
        // One that was mapped before is written to after it was sealed as well.
        results.seal().unwrap();
    }
    assert!(!results.is_forsaken());
}

#[test]
fn a_place_in_a_sealed_segment_is_not_offered_and_one_sealed_too_late_is_not_written_to() {
    let (mut child, mut parent) = pair();
    let part = block(b"part");
    let (sealed, late) = (results(), results());
    sealed.seal().unwrap();
    part_for(&mut child, 0, &part, sealed.write(0..4).unwrap());
    assert!(receive_part(&mut parent).unwrap().is_none());
    sealed.write(0..4).unwrap();
    part_for(&mut child, 1, &part, late.write(0..4).unwrap());
    late.seal().unwrap();
    assert!(receive_part(&mut parent).unwrap().is_none());
    send(&mut parent, &credit(1), None);
    receive(&mut child);
    assert!(late.write(0..4).is_ok() && !late.is_forsaken() && !sealed.is_forsaken());
}

#[test]
fn a_place_that_was_not_returned_before_the_end_of_the_link_is_forsaken() {
    let (mut child, mut parent) = pair();
    let part = block(b"part");
    let [answered, open, queued] = [(); 3].map(|()| results());
    part_for(&mut child, 0, &part, answered.write(0..4).unwrap());
    part_for(&mut child, 1, &part, open.write(0..4).unwrap());
    receive_part(&mut parent).unwrap();
    send(&mut parent, &credit(0), None);
    let payload = Outgoing {
        token: 7,
        bytes: part.read(0..4).unwrap(),
        answer: Some(queued.write(0..4).unwrap()),
    };
    child.push(&up(2, 4), Some(payload)).unwrap();
    let mut left = Vec::new();
    child.abandon(&mut left);
    // What has come before is still heard.
    receive(&mut child);
    drop(child);
    assert!(!answered.is_forsaken() && !queued.is_forsaken());
    assert!(open.is_forsaken());
}

#[test]
fn who_names_no_place_is_answered_with_a_copy_or_the_link_is_of_no_use() {
    let (mut child, mut parent) = pair();
    let part = block(b"part");
    send(&mut child, &up(0, 4), Some((1, part.read(0..4).unwrap())));
    assert!(receive_part(&mut parent).unwrap().is_none());
    send(&mut parent, &credit(0), None);
    send(&mut parent, &answer_to(0), None);
    receive(&mut child);
    let wrong = child.receive(&mut |_| Ok(Place::Discard)).unwrap_err();
    assert!(wrong.to_string().contains("was not lent"), "{wrong}");
}

#[test]
fn a_place_that_is_none_ends_the_link() {
    for place in [
        [9, 0, 4],
        [1, 65_536, 4],
        [1, 65_533, 4],
        [1, 0, 65_537],
        [1, u64::MAX, 4],
    ] {
        let (mut child, mut parent) = pair();
        let (part, results) = (block(b"part"), results());
        part_for(&mut child, 0, &part, results.write(0..4).unwrap());
        let number = results.number();
        drop(receive_part(&mut parent).unwrap().unwrap());
        let mut entry = [0u64; FRAME_WORDS];
        for (word, bytes) in entry.iter_mut().zip(up(1, 4).encode().chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        (entry[SEGMENT], entry[OFFSET]) = (part.number(), 0);
        entry[OFFSET + 1..OFFSET + 4].copy_from_slice(&place);
        entry[OFFSET + 1] += number;
        child.outbox.push(&entry).unwrap();
        receive_part(&mut parent).unwrap_err();
    }
}

proptest! {
    #[test]
    fn whatever_lies_in_the_ring_is_a_frame_or_an_error(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..40),
        place in any::<[u64; 2]>(),
    ) {
        let (mut one, mut other) = pair();
        let part = block(&[1; 64]);
        send(&mut one, &up(0, 64), Some((1, part.read(0..64).unwrap())));
        drop(receive(&mut other));
        // A frame that is well formed and speaks of bytes that it may not, or of none.
        let mut entry = [0u64; FRAME_WORDS];
        for (word, bytes) in entry.iter_mut().zip(up(1, 64).encode().chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        (entry[SEGMENT], entry[OFFSET]) = (part.number(), place[0]);
        one.outbox.push(&entry).unwrap();
        (entry[SEGMENT], entry[OFFSET]) = (place[1], 0);
        one.outbox.push(&entry).unwrap();
        let words = one.outbox.words();
        for (at, value) in damage {
            words[at.index(words.len())].store(value, std::sync::atomic::Ordering::SeqCst);
        }
        for _ in 0..4 {
            if let Ok(Received::Frame(_, Some(lent))) = other.receive(&mut |_| Ok(Place::Discard)) {
                prop_assert_eq!(lent.bytes.len(), 64);
            }
            let _ = other.sleep(Sleep::Word, Depth::Light);
        }
    }
}
