//! A link through shared memory whose other side writes what it likes into the ring and the socket, and shares what it likes.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::MemfdFlags;
use sim::{Rng, explore};
use wire::block::Block;
use wire::frame::{Body, Claim, HEADER_BYTES, Header, Mark};
use wire::ring::{self, FRAME_WORDS, Producer};
use wire::segment::{Segment, Writers};
use wire::transport::shared::{Opening, Shared};
use wire::transport::{Outgoing, Place, Received, Transport};
use wire::{Call, attach};

use crate::damage;
use crate::frames::{header, seal};
use crate::messages::{channels, send_raw};
use crate::rings::sleep;

const SEGMENT_BYTES: usize = 4096;

/// The hostile side of a link, by hand.
struct Hostile {
    channel: attach::Channel,
    /// The mailbox of the honest side.
    mailbox: Arc<Segment>,
    outbox: Producer<FRAME_WORDS>,
    /// Its own, in which the honest side writes.
    own: Arc<Segment>,
}

/// An honest side, and a hostile one that has opened the link as it should.
fn meet() -> (Shared, Hostile) {
    let (honest, channel) = channels();
    let opening = Opening::new(honest).unwrap();
    let (said, fds) = channel
        .receive_with_fds::<serde_json::Value>()
        .unwrap()
        .unwrap();
    let bytes = said["bytes"].as_u64().unwrap() as usize;
    let [fd] = <[OwnedFd; 1]>::try_from(fds).unwrap();
    let mailbox = Arc::new(Segment::open(fd, bytes).unwrap());
    let (own, _) = ring::mailbox().unwrap();
    let note = serde_json::json!({"kind": "mailbox", "bytes": own.len()});
    channel.send(&note, &[own.fd()]).unwrap();
    let link = opening.finish().unwrap().unwrap();
    let outbox = ring::mailbox_producer(&mailbox).unwrap();
    let hostile = Hostile {
        channel,
        mailbox,
        outbox,
        own,
    };
    (link, hostile)
}

impl Hostile {
    /// Puts a frame into the honest side's ring, mostly damaged.
    fn frame(&mut self, rng: &mut Rng) {
        let mut header = header(rng);
        if header.body.carries_payload() {
            header.payload = *rng.pick(&[0, 1, 64, 4096, 4097, 16 << 20]);
        }
        let mut bytes = header.encode();
        if rng.chance(1, 3) {
            damage::in_place(rng, &mut bytes);
            if rng.chance(7, 8) {
                seal(&mut bytes);
            }
        }
        let mut entry = [0; FRAME_WORDS];
        for (word, bytes) in entry.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        entry[HEADER_BYTES / 8] = rng.range(0..3);
        let any = damage::number(rng);
        entry[HEADER_BYTES / 8 + 1] = *rng.pick(&[0, 64, 4000, any]);
        if rng.chance(1, 8) {
            entry[HEADER_BYTES / 8] = u64::MAX; // A result in place.
        }
        // The place of an answer.
        entry[HEADER_BYTES / 8 + 2] = *rng.pick(&[0, 1, 2, 3, any]);
        entry[HEADER_BYTES / 8 + 3] = *rng.pick(&[0, 64, 4000, any]);
        entry[HEADER_BYTES / 8 + 4] = *rng.pick(&[0, 64, 96, 4096, any]);
        self.outbox.push(&entry).ok();
    }

    /// Says something over the socket: with a segment, with one that is none, with nothing.
    fn note(&self, rng: &mut Rng) {
        let number = rng.range(0..3);
        let any = damage::number(rng);
        let bytes = *rng.pick(&[SEGMENT_BYTES as u64, 4097, 1 << 20, any]);
        let kind = *rng.pick(&[
            "share", "share", "offer", "offer", "gone", "ring", "mailbox",
        ]);
        let note = serde_json::json!({"kind": kind, "number": number, "bytes": bytes});
        let mut packet = serde_json::to_vec(&note).unwrap();
        if rng.chance(1, 4) {
            damage::anyhow(rng, &mut packet, b"{\"kind\":\"ring\"}");
        }
        let fd: OwnedFd = match rng.below(4) {
            // One that could be cut off under the reader's feet.
            0 => rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap(),
            1 => File::open("/dev/null").unwrap().into(),
            _ => {
                let writers = *rng.pick(&[Writers::Everybody, Writers::Creator]);
                let segment = Segment::create("fuzz", SEGMENT_BYTES, writers).unwrap();
                segment.fd().try_clone_to_owned().unwrap()
            }
        };
        let fds = vec![fd.as_fd(); *rng.pick(&[0, 1, 1, 1, 2])];
        if !packet.is_empty() {
            send_raw(&self.channel, &packet, &fds);
        }
    }

    fn scribble(&self, rng: &mut Rng) {
        let segments = [&self.mailbox, &self.own];
        let words = rng.pick(&segments).words();
        let near_indices = *rng.pick(&[32, 32, words.len()]);
        words[rng.below(near_indices)].store(damage::number(rng), Ordering::SeqCst);
    }
}

/// One step of the honest side; false when the link is of no use any more.
fn step(rng: &mut Rng, link: &mut Shared, block: &Arc<Block>, left: &mut Vec<u64>) -> bool {
    let mine = Block::new(Segment::create("fuzz", SEGMENT_BYTES, Writers::Creator).unwrap());
    for _ in 0..rng.below(8) {
        let into = rng.chance(1, 2);
        let mut place = |header: &Header| {
            let bytes = header.payload as usize;
            match mine.write(0..bytes) {
                Ok(writing) if into => Ok(Place::Into(writing)),
                Ok(_) | Err(_) => Ok(Place::Discard),
            }
        };
        match link.receive(&mut place) {
            Ok(Received::Frame(header, lent)) => {
                if let Some(lent) = lent {
                    // It can be read, whatever it is, and what it wants to be answered can be written.
                    assert_eq!(lent.bytes.len(), header.payload as usize);
                    std::hint::black_box(lent.bytes.iter().fold(0, |sum: u8, byte| sum ^ byte));
                    if let Some(mut answer) = lent.answer {
                        answer.fill(1);
                    }
                }
            }
            Ok(Received::Part | Received::Nothing) => break,
            Err(_) => return false,
        }
    }
    let (how, depth) = sleep(rng);
    if link.sleep(how, depth).is_err() {
        return false;
    }
    link.awake();
    link.wake().is_ok() && link.flush(left).is_ok() && block.read(0..1).is_ok()
}

/// Sends a frame with a payload and says its token.
fn send(rng: &mut Rng, link: &mut Shared, [block, results]: [&Arc<Block>; 2], token: u64) -> bool {
    let mark = Mark { done: 0, told: 0 };
    let call = Call::barrier();
    let claim = Claim { rank: 0, call };
    let body = *rng.pick(&[Body::Up { claim, mark }, Body::Down { mark }]);
    let header = Header {
        slot: token as u8,
        payload: 16,
        ..Header::empty(1, 1, body)
    };
    let Ok(bytes) = block.read(0..16) else {
        return false;
    };
    let place = token as usize * 16..(token as usize + 1) * 16;
    let answer = match rng.chance(1, 2) {
        true => results.write(place).ok(),
        false => None,
    };
    let payload = Outgoing {
        token,
        bytes,
        answer,
    };
    link.push(&header, Some(payload)).is_ok()
}

#[test]
fn links() {
    explore(400, |rng| {
        let (mut link, mut hostile) = meet();
        let block = Block::new(Segment::create("fuzz", SEGMENT_BYTES, Writers::Creator).unwrap());
        let writers = *rng.pick(&[Writers::UntilSealed, Writers::Creator]);
        let results = Block::new(Segment::create("fuzz", SEGMENT_BYTES, writers).unwrap());
        let (mut lent, mut left) = (BTreeSet::new(), Vec::new());
        for token in 0..12 {
            for _ in 0..rng.below(6) {
                match rng.below(8) {
                    0..4 => hostile.frame(rng),
                    4..7 => hostile.note(rng),
                    _ => hostile.scribble(rng),
                }
            }
            if rng.chance(1, 2) && send(rng, &mut link, [&block, &results], token) {
                lent.insert(token);
            }
            if !step(rng, &mut link, &block, &mut left) {
                break;
            }
        }
        drop(hostile);
        link.abandon(&mut left);
        let again = left.len();
        let returned: BTreeSet<u64> = left.into_iter().collect();
        assert_eq!(returned.len(), again, "no payload is given back twice");
        assert!(
            returned.is_subset(&lent),
            "nothing is given back that was not lent"
        );
        drop(link);
        assert!(
            block.write(0..SEGMENT_BYTES).is_ok(),
            "nobody reads any more"
        );
        assert!(
            results.write(0..SEGMENT_BYTES).is_ok(),
            "nor is anything lent"
        );
    });
}
