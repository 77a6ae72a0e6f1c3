//! The limit of open descriptors. Container runtimes leave a process at the 1,024 that `select` can
//! count, and a gang of 1,250 nodes alone takes more connections than that.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Asks for as many descriptors as this process may have.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, limit = limit.current, "failed to raise the limit of descriptors");
    }
}
