//! What is written is read, and nothing else is.

use proptest::prelude::*;

use super::*;
use crate::op::{DType, Numerics, OpKind, ReduceOp};

fn claim() -> impl Strategy<Value = Claim> {
    let call = (
        0..OpKind::ALL.len(),
        0..DType::ALL.len(),
        0..ReduceOp::ALL.len(),
        0..Numerics::ALL.len(),
        any::<[u32; 2]>(),
        any::<[u64; 2]>(),
    )
        .prop_map(
            |(kind, dtype, reduce, mode, [root, factor], [count, tag])| {
                let reduce = ReduceOp::ALL[reduce];
                let mode = if OpKind::ALL[kind].reduces() { mode } else { 0 };
                let has_factor = reduce == ReduceOp::PremulSum;
                Call {
                    kind: OpKind::ALL[kind],
                    dtype: DType::ALL[dtype],
                    reduce,
                    factor_bits: if has_factor { factor } else { 0 },
                    root,
                    count,
                    tag,
                    numerics: Numerics::ALL[mode],
                }
            },
        );
    (any::<u32>(), call).prop_map(|(rank, call)| Claim { rank, call })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        (claim(), claim()).prop_map(|(one, other)| Verdict::Mismatch { one, other }),
        (claim(), any::<u8>()).prop_map(|(claim, reason)| Verdict::Refusal { claim, reason }),
    ]
}

fn opener() -> impl Strategy<Value = Opener> {
    any::<(u32, u32, u64)>().prop_map(|(rank, size, checksum)| Opener {
        rank,
        size,
        checksum,
    })
}

fn dispute() -> impl Strategy<Value = Dispute> {
    prop_oneof![
        (opener(), opener()).prop_map(|(one, other)| Dispute::Mismatch { one, other }),
        (opener(), any::<u8>()).prop_map(|(opener, reason)| Dispute::Refused { opener, reason }),
    ]
}

fn mark() -> impl Strategy<Value = Mark> {
    any::<(u64, u64)>().prop_map(|(done, told)| Mark { done, told })
}

fn message() -> impl Strategy<Value = Message> {
    any::<(u32, u32, Option<u64>)>().prop_map(|(from, to, tag)| Message { from, to, tag })
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        (claim(), mark()).prop_map(|(claim, mark)| Body::Up { claim, mark }),
        mark().prop_map(|mark| Body::Down { mark }),
        mark().prop_map(|mark| Body::Mark { mark }),
        verdict().prop_map(|verdict| Body::Refuse { verdict }),
        verdict().prop_map(|verdict| Body::Fail { verdict }),
        any::<(u8, u8, u32, u32)>().prop_map(|(code, detail, subject, by)| Body::Abort {
            notice: Notice {
                code,
                detail,
                subject,
                by
            }
        }),
        prop::sample::select(vec![
            Body::Credit,
            Body::Awaiting,
            Body::Heartbeat,
            Body::Bye,
            Body::Opened
        ]),
        (opener(), any::<(u32, u8)>()).prop_map(|(opener, (present, reason))| Body::Open {
            opener,
            present,
            reason
        }),
        dispute().prop_map(|dispute| Body::Disputed { dispute }),
        message().prop_map(|message| Body::Data { message }),
        (message(), claim(), any::<u8>()).prop_map(|(message, claim, reason)| Body::Want {
            message,
            call: claim.call,
            reason
        }),
        (message(), claim(), any::<u8>()).prop_map(|(message, claim, reason)| Body::Deny {
            message,
            call: claim.call,
            reason
        }),
    ]
}

fn header() -> impl Strategy<Value = Header> {
    let numbers = any::<(u32, u32, u64, u64, u8, u8, u32)>();
    (numbers, 0..=PAYLOAD_LIMIT_BYTES, body()).prop_map(|(numbers, payload, body)| {
        let (attempt, epoch, group, operation, tree, slot, chunk) = numbers;
        Header {
            attempt,
            epoch,
            group,
            operation,
            tree,
            slot,
            chunk,
            payload: if body.carries_payload() { payload } else { 0 },
            body,
        }
    })
}

/// Sets the checksum right, as a hostile sender would.
fn seal(bytes: &mut [u8; HEADER_BYTES]) {
    let sum = crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}

/// Also where they lie so that one would undo the other in a sum that mixes less well.
#[test]
fn any_two_flipped_bits_are_refused() {
    let header = Header::empty(1, 2, Body::Heartbeat);
    let mut bytes = header.encode();
    let flip = |bytes: &mut [u8; HEADER_BYTES], bit: usize| bytes[bit / 8] ^= 1 << (bit % 8);
    for one in 0..HEADER_BYTES * 8 {
        flip(&mut bytes, one);
        for other in 0..one {
            flip(&mut bytes, other);
            assert!(Header::parse(&bytes).is_err(), "bits {other} and {one}");
            flip(&mut bytes, other);
        }
        flip(&mut bytes, one);
    }
    assert_eq!(Header::parse(&bytes), Ok(header));
}

proptest! {
    #[test]
    fn what_is_written_is_read(header in header()) {
        prop_assert_eq!(Header::parse(&header.encode()), Ok(header));
    }

    #[test]
    fn a_flipped_bit_is_refused(header in header(), bit in 0..HEADER_BYTES * 8) {
        let mut bytes = header.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Header::parse(&bytes).is_err());
    }

    #[test]
    fn a_forged_header_is_refused_or_means_what_it_says(
        header in header(),
        places in prop::collection::vec((4usize..HEADER_BYTES, any::<u8>()), 1..8),
    ) {
        let mut bytes = header.encode();
        for (place, byte) in places {
            bytes[place] = byte;
        }
        seal(&mut bytes);
        if let Ok(parsed) = Header::parse(&bytes) {
            prop_assert_eq!(parsed.encode(), bytes);
            prop_assert!(parsed.payload <= PAYLOAD_LIMIT_BYTES);
        }
    }
}
