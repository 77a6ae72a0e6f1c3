//! The storage service: targets on disks, which hold the chunks of the chains that they are members of, and the loop that
//! connects them to the other members and to clients. Which contents there are is decided by `craq`, where they lie by
//! `chunk_store`.

pub mod disk;
mod engine;
mod io;
mod keys;
mod service;
pub mod target;

pub use service::{ServiceError, ServiceOptions, ServiceTarget, StorageService, TargetStatus};
