//! Volumes as mounted file systems: the kernel's requests of FUSE become operations on names, at the metadata service, and
//! reads and writes of chunks, at chains. Keeps nothing that is not there or in those: no dirty data, no table of inodes.

mod attributes;
mod chunks;
mod file_system;
mod open_files;
mod volume_mount;

pub use chunks::{ChunkError, ChunkedFiles};
pub use volume_mount::{VolumeMount, VolumeMountError};
