//! A file system of processes on one machine: etcd, a chain manager, a metadata service, three storage services, and
//! mounts, each of which can be killed and started over its folder. Tests and the bench of storage start it. It is a
//! harness: what goes wrong in here ends whoever asked, with what the processes have said.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a harness of tests and benches"
)]

mod cell;
mod etcd;
mod process;

pub use cell::{CellOptions, CellPrograms, FILE_SYSTEM, LIMIT, Mounted, StorageCell, clients_key};
pub use etcd::{Etcd, ask, etcd_program};
pub use process::{CellProcess, ProcessPlace};
