//! The processes of the file system, each a subcommand of one program: storage services, chain managers, metadata services,
//! and the driver that Kubernetes mounts volumes with. What they do is in the crates beside this one; here they get their
//! flags, find each other, and end.

pub mod args;
mod client;
mod controller;
pub mod follow;
mod manager;
mod meta;
mod metrics;
mod node;
pub mod run;
mod service;
mod volumes;
