//! Each kind of request as the kernel writes it, and what is refused.

use super::*;
use crate::requests::{Field, body, request, samples};
use Field::{Bytes, Text, U32, U64};
use rustix::io::Errno;

fn refused(bytes: &[u8]) -> RefusalReason {
    Request::parse(bytes).unwrap_err().reason
}

#[test]
fn each_kind_means_what_the_kernel_asks() {
    for sample in samples() {
        let bytes = request(sample.opcode, abi::RESENT | 6, 5, &sample.body);
        let parsed = Request::parse(&bytes).unwrap();
        assert_eq!(format!("{:?}", parsed.operation), sample.means);
        assert_eq!((parsed.unique.number(), parsed.inode), (6, Inode(5)));
        assert!(parsed.unique.is_resent());
        let caller = Caller {
            uid: 7,
            gid: 8,
            pid: 9,
        };
        assert_eq!(parsed.caller, caller);
        let is_silent = [2, 36, 42].contains(&sample.opcode);
        assert_eq!(parsed.wants_answer(), !is_silent, "{parsed:?}");
    }
}

#[test]
fn a_request_that_is_cut_off_or_goes_on_is_malformed() {
    for sample in samples() {
        let whole = request(sample.opcode, 6, 5, &sample.body);
        for length in 0..whole.len() {
            let mut cut = whole[..length].to_vec();
            assert!(matches!(refused(&cut), RefusalReason::Malformed(_)));
            if let Some(field) = cut.first_chunk_mut() {
                *field = (length as u32).to_ne_bytes();
            }
            assert!(Request::parse(&cut).is_err(), "{} {length}", sample.means);
        }
        let longer = [&sample.body[..], b"x"].concat();
        let refusal = Request::parse(&request(sample.opcode, 6, 5, &longer)).unwrap_err();
        assert_eq!(refusal.reason.errno(), Errno::IO, "{refusal}");
    }
}

#[test]
fn only_what_is_set_is_changed() {
    let set = |valid: u32| {
        let mut fields = vec![U32(valid), U32(0), U64(10), U64(11), U64(0xbad)];
        fields.extend([U64(u64::MAX), U64(2), U64(3), U32(4), U32(5), U32(6)]);
        fields.extend([U32(12), U32(0xbad), U32(13), U32(14), U32(0xbad)]);
        let bytes = request(4, 6, 5, &body(&fields));
        let parsed = Request::parse(&bytes).unwrap();
        let FileOperation::SetAttributes(set) = parsed.operation else {
            panic!("{parsed:?}");
        };
        set
    };
    let at = |seconds, nanoseconds| FileTime {
        seconds,
        nanoseconds,
    };
    assert_eq!(set(0), SetAttributes::default());
    let all = SetAttributes {
        handle: Some(FileHandle(10)),
        mode: Some(12),
        uid: Some(13),
        gid: Some(14),
        size: Some(11),
        atime: Some(SetTime::At(at(-1, 4))),
        mtime: Some(SetTime::At(at(2, 5))),
        ctime: Some(at(3, 6)),
        kill_privileges: true,
    };
    assert_eq!(set(0b1110_0111_1111), all);
    let now = set(0b1_1011_0000);
    assert_eq!(
        (now.atime, now.mtime),
        (Some(SetTime::Now), Some(SetTime::Now))
    );
}

#[test]
fn what_a_user_can_cause_has_its_own_answer() {
    let long = [&[b'n'; 256][..], b"\0"].concat();
    assert_eq!(
        refused(&request(1, 6, 5, &long)).errno(),
        Errno::NAMETOOLONG
    );
    let whiteout = [U64(4), U32(4), U32(0), Text(b"a"), Text(b"b")];
    assert_eq!(
        refused(&request(45, 6, 5, &body(&whiteout))).errno(),
        Errno::INVAL
    );
    for wrong in [&b"a/b\0"[..], b"..\0", b"\0"] {
        // No kernel lets a user do this.
        assert_eq!(refused(&request(1, 6, 5, wrong)).errno(), Errno::IO);
    }
}

#[test]
fn an_unknown_kind_is_unsupported_and_the_first_one_comes_once() {
    for unknown in [0, 31, 39, 40, 50, 53, u32::MAX] {
        let refused = refused(&request(unknown, 6, 5, b"anything"));
        assert_eq!(refused.errno(), Errno::NOSYS, "{unknown}");
    }
    assert_eq!(refused(&request(26, 6, 1, &[0; 64])).errno(), Errno::IO);
}

#[test]
fn what_wants_no_answer_gets_none_when_it_is_malformed() {
    for (opcode, wants) in [(1, true), (2, false), (36, false), (42, false)] {
        let refusal = Request::parse(&request(opcode, 6, 5, b"")).unwrap_err();
        assert_eq!(refusal.wants_answer(), wants, "{refusal}");
    }
    assert!(!Request::parse(b"short").unwrap_err().wants_answer());
}

#[test]
fn forgets_are_as_many_as_they_say() {
    let two = [U32(2), U32(0), U64(1), U64(2), U64(3), U64(4)];
    let bytes = request(42, 6, 5, &body(&two));
    let parsed = Request::parse(&bytes).unwrap();
    let FileOperation::BatchForget(forgets) = parsed.operation else {
        panic!("{parsed:?}");
    };
    let all: Vec<_> = forgets.iter().collect();
    assert_eq!(all, [(Inode(1), 2), (Inode(3), 4)]);
    for wrong in [
        [U32(3), U32(0), Bytes(&[0; 32])],
        [U32(2), U32(0), Bytes(&[0; 31])],
    ] {
        let bytes = request(42, 6, 5, &body(&wrong));
        assert!(matches!(refused(&bytes), RefusalReason::Malformed(_)));
    }
}
