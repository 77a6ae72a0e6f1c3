//! The sleep of a loop that owns many links.

use std::io;
use std::time::Duration;

use link::wake_fd::WakeFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ChainLink;

/// Waits until somebody notifies `wake`, or a link has something to say, or the time is over. Answers which links
/// have, in their order.
pub fn wait<'a>(
    wake: &WakeFd,
    links: impl Iterator<Item = &'a ChainLink> + Clone,
    most: Duration,
) -> io::Result<Vec<bool>> {
    let is_ready_now = links.clone().any(ChainLink::has_more);
    let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
    fds.extend(links.clone().map(|link| {
        let room = match link.is_blocked() {
            true => PollFlags::OUT,
            false => PollFlags::empty(),
        };
        PollFd::from_borrowed_fd(link.socket(), PollFlags::IN | room)
    }));
    let most = if is_ready_now { Duration::ZERO } else { most };
    let timeout = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: most.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    wake.clear();
    let said = fds.iter().skip(1).map(|fd| !fd.revents().is_empty());
    Ok(said
        .zip(links)
        .map(|(said, link)| said || link.has_more())
        .collect())
}
