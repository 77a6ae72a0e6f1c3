//! The frames of a chain: any of them comes back as it was, the bytes of each kind are kept, and bytes of a hostile or
//! broken side are refused or mean what they say. `cargo xtask fuzz chains --minutes M` goes on for longer.

#![expect(clippy::unwrap_used, reason = "test harness")]

use craq::encoding::{self, ChainFrame, FrameHeader, HEADER_BYTES, MOST_CHUNK_BYTES, MOST_CHUNKS};
use craq::{
    ChainRefusal, ChainRequest, ChunkId, ChunkWrite, Edit, Message, Record, Records, Reply,
    SessionId, Update, Version,
};
use crc32c::crc32c;
use sim::{Rng, damage, explore};

type Bytes = Vec<u8>;

fn length(bytes: &Bytes) -> u32 {
    bytes.len() as u32
}

fn chunk(rng: &mut Rng) -> ChunkId {
    ChunkId {
        file: damage::number(rng),
        index: damage::number(rng) % MOST_CHUNKS,
    }
}

fn version(rng: &mut Rng) -> Version {
    Version {
        chain: damage::number(rng),
        update: damage::number(rng),
    }
}

fn bytes(rng: &mut Rng) -> Bytes {
    (0..rng.below(40)).map(|byte| byte as u8).collect()
}

fn records(rng: &mut Rng) -> Records {
    let records = (0..rng.below(5) as u64).map(|session| Record {
        session: SessionId(session * 7),
        number: damage::number(rng),
    });
    Records::new(records.collect()).unwrap()
}

fn refusal(rng: &mut Rng) -> ChainRefusal {
    let current = damage::number(rng);
    *rng.pick(&[
        ChainRefusal::WrongVersion { current },
        ChainRefusal::NotHead,
        ChainRefusal::NotReady,
        ChainRefusal::NoSession,
        ChainRefusal::Old,
        ChainRefusal::Busy,
        ChainRefusal::Full,
        ChainRefusal::Damaged,
    ])
}

/// Edits that clients ask for.
fn edits(rng: &mut Rng) -> [Edit<Bytes>; 3] {
    let bytes = bytes(rng);
    let room = MOST_CHUNK_BYTES - length(&bytes);
    let offset = (damage::number(rng) as u32).min(room);
    let length = (damage::number(rng) as u32).min(MOST_CHUNK_BYTES);
    [
        Edit::Write { offset, bytes },
        Edit::Truncate { length },
        Edit::Remove,
    ]
}

/// Each kind of frame once.
fn frames(rng: &mut Rng) -> Vec<ChainFrame<Bytes>> {
    let (chunk, version, number) = (chunk(rng), self::version(rng), damage::number(rng));
    let update = |rng: &mut Rng, edit| {
        Message::Update(Update {
            chunk,
            version,
            base: self::version(rng),
            edit,
            records: records(rng),
        })
    };
    let after = rng.chance(1, 2).then_some(chunk);
    let some = rng.chance(1, 2);
    let mut messages = vec![
        Message::Hello,
        Message::Done { chunk, version },
        Message::Refused {
            chunk,
            version,
            why: refusal(rng),
        },
        Message::NeedsAll { chunk, version },
        Message::Forget { chunk, version },
        Message::Missing { chunk, version },
        Message::Query {
            read: number,
            chunk,
        },
        Message::Committed {
            read: number,
            version,
        },
        Message::List { after },
        Message::Versions {
            after,
            versions: (0..rng.below(4))
                .map(|_| (self::chunk(rng), self::version(rng)))
                .collect(),
            is_last: some,
        },
        Message::Fetch {
            chunk,
            version: some.then_some(version),
        },
        Message::Content {
            chunk,
            version,
            content: some.then(|| bytes(rng)),
            records: records(rng),
        },
    ];
    let content = bytes(rng);
    for edit in edits(rng).into_iter().chain([Edit::Replace { content }]) {
        messages.push(update(rng, edit));
    }
    let mut frames: Vec<_> = messages.into_iter().map(ChainFrame::Message).collect();
    for edit in edits(rng) {
        let request = ChainRequest::Write(ChunkWrite {
            session: SessionId(damage::number(rng)),
            number: damage::number(rng),
            settled: damage::number(rng),
            chunk,
            edit,
        });
        frames.push(ChainFrame::Request { number, request });
    }
    let request = ChainRequest::Read {
        chunk,
        offset: damage::number(rng) as u32,
        length: damage::number(rng) as u32,
    };
    frames.push(ChainFrame::Request { number, request });
    for reply in [Reply::Done, Reply::Refused(refusal(rng))] {
        frames.push(ChainFrame::Reply { number, reply });
    }
    frames.push(ChainFrame::Bytes {
        number,
        version,
        bytes: bytes(rng),
    });
    frames
}

/// All that is sent of a frame.
fn sent(frame: &ChainFrame<Bytes>) -> Vec<u8> {
    let encoded = encoding::encode((7, 3), frame, length);
    let bytes = encoded.bytes.cloned().unwrap_or_default();
    [&encoded.header.to_bytes()[..], &encoded.list, &bytes].concat()
}

/// What a receiver makes of bytes, as far as they go.
fn received(bytes: &[u8]) -> Result<ChainFrame<Bytes>, encoding::Error> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
    let header = FrameHeader::parse(header)?;
    let (list, rest) = rest
        .split_at_checked(header.list_bytes())
        .unwrap_or((rest, &[]));
    header.frame(list, rest.to_vec())
}

fn explore_frames(count: u64) {
    explore(count, &[], |rng| {
        for frame in frames(rng) {
            assert_eq!(received(&sent(&frame)), Ok(frame.clone()));
            let mut bytes = sent(&frame);
            damage::in_place(rng, &mut bytes[..HEADER_BYTES]);
            assert!(received(&bytes).is_err() || bytes == sent(&frame));
            // A sender that means it: the checksum is right.
            let mut bytes = sent(&frame);
            damage::in_place(rng, &mut bytes[..HEADER_BYTES - 4]);
            let sum = crc32c(&bytes[..HEADER_BYTES - 4]);
            bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
            if let Ok(frame) = received(&bytes) {
                let again = encoding::encode((7, 3), &frame, length);
                let of_frame = 24..HEADER_BYTES - 12;
                assert_eq!(again.header.to_bytes()[of_frame.clone()], bytes[of_frame]);
            }
        }
    });
}

#[test]
fn chains() {
    explore_frames(2_000);
}

/// Whoever changes these changes what releases that run beside each other understand, and has to raise the version.
#[test]
fn frames_keep_their_bytes() {
    let all = frames(&mut Rng::new(1));
    let line = |frame: &ChainFrame<Bytes>| -> String {
        let bytes = sent(frame);
        let (header, rest) = bytes.split_at(HEADER_BYTES - 4);
        let name = format!("{frame:?}").replace(' ', "");
        let name: String = name.chars().take(60).collect();
        format!("{name} {:08x} {:08x}\n", crc32c(header), crc32c(&rest[4..]))
    };
    let text: String = all.iter().map(line).collect();
    assert_eq!(text, include_str!("frames/kept.txt"), "\n{text}");
}
