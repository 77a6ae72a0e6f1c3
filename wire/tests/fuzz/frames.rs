//! Headers of frames between sidecars.

use sim::{Rng, damage, explore};
use wire::frame::{Body, Claim, HEADER_BYTES, Header, Mark, Notice, PAYLOAD_LIMIT_BYTES, Verdict};
use wire::{Call, DType, Numerics, OpKind, ReduceOp};

/// Any call.
pub(crate) fn call(rng: &mut Rng) -> Call {
    let kinds = [
        OpKind::AllReduce,
        OpKind::Reduce,
        OpKind::Broadcast,
        OpKind::AllGather,
        OpKind::Barrier,
    ];
    let kind = *rng.pick(&kinds);
    Call {
        numerics: if kind.reduces() {
            *rng.pick(Numerics::ALL)
        } else {
            Numerics::Fast
        },
        reduce: *rng.pick(&[ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min]),
        root: rng.next_u64() as u32,
        tag: damage::number(rng),
        ..Call::new(
            kind,
            *rng.pick(&[DType::F32, DType::U8, DType::I64, DType::E4M3]),
            damage::number(rng),
        )
    }
}

/// Any header that may be sent.
pub(crate) fn header(rng: &mut Rng) -> Header {
    let claim = |rng: &mut Rng| Claim {
        rank: rng.next_u64() as u32,
        call: call(rng),
    };
    let mark = Mark {
        done: damage::number(rng),
        told: damage::number(rng),
    };
    let verdict = if rng.chance(1, 2) {
        Verdict::Mismatch {
            one: claim(rng),
            other: claim(rng),
        }
    } else {
        Verdict::Refusal {
            claim: claim(rng),
            reason: rng.next_u64() as u8,
        }
    };
    let notice = Notice {
        code: rng.next_u64() as u8,
        detail: rng.next_u64() as u8,
        subject: rng.next_u64() as u32,
        by: rng.next_u64() as u32,
    };
    let claim = claim(rng);
    let body = *rng.pick(&[
        Body::Up { claim, mark },
        Body::Refuse { verdict },
        Body::Down { mark },
        Body::Fail { verdict },
        Body::Credit,
        Body::Awaiting,
        Body::Abort { notice },
        Body::Mark { mark },
        Body::Heartbeat,
        Body::Bye,
    ]);
    Header {
        group: damage::number(rng),
        operation: damage::number(rng),
        tree: rng.below(2) as u8,
        slot: rng.below(16) as u8,
        chunk: damage::number(rng) as u32,
        payload: if body.carries_payload() {
            rng.range(0..4096) as u32
        } else {
            0
        },
        ..Header::empty(rng.range(0..4) as u32, rng.range(0..4) as u32, body)
    }
}

/// Makes the checksum right, so that the fields are looked at. Written down once more: a reader and a writer that agree
/// on another sum would pass. CRC32C, bit by bit.
pub(crate) fn seal(bytes: &mut [u8; HEADER_BYTES]) {
    let (content, sum) = bytes.split_at_mut(HEADER_BYTES - 4);
    let remainder = content.iter().fold(!0_u32, |rest, &byte| {
        (0..8).fold(rest ^ u32::from(byte), |rest, _bit| {
            (rest >> 1) ^ ((rest & 1) * 0x82f6_3b78)
        })
    });
    sum.copy_from_slice(&(!remainder).to_le_bytes());
}

#[test]
fn frames() {
    explore(20_000, &[], |rng| {
        let header = header(rng);
        let mut bytes = header.encode();
        if let Ok(read) = Header::parse(&bytes) {
            assert_eq!(read, header);
        }
        let whole = bytes;
        damage::in_place(rng, &mut bytes);
        let damaged = bytes != whole;
        let sealed = rng.chance(7, 8);
        if sealed {
            seal(&mut bytes);
        }
        match Header::parse(&bytes) {
            Ok(read) => {
                assert!(
                    sealed || !damaged,
                    "a damaged header was taken for a whole one"
                );
                assert!(read.payload <= PAYLOAD_LIMIT_BYTES);
                assert!(read.payload == 0 || read.body.carries_payload());
                assert_eq!(read.encode(), bytes, "there is one way to say it");
            }
            Err(error) => assert!(error.to_string().starts_with("failed to parse a frame")),
        }
    });
}
