//! A sidecar's process that has no descriptor left.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Lets a process have so many descriptors, and returns how many it might have had before.
pub(crate) fn allow_descriptors(process: u32, limit: u64) -> u64 {
    let limit = Rlimit {
        current: Some(limit),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let process = Pid::from_raw(process.cast_signed());
    let before = prlimit(process, Resource::Nofile, limit).unwrap();
    before.current.unwrap_or(u64::MAX)
}
