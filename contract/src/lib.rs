//! What the programs of an attempt know of each other: who speaks for it, and the files that they leave: the assignment
//! that the operator writes, the run directory that trainer and sidecar share, the termination message that the operator
//! reads; also the task of a validation. What is read is validated here once. What it means is decided by those who read
//! it.

pub mod assignment;
pub mod identity;
pub mod limits;
pub mod run_dir;
pub mod termination;
pub mod validation;

pub use topology::{CheckpointRef, OnPeerLoss, Progress};
