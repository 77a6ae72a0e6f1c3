//! Our transport between the kernel and a file system: mounts, reads requests of `/dev/fuse`,
//! writes answers and notifications. What a request does, and every cache and table of inodes,
//! belongs to the caller; an inode's number in the kernel is its number in the caller's file
//! system.
//!
//! Two processes can follow each other on one mount: whoever holds the descriptor and the
//! [`init::Negotiated`] state goes on with [`connection::FuseConnection::from_fd`], and asks with
//! [`notification::Notification::Resend`] for what its predecessor has read and not answered.
//! [`request::Unique`] tells requests that come again.
//!
//! Neither a process that serves a mount nor one that starts its successor may have files of that
//! mount open: closing them, as `exec` does too, waits for an answer and cannot be killed. A
//! connection that waits for itself ends only by `/sys/fs/fuse/connections/*/abort`.

mod abi;
pub mod answer;
pub mod connection;
pub mod directory;
pub mod init;
pub mod mount;
pub mod notification;
pub mod request;
#[cfg(test)]
#[path = "../tests/requests/mod.rs"]
mod requests;
pub mod serve;

/// An error number of the kernel.
pub use rustix::io::Errno;
