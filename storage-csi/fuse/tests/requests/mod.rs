//! Requests as the kernel writes them, for tests: each with what it means.
#![allow(
    clippy::allow_attributes,
    dead_code,
    reason = "each of the programs that share this uses a part"
)]

/// A request, before its operation is known to mean what `means` says.
pub(crate) struct Sample {
    pub(crate) opcode: u32,
    pub(crate) body: Vec<u8>,
    /// The operation as it is printed.
    pub(crate) means: &'static str,
}

/// A field of a body.
pub(crate) enum Field {
    U32(u32),
    U64(u64),
    Text(&'static [u8]),
    Bytes(&'static [u8]),
}

use Field::{Bytes, Text, U32, U64};

pub(crate) fn body(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        match field {
            U32(field) => bytes.extend(field.to_ne_bytes()),
            U64(field) => bytes.extend(field.to_ne_bytes()),
            Text(text) => bytes.extend([text, &b"\0"[..]].concat()),
            Bytes(field) => bytes.extend(*field),
        }
    }
    bytes
}

/// A whole request, from user 7, group 8 and process 9.
pub(crate) fn request(opcode: u32, unique: u64, inode: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((40 + body.len() as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(inode.to_ne_bytes());
    for field in [7u32, 8, 9, 0] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(body);
    bytes
}

/// One of each kind at least.
pub(crate) fn samples() -> Vec<Sample> {
    let range = || {
        vec![
            U64(1),
            U64(2),
            U32(3),
            U32(2),
            U64(0xbad),
            U32(0xbad),
            U32(0),
        ]
    };
    let mut write = range();
    write[3] = U32(1 | 4);
    write.push(Bytes(b"abc"));
    let release = || vec![U64(1), U32(2), U32(3), U64(0xbad)];
    let rows: Vec<(u32, Vec<Field>, &'static str)> = vec![
        (1, vec![Text(b"a")], r#"Lookup { name: "a" }"#),
        (2, vec![U64(3)], "Forget { lookups: 3 }"),
        (
            3,
            vec![U32(0), U32(0), U64(0xbad)],
            "GetAttributes { handle: None }",
        ),
        (
            3,
            vec![U32(1), U32(0), U64(4)],
            "GetAttributes { handle: Some(FileHandle(4)) }",
        ),
        (
            42,
            vec![U32(1), U32(0), Bytes(&[1; 16])],
            "BatchForget(Forgets([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]))",
        ),
        (
            4,
            [
                vec![U32(1 << 3), U32(0)],
                (1..7).map(U64).collect(),
                (7..15).map(U32).collect(),
            ]
            .into_iter()
            .flatten()
            .collect(),
            "SetAttributes(SetAttributes { handle: None, mode: None, uid: None, gid: None, \
                size: Some(2), atime: None, mtime: None, ctime: None, kill_privileges: false })",
        ),
        (5, vec![], "ReadLink"),
        (
            6,
            vec![Text(b"a"), Text(b"../b")],
            r#"MakeSymlink { name: "a", target: [46, 46, 47, 98] }"#,
        ),
        (
            8,
            vec![U32(0o10644), U32(5), U32(0o22), U32(0), Text(b"a")],
            r#"MakeNode { name: "a", mode: 4516, device: 5 }"#,
        ),
        (
            9,
            vec![U32(0o755), U32(0o22), Text(b"a")],
            r#"MakeDirectory { name: "a", mode: 493 }"#,
        ),
        (10, vec![Text(b"a")], r#"Unlink { name: "a" }"#),
        (11, vec![Text(b"a")], r#"RemoveDirectory { name: "a" }"#),
        (
            12,
            vec![U64(4), Text(b"a"), Text(b"b")],
            r#"Rename { name: "a", new_parent: Inode(4), new_name: "b", mode: Replace }"#,
        ),
        (
            45,
            vec![U64(4), U32(1), U32(0), Text(b"a"), Text(b"b")],
            r#"Rename { name: "a", new_parent: Inode(4), new_name: "b", mode: NoReplace }"#,
        ),
        (
            45,
            vec![U64(4), U32(2), U32(0), Text(b"a"), Text(b"b")],
            r#"Rename { name: "a", new_parent: Inode(4), new_name: "b", mode: Exchange }"#,
        ),
        (
            13,
            vec![U64(4), Text(b"b")],
            r#"Link { existing: Inode(4), new_name: "b" }"#,
        ),
        (
            14,
            vec![U32(2), U32(1)],
            "Open { flags: 2, kill_privileges: true }",
        ),
        (
            15,
            range(),
            "Read { handle: FileHandle(1), offset: 2, size: 3 }",
        ),
        (
            16,
            write,
            "Write { handle: FileHandle(1), offset: 2, data: [97, 98, 99], from_cache: true, \
            kill_privileges: true }",
        ),
        (17, vec![], "FileSystemStatus"),
        (18, release(), "Release { handle: FileHandle(1), flags: 2 }"),
        (
            20,
            vec![U64(1), U32(1), U32(0)],
            "Sync { handle: FileHandle(1), data_only: true }",
        ),
        (
            21,
            vec![U32(3), U32(1), Text(b"user.a/b"), Bytes(b"abc")],
            r#"SetXattr { name: "user.a/b", value: [97, 98, 99], flags: 1 }"#,
        ),
        (
            22,
            vec![U32(9), U32(0), Text(b"user.a")],
            r#"GetXattr { name: "user.a", size: 9 }"#,
        ),
        (23, vec![U32(9), U32(0)], "ListXattr { size: 9 }"),
        (
            24,
            vec![Text(b"user.a")],
            r#"RemoveXattr { name: "user.a" }"#,
        ),
        (
            25,
            vec![U64(1), U32(0), U32(0), U64(0xbad)],
            "Flush { handle: FileHandle(1) }",
        ),
        (27, vec![U32(2), U32(0)], "OpenDirectory { flags: 2 }"),
        (
            28,
            range(),
            "ReadDirectory { handle: FileHandle(1), offset: 2, size: 3 }",
        ),
        (
            44,
            range(),
            "ReadDirectoryPlus { handle: FileHandle(1), offset: 2, size: 3 }",
        ),
        (
            29,
            release(),
            "ReleaseDirectory { handle: FileHandle(1), flags: 2 }",
        ),
        (
            30,
            vec![U64(1), U32(0), U32(0)],
            "SyncDirectory { handle: FileHandle(1), data_only: false }",
        ),
        (34, vec![U32(4), U32(0)], "Access { mask: 4 }"),
        (
            35,
            vec![U32(2), U32(0o644), U32(0o22), U32(0), Text(b"a")],
            r#"Create { name: "a", flags: 2, mode: 420, kill_privileges: false }"#,
        ),
        (36, vec![U64(6)], "Interrupt { unique: Unique(6) }"),
        (
            36,
            vec![U64(1 << 63 | 6)],
            "Interrupt { unique: Unique(6 (resent)) }",
        ),
        (38, vec![], "Destroy"),
        (
            43,
            vec![U64(1), U64(2), U64(3), U32(4), U32(0)],
            "Allocate { handle: FileHandle(1), offset: 2, length: 3, mode: 4 }",
        ),
        (
            46,
            vec![U64(1), U64(2), U32(3), U32(0)],
            "Seek { handle: FileHandle(1), offset: 2, to: Data }",
        ),
        (
            46,
            vec![U64(1), U64(2), U32(4), U32(0)],
            "Seek { handle: FileHandle(1), offset: 2, to: Hole }",
        ),
        (
            47,
            (1..8).map(U64).collect(),
            "CopyRange(CopyRange { from_handle: FileHandle(1), from_offset: 2, \
            to: Inode(3), to_handle: FileHandle(4), to_offset: 5, length: 6, flags: 7 })",
        ),
    ];
    let sample = |(opcode, fields, means): (u32, Vec<Field>, &'static str)| Sample {
        opcode,
        body: body(&fields),
        means,
    };
    rows.into_iter().map(sample).collect()
}
