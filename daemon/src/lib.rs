//! What every process of ours does the same way: command-line block, logs, metrics registry,
//! health endpoints, texts of errors, limits and shutdown. What a process is for stays in its own
//! crate.

pub mod args;
pub mod descriptors;
pub mod endpoints;
pub mod errors;
pub mod limits;
pub mod logs;
pub mod metrics;
pub mod ready;
pub mod reference;
pub mod shutdown;
pub mod slots;
pub mod watchdog;

pub use args::{Args, LogFormat};
pub use errors::chain;
pub use link::panics;
pub use metrics::Registry;
pub use ready::{Gate, Readiness};
pub use tokio_util::sync::CancellationToken;
pub use watchdog::Watchdog;
