//! The agent of one node: reports GPUs, adapter slots and the node to the kubelet, gives
//! containers what they need to use them, and labels its own Node. Which jobs run where is the
//! operator's business.

pub mod agent;
pub mod allocation;
pub mod args;
pub mod backend;
pub mod folder;
pub mod labels;
mod limits;
pub mod metrics;
pub mod pb;
pub mod plugin;
pub mod registration;
pub mod resource;
pub mod run;
pub mod service;
pub mod session;
#[cfg(test)]
mod testing;

pub use agent::Agent;
pub use args::Args;
