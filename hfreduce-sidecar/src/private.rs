//! Keeps the memory of this process, which holds the attempt's key, from processes of the same user: the trainer's, where
//! the pod shares its process namespace. Owns nothing; called first in `main`, since an executed program starts open.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// From here on only a privileged process may trace this one, read its memory or follow the links below `/proc/PID`.
pub fn close() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn a_process_that_closes_itself_is_not_dumpable() {
        close().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
