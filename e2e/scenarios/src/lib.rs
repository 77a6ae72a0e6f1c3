//! What must hold on a real cluster (T4) and on a thousand simulated nodes (T5), as scenarios.
//!
//! A scenario is an async function over a [`Context`](context::Context); [`runner`] decides which of them share the
//! cluster at one time. Everything goes through the Kubernetes API, as a user's tools would.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test runner talks to a person"
)]

pub mod audit;
pub mod context;
pub mod crash;
pub mod jobs;
pub mod logs;
pub mod member;
pub mod pods;
pub mod refusals;
pub mod runner;
pub mod scenario;
