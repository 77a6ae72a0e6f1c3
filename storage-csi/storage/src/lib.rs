//! The storage service: targets, which hold the chunks of the chains that they are members of. Which contents there are
//! is decided by `craq`, where they lie by `chunk_store`.

pub mod keys;
pub mod target;
