//! The operator: watches jobs and nodes, lets `scheduler` decide, writes what it decided, and
//! serves the rendezvous of running gangs. What a good plan is, and what a gang's messages mean, is
//! decided in `core/`; here is everything that touches a network.

pub mod args;
pub mod bootstrap;
pub mod clock;
pub mod cluster;
mod condition;
pub mod event;
pub mod fabric;
pub mod fence;
pub mod labels;
pub mod leader;
pub mod limits;
pub mod metrics;
pub mod mirror;
pub mod node_validation;
pub mod proof;
pub mod quantity;
pub mod rendezvous;
pub mod run;
pub mod storage;
#[cfg(test)]
mod testing;
mod token_bucket;
pub mod training_job;
pub mod views;
pub mod watch;
pub mod workload;
