//! The bytes of answers.

use super::*;
use crate::abi::Fields;
use crate::request::{FileHandle, FileTime, Inode};

fn bytes(answer: Answer<'_>) -> Vec<u8> {
    let encoded = answer.encode(Unique(abi::RESENT | 6));
    let slices = encoded.slices();
    slices.iter().flat_map(|slice| slice.to_vec()).collect()
}

/// Numbers that differ in each field.
fn attributes() -> Attributes {
    let time = |seconds| FileTime {
        seconds,
        nanoseconds: 7,
    };
    Attributes {
        inode: Inode(0x11),
        kind: FileKind::Regular,
        permissions: 0o4755,
        size: 0x22,
        blocks: 0x33,
        block_bytes: 0x44,
        links: 0x55,
        uid: 0x66,
        gid: 0x77,
        device: 0x88,
        atime: time(-1),
        mtime: time(2),
        ctime: time(3),
    }
}

fn named() -> NamedInode {
    NamedInode {
        attributes: attributes(),
        generation: 0x99,
        name_valid: Duration::from_millis(1_500),
        attributes_valid: Duration::from_secs(9),
    }
}

fn check_attributes(fields: &mut Fields<'_>) {
    let longs: [u64; 6] = std::array::from_fn(|_| fields.u64().unwrap());
    assert_eq!(longs, [0x11, 0x22, 0x33, u64::MAX, 2, 3]);
    let shorts: [u32; 10] = std::array::from_fn(|_| fields.u32().unwrap());
    let mode = 0o104_755;
    assert_eq!(
        shorts,
        [7, 7, 7, mode, 0x55, 0x66, 0x77, 0x88, 0x44, 0],
        "{shorts:x?}"
    );
}

#[test]
fn each_answer_has_the_kernels_size_and_says_it() {
    let opened = Opened::new(FileHandle(1));
    let status = FileSystemStatus {
        block_bytes: 4096,
        blocks: 1,
        free_blocks: 1,
        available_blocks: 1,
        inodes: 1,
        free_inodes: 1,
    };
    let cases = [
        (Answer::Error(Errno::NOENT), 0),
        (Answer::Done, 0),
        (Answer::Name(named()), 128),
        (Answer::NoName(Duration::MAX), 128),
        (Answer::Created(named(), opened), 144),
        (Answer::Attributes(attributes(), Duration::ZERO), 104),
        (Answer::Opened(opened), 16),
        (Answer::Written(1), 8),
        (Answer::FileSystemStatus(status), 80),
        (Answer::Offset(1), 8),
        (Answer::XattrSize(1), 8),
        (Answer::Data(b"abc"), 3),
        (Answer::Pieces(&[b"ab", b"", b"c"]), 3),
    ];
    for (answer, size) in cases {
        let bytes = bytes(answer);
        assert_eq!(bytes.len(), 16 + size, "{answer:?}");
        let mut fields = Fields::new(&bytes);
        assert_eq!(
            fields.u32().map(|said| said as usize),
            Ok(bytes.len()),
            "{answer:?}"
        );
        let error = fields.u32().unwrap().cast_signed();
        let failed = if matches!(answer, Answer::Error(_)) {
            -2
        } else {
            0
        };
        assert_eq!(error, failed, "{answer:?}");
        assert_eq!(
            fields.u64(),
            Ok(1 << 63 | 6),
            "the kernel finds a resent request by all bits"
        );
    }
}

#[test]
fn fields_lie_where_the_kernel_reads_them() {
    let bytes = bytes(Answer::Created(
        named(),
        Opened {
            direct_io: true,
            no_flush: true,
            ..Opened::new(FileHandle(0xaa))
        },
    ));
    let mut fields = Fields::new(&bytes[16..]);
    let longs: [u64; 4] = std::array::from_fn(|_| fields.u64().unwrap());
    assert_eq!(longs, [0x11, 0x99, 1, 9]);
    assert_eq!((fields.u32(), fields.u32()), (Ok(500_000_000), Ok(0)));
    check_attributes(&mut fields);
    assert_eq!((fields.u64(), fields.u32()), (Ok(0xaa), Ok(0b10_0001)));
    assert_eq!((fields.u32(), fields.is_empty()), (Ok(0), true));
}

#[test]
fn lent_data_is_not_copied() {
    let data = [1; 100];
    let encoded = Answer::Data(&data).encode(Unique(2));
    assert!(std::ptr::eq(encoded.slices()[1].as_ptr(), data.as_ptr()));
}

#[test]
fn numbers_that_the_kernel_would_drop_become_eio() {
    let error = |number: i32| {
        let bytes = bytes(Answer::Error(Errno::from_raw_os_error(number)));
        Fields::new(&bytes[4..]).u32().map(u32::cast_signed)
    };
    assert_eq!(error(511), Ok(-511));
    assert_eq!((error(512), error(4095)), (Ok(-5), Ok(-5)));
}
