//! From the bytes of a request to its operation, or to why not.

use super::{
    Caller, CopyRange, FileHandle, FileName, FileOperation, FileTime, Forgets, Inode, Refusal,
    RefusalReason, RenameMode, Request, SeekTo, SetAttributes, SetTime, Unique, XattrName,
};
use crate::abi::{self, Fields, TooShort, opcode, set};

/// What comes before each operation.
#[derive(Clone, Copy)]
struct Prefix {
    length: u32,
    opcode: u32,
    unique: Unique,
    inode: Inode,
    caller: Caller,
    extensions: u16,
}

impl Prefix {
    fn read(fields: &mut Fields<'_>) -> Result<Self, TooShort> {
        let prefix = Self {
            length: fields.u32()?,
            opcode: fields.u32()?,
            unique: Unique(fields.u64()?),
            inode: Inode(fields.u64()?),
            caller: Caller {
                uid: fields.u32()?,
                gid: fields.u32()?,
                pid: fields.u32()?,
            },
            extensions: fields.u16()?,
        };
        let _padding = fields.u16()?;
        Ok(prefix)
    }
}

pub(super) fn request(bytes: &[u8]) -> Result<Request<'_>, Refusal> {
    let mut fields = Fields::new(bytes);
    let prefix = Prefix::read(&mut fields).map_err(|short| Refusal {
        unique: Unique(0),
        opcode: 0,
        reason: short.into(),
    })?;
    let operation = whole_operation(&prefix, bytes.len(), fields);
    let operation = operation.map_err(|reason| Refusal {
        unique: prefix.unique,
        opcode: prefix.opcode,
        reason,
    })?;
    Ok(Request {
        unique: prefix.unique,
        inode: prefix.inode,
        caller: prefix.caller,
        operation,
    })
}

fn whole_operation<'a>(
    prefix: &Prefix,
    read: usize,
    mut fields: Fields<'a>,
) -> Result<FileOperation<'a>, RefusalReason> {
    if usize::try_from(prefix.length) != Ok(read) {
        return Err(RefusalReason::Malformed("its length is not what was read"));
    }
    if prefix.extensions != 0 {
        return Err(RefusalReason::Malformed("it has extensions nobody wanted"));
    }
    let operation = operation(prefix.opcode, &mut fields)?;
    if !fields.is_empty() {
        return Err(RefusalReason::Malformed("bytes follow its end"));
    }
    Ok(operation)
}

fn operation<'a>(opcode: u32, fields: &mut Fields<'a>) -> Result<FileOperation<'a>, RefusalReason> {
    Ok(match opcode {
        opcode::LOOKUP => FileOperation::Lookup {
            name: name(fields)?,
        },
        opcode::FORGET => FileOperation::Forget {
            lookups: fields.u64()?,
        },
        opcode::BATCH_FORGET => forgets(fields)?,
        opcode::GETATTR => {
            let (flags, _padding, handle) = (fields.u32()?, fields.u32()?, fields.u64()?);
            let has_handle = flags & abi::GETATTR_HANDLE != 0;
            let handle = has_handle.then_some(FileHandle(handle));
            FileOperation::GetAttributes { handle }
        }
        opcode::SETATTR => FileOperation::SetAttributes(set_attributes(fields)?),
        opcode::READLINK => FileOperation::ReadLink,
        opcode::SYMLINK => FileOperation::MakeSymlink {
            name: name(fields)?,
            target: fields.text()?,
        },
        opcode::MKNOD => {
            let (mode, device) = (fields.u32()?, fields.u32()?);
            let (_umask, _padding) = (fields.u32()?, fields.u32()?);
            let name = name(fields)?;
            FileOperation::MakeNode { name, mode, device }
        }
        opcode::MKDIR => {
            let (mode, _umask) = (fields.u32()?, fields.u32()?);
            let name = name(fields)?;
            FileOperation::MakeDirectory { name, mode }
        }
        opcode::UNLINK => FileOperation::Unlink {
            name: name(fields)?,
        },
        opcode::RMDIR => FileOperation::RemoveDirectory {
            name: name(fields)?,
        },
        opcode::RENAME => {
            let new_parent = Inode(fields.u64()?);
            names(fields, new_parent, RenameMode::Replace)?
        }
        opcode::RENAME2 => {
            let (new_parent, flags) = (Inode(fields.u64()?), fields.u32()?);
            let _padding = fields.u32()?;
            names(fields, new_parent, rename_mode(flags)?)?
        }
        opcode::LINK => FileOperation::Link {
            existing: Inode(fields.u64()?),
            new_name: name(fields)?,
        },
        opcode::OPEN => {
            let (flags, open_flags) = (fields.u32()?, fields.u32()?);
            let kill_privileges = open_flags & abi::OPEN_KILL_PRIVILEGES != 0;
            FileOperation::Open {
                flags,
                kill_privileges,
            }
        }
        opcode::READ => {
            let (handle, offset, size) = range(fields)?;
            FileOperation::Read {
                handle,
                offset,
                size,
            }
        }
        opcode::WRITE => write(fields)?,
        opcode::STATFS => FileOperation::FileSystemStatus,
        opcode::RELEASE => {
            let (handle, flags) = release(fields)?;
            FileOperation::Release { handle, flags }
        }
        opcode::FSYNC => {
            let (handle, data_only) = sync(fields)?;
            FileOperation::Sync { handle, data_only }
        }
        opcode::FSYNCDIR => {
            let (handle, data_only) = sync(fields)?;
            FileOperation::SyncDirectory { handle, data_only }
        }
        opcode::FLUSH => {
            let handle = FileHandle(fields.u64()?);
            let (_unused, _lock_owner) = (fields.u64()?, fields.u64()?);
            FileOperation::Flush { handle }
        }
        opcode::OPENDIR => {
            let (flags, _open_flags) = (fields.u32()?, fields.u32()?);
            FileOperation::OpenDirectory { flags }
        }
        opcode::READDIR => {
            let (handle, offset, size) = range(fields)?;
            FileOperation::ReadDirectory {
                handle,
                offset,
                size,
            }
        }
        opcode::READDIRPLUS => {
            let (handle, offset, size) = range(fields)?;
            FileOperation::ReadDirectoryPlus {
                handle,
                offset,
                size,
            }
        }
        opcode::RELEASEDIR => {
            let (handle, flags) = release(fields)?;
            FileOperation::ReleaseDirectory { handle, flags }
        }
        opcode::ACCESS => {
            let (mask, _padding) = (fields.u32()?, fields.u32()?);
            FileOperation::Access { mask }
        }
        opcode::CREATE => {
            let (flags, mode, _umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let kill_privileges = fields.u32()? & abi::OPEN_KILL_PRIVILEGES != 0;
            FileOperation::Create {
                name: name(fields)?,
                flags,
                mode,
                kill_privileges,
            }
        }
        opcode::INTERRUPT => FileOperation::Interrupt {
            unique: Unique(fields.u64()?),
        },
        opcode::DESTROY => FileOperation::Destroy,
        opcode::FALLOCATE => {
            let (handle, offset) = (FileHandle(fields.u64()?), fields.u64()?);
            let (length, mode, _padding) = (fields.u64()?, fields.u32()?, fields.u32()?);
            FileOperation::Allocate {
                handle,
                offset,
                length,
                mode,
            }
        }
        opcode::LSEEK => {
            let (handle, offset) = (FileHandle(fields.u64()?), fields.u64()?);
            let (whence, _padding) = (fields.u32()?, fields.u32()?);
            let to = seek_to(whence)?;
            FileOperation::Seek { handle, offset, to }
        }
        opcode::COPY_FILE_RANGE => FileOperation::CopyRange(CopyRange {
            from_handle: FileHandle(fields.u64()?),
            from_offset: fields.u64()?,
            to: Inode(fields.u64()?),
            to_handle: FileHandle(fields.u64()?),
            to_offset: fields.u64()?,
            length: fields.u64()?,
            flags: fields.u64()?,
        }),
        opcode::SETXATTR => set_xattr(fields)?,
        opcode::GETXATTR => {
            let (size, _padding) = (fields.u32()?, fields.u32()?);
            let name = XattrName::new(fields.text()?)?;
            FileOperation::GetXattr { name, size }
        }
        opcode::LISTXATTR => {
            let (size, _padding) = (fields.u32()?, fields.u32()?);
            FileOperation::ListXattr { size }
        }
        opcode::REMOVEXATTR => FileOperation::RemoveXattr {
            name: XattrName::new(fields.text()?)?,
        },
        opcode::INIT => return Err(RefusalReason::Malformed("the connection is established")),
        _ => return Err(RefusalReason::Unsupported),
    })
}

fn name<'a>(fields: &mut Fields<'a>) -> Result<FileName<'a>, RefusalReason> {
    Ok(FileName::new(fields.text()?)?)
}

fn names<'a>(
    fields: &mut Fields<'a>,
    new_parent: Inode,
    mode: RenameMode,
) -> Result<FileOperation<'a>, RefusalReason> {
    Ok(FileOperation::Rename {
        name: name(fields)?,
        new_parent,
        new_name: name(fields)?,
        mode,
    })
}

fn rename_mode(flags: u32) -> Result<RenameMode, RefusalReason> {
    match flags {
        0 => Ok(RenameMode::Replace),
        abi::rename::NO_REPLACE => Ok(RenameMode::NoReplace),
        abi::rename::EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(RefusalReason::Invalid("no rename of ours has such flags")),
    }
}

fn seek_to(whence: u32) -> Result<SeekTo, RefusalReason> {
    match whence {
        abi::whence::DATA => Ok(SeekTo::Data),
        abi::whence::HOLE => Ok(SeekTo::Hole),
        _ => Err(RefusalReason::Invalid("a seek for neither data nor hole")),
    }
}

fn forgets<'a>(fields: &mut Fields<'a>) -> Result<FileOperation<'a>, RefusalReason> {
    let (count, _padding) = (fields.u32()?, fields.u32()?);
    match Forgets::new(fields.rest()) {
        Some(forgets) if usize::try_from(count) == Ok(forgets.len()) => {
            Ok(FileOperation::BatchForget(forgets))
        }
        Some(_) | None => Err(RefusalReason::Malformed("its count is wrong")),
    }
}

/// What requests to read have in common.
fn range(fields: &mut Fields<'_>) -> Result<(FileHandle, u64, u32), TooShort> {
    let range = (FileHandle(fields.u64()?), fields.u64()?, fields.u32()?);
    let (_read_flags, _lock_owner) = (fields.u32()?, fields.u64()?);
    let (_flags, _padding) = (fields.u32()?, fields.u32()?);
    Ok(range)
}

fn write<'a>(fields: &mut Fields<'a>) -> Result<FileOperation<'a>, RefusalReason> {
    let (handle, offset, size) = (FileHandle(fields.u64()?), fields.u64()?, fields.u32()?);
    let (write_flags, _lock_owner) = (fields.u32()?, fields.u64()?);
    let (_flags, _padding) = (fields.u32()?, fields.u32()?);
    let data = fields.rest();
    if usize::try_from(size) != Ok(data.len()) {
        return Err(RefusalReason::Malformed("its data is not of its size"));
    }
    Ok(FileOperation::Write {
        handle,
        offset,
        data,
        from_cache: write_flags & abi::WRITE_FROM_CACHE != 0,
        kill_privileges: write_flags & abi::WRITE_KILL_PRIVILEGES != 0,
    })
}

fn release(fields: &mut Fields<'_>) -> Result<(FileHandle, u32), TooShort> {
    let release = (FileHandle(fields.u64()?), fields.u32()?);
    let (_release_flags, _lock_owner) = (fields.u32()?, fields.u64()?);
    Ok(release)
}

fn sync(fields: &mut Fields<'_>) -> Result<(FileHandle, bool), TooShort> {
    let (handle, flags, _padding) = (fields.u64()?, fields.u32()?, fields.u32()?);
    Ok((FileHandle(handle), flags & abi::FSYNC_DATA != 0))
}

fn set_xattr<'a>(fields: &mut Fields<'a>) -> Result<FileOperation<'a>, RefusalReason> {
    let (size, flags) = (fields.u32()?, fields.u32()?);
    let name = XattrName::new(fields.text()?)?;
    let value = fields.rest();
    if usize::try_from(size) != Ok(value.len()) {
        return Err(RefusalReason::Malformed("its value is not of its size"));
    }
    Ok(FileOperation::SetXattr { name, value, flags })
}

fn set_attributes(fields: &mut Fields<'_>) -> Result<SetAttributes, TooShort> {
    let (valid, _padding) = (fields.u32()?, fields.u32()?);
    let (handle, size, _lock_owner) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let seconds = [fields.u64()?, fields.u64()?, fields.u64()?];
    let nanoseconds = [fields.u32()?, fields.u32()?, fields.u32()?];
    let (mode, _unused) = (fields.u32()?, fields.u32()?);
    let (uid, gid, _unused_too) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let has = |flag: u32| valid & flag != 0;
    let time = |at: usize| FileTime {
        seconds: seconds[at].cast_signed(),
        nanoseconds: nanoseconds[at],
    };
    let set_time = |flag: u32, now: u32, at: usize| {
        let time = if has(now) {
            SetTime::Now
        } else {
            SetTime::At(time(at))
        };
        has(flag).then_some(time)
    };
    Ok(SetAttributes {
        handle: has(set::HANDLE).then_some(FileHandle(handle)),
        mode: has(set::MODE).then_some(mode),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        size: has(set::SIZE).then_some(size),
        atime: set_time(set::ATIME, set::ATIME_NOW, 0),
        mtime: set_time(set::MTIME, set::MTIME_NOW, 1),
        ctime: has(set::CTIME).then(|| time(2)),
        kill_privileges: has(set::KILL_PRIVILEGES),
    })
}
