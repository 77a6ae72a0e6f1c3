//! What is agreed with which kernel.

use super::*;
use crate::abi::Fields;

fn init(major: u32, minor: u32, flags: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(104);
    bytes.put_u32(opcode::INIT);
    bytes.put_u64(2);
    bytes.put(&[0; 24]);
    for field in [major, minor, 0x20000, flags as u32, (flags >> 32) as u32] {
        bytes.put_u32(field);
    }
    bytes.put(&[0; 44]);
    bytes
}

fn agree(minor: u32, flags: u64) -> (Negotiated, Vec<u8>) {
    let offer = Offer::parse(&init(7, minor, flags)).unwrap();
    offer.agree(&ConnectionOptions::default()).unwrap()
}

#[test]
fn what_the_kernel_lacks_is_not_negotiated() {
    let (all, answer) = agree(45, u64::MAX);
    assert_eq!((all.minor, all.max_write_bytes), (45, 1 << 20));
    assert!(all.flags.has(InitFlags::HAS_RESEND | InitFlags::MAX_PAGES));
    assert!(!all.flags.has(InitFlags(1 << 16)), "no write-back cache");
    assert!(!all.flags.has(InitFlags(1 << 41)), "no io_uring");
    assert!(!all.flags.has(InitFlags::ATOMIC_O_TRUNC));
    assert_eq!(answer.len(), 80);
    let (old, _) = agree(31, InitFlags::ASYNC_READ.0);
    assert_eq!((old.minor, old.max_write_bytes), (31, 128 << 10));
    assert_eq!(old.flags, InitFlags::ASYNC_READ);
    let (newer, _) = agree(99, u64::MAX);
    assert_eq!(newer.minor, NEWEST_MINOR, "a newer kernel speaks ours");
}

#[test]
fn fields_lie_where_the_kernel_reads_them() {
    let (negotiated, answer) = agree(45, u64::MAX);
    let mut fields = Fields::new(&answer);
    assert_eq!(
        (fields.u32(), fields.u32(), fields.u64()),
        (Ok(80), Ok(0), Ok(2))
    );
    let (low, high) = negotiated.flags.halves();
    for expected in [7, 45, 0x20000, low, 48 << 16 | 64, 1 << 20, 1, 256, high] {
        assert_eq!(fields.u32(), Ok(expected));
    }
    assert_eq!(fields.rest(), [0; 28]);
}

#[test]
fn a_version_or_size_that_does_not_go_is_named() {
    for (major, minor) in [(7, 30), (8, 0), (6, 45)] {
        let offer = Offer::parse(&init(major, minor, 0)).unwrap();
        let refused = offer.agree(&ConnectionOptions::default());
        assert_eq!(refused, Err(Error::Version { major, minor }));
    }
    let offer = Offer::parse(&init(7, 45, 0)).unwrap();
    for bytes in [0, 4095, 4097, WRITE_LIMIT_BYTES + PAGE_BYTES] {
        let options = ConnectionOptions {
            max_write_bytes: bytes,
            ..ConnectionOptions::default()
        };
        assert_eq!(offer.agree(&options), Err(Error::WriteBytes { bytes }));
    }
}

#[test]
fn what_is_no_init_is_named() {
    let mut lookup = init(7, 45, 0);
    lookup[4] = 1;
    assert_eq!(
        Offer::parse(&lookup).unwrap_err(),
        Error::NoInit { opcode: 1 }
    );
    let short = &init(7, 45, u64::MAX)[..56];
    assert_eq!(
        Offer::parse(short).unwrap_err(),
        Error::Malformed { bytes: 56 }
    );
}

#[test]
fn a_saved_state_comes_back_and_another_is_refused() {
    let (negotiated, _) = agree(45, u64::MAX);
    let saved = negotiated.save();
    assert_eq!(Negotiated::restore(&saved), Ok(negotiated));
    assert_eq!(Negotiated::restore(&saved[1..]), Err(WrongState));
    for damaged in [0, 7, 8, 15] {
        let mut other = saved;
        other[damaged] ^= 0xff;
        assert_eq!(Negotiated::restore(&other), Err(WrongState), "{damaged}");
    }
}
