//! The thread that stays with the sidecar: when it is gone and comes back without its memory, this process attaches
//! again, with what was delivered to it in each of its groups, its segments and what it has called. The trainer computes meanwhile, and its
//! other threads wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::connect::{self, Attachment};
use super::groups::Known;
use super::shared::{Link, Shared, sleep_on};
use super::{Error, RETRY};
use crate::attach::{self, ClientMessage, SidecarAnswer, Standing};
use link::wake_fd::WakeFd;

/// How often the thread looks whether it is still needed; it is woken when it is not.
const LOOK: Duration = Duration::from_secs(60);

/// What the thread needs while nobody else may use the connection.
struct Keeper {
    /// Gone when the trainer has dropped the client.
    shared: Weak<Shared>,
    /// Notified when it does.
    leaving: Arc<WakeFd>,
    socket: PathBuf,
    standing: Standing,
}

/// A segment for inputs, to be restored in another sidecar.
pub(super) struct Handed {
    pub(super) number: u32,
    pub(super) bytes: u64,
    pub(super) fd: Arc<OwnedFd>,
}

/// What this process restores in another sidecar.
pub(super) struct Belongings {
    /// The first operation of the world that was not delivered to it.
    pub(super) delivered: u64,
    pub(super) groups: Vec<Known>,
    pub(super) inputs: Vec<Handed>,
}

/// What another sidecar has said while it took these.
pub(super) type HandoverAnswers = Vec<(SidecarAnswer, Vec<OwnedFd>)>;

/// Starts the thread.
pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let keeper = Keeper {
        shared: Arc::downgrade(shared),
        leaving: Arc::clone(&shared.leaving),
        socket: shared.socket.clone(),
        standing: shared.standing,
    };
    thread::Builder::new()
        .name("hfreduce-keeper".to_owned())
        .spawn(move || while keeper.keep().is_some() {})?;
    Ok(())
}

impl Keeper {
    /// Waits for the end of the sidecar and for the next one. None when there is nothing to wait for any more.
    fn keep(&self) -> Option<()> {
        let link = self.shared.upgrade()?.present()?;
        sleep_on(
            &[
                PollFd::new(&link.channel, PollFlags::RDHUP),
                PollFd::new(&*self.leaving, PollFlags::IN),
            ],
            LOOK,
        );
        self.shared.upgrade()?.look_after(&link);
        self.seek()
    }

    /// Looks for another sidecar if this one is gone.
    fn seek(&self) -> Option<()> {
        let since = Instant::now();
        loop {
            let patience = self.shared.upgrade()?.is_away()?;
            if patience.is_zero() {
                return Some(());
            }
            let left = patience.saturating_sub(since.elapsed());
            match self.attach_again(left) {
                Ok(()) => return Some(()),
                Err(error) if connect::is_absence(&error) && !left.is_zero() => {
                    sleep_on(&[PollFd::new(&*self.leaving, PollFlags::IN)], RETRY);
                }
                Err(error) => {
                    self.shared.upgrade()?.give_up(&error, since.elapsed());
                    return None;
                }
            }
        }
    }

    /// `limit`: how long the sidecar may take for an answer; it maps all input segments, gigabytes at most.
    fn attach_again(&self, limit: Duration) -> Result<(), Error> {
        let Some(all) = self.shared.upgrade().and_then(|shared| shared.belongings()) else {
            return Ok(());
        };
        let Standing { local_rank, .. } = self.standing;
        let attachment = connect::connect(&self.socket, local_rank, Some(&all), limit)?;
        let same = |of: Standing| Standing { epoch: 0, ..of };
        if same(attachment.standing) != same(self.standing) {
            return Err(Error::Unexpected {
                request: "attach again",
            });
        }
        let mut handover = Handover {
            link: &attachment.link,
            limit,
            answers: HandoverAnswers::new(),
        };
        all.groups
            .iter()
            .try_for_each(|group| handover.restore_group(group))?;
        all.inputs
            .iter()
            .try_for_each(|segment| handover.restore_input(segment))?;
        let answers = handover.answers;
        let numbers: Vec<u32> = all.inputs.iter().map(|segment| segment.number).collect();
        match self.shared.upgrade() {
            Some(shared) => shared.go_on(attachment, &numbers, answers),
            None => Ok(()),
        }
    }
}

/// To a sidecar that has forgotten everything.
struct Handover<'a> {
    link: &'a Link,
    /// How long an answer may take.
    limit: Duration,
    answers: HandoverAnswers,
}

impl Handover<'_> {
    /// Restores a group.
    fn restore_group(&mut self, known: &Known) -> Result<(), Error> {
        const REQUEST: &str = "reopen a group";
        for ranks in known.ranks.chunks(attach::RANKS_LIMIT) {
            let ranks = ranks.to_vec();
            self.ask(
                REQUEST,
                &ClientMessage::Ranks { ranks },
                &[],
                &SidecarAnswer::Noted,
            )?;
        }
        let group = ClientMessage::Group(known.state.clone());
        self.ask(REQUEST, &group, &[], &SidecarAnswer::Noted)
    }

    /// Restores a segment.
    fn restore_input(&mut self, handed: &Handed) -> Result<(), Error> {
        let (segment, bytes) = (handed.number, handed.bytes);
        let restore = ClientMessage::RestoreSegment { segment, bytes };
        let taken = SidecarAnswer::Taken { segment };
        self.ask(
            "register an input buffer again",
            &restore,
            &[handed.fd.as_fd()],
            &taken,
        )
    }

    /// Says something and waits for its answer.
    fn ask(
        &mut self,
        request: &'static str,
        message: &ClientMessage,
        fds: &[BorrowedFd<'_>],
        expected: &SidecarAnswer,
    ) -> Result<(), Error> {
        self.link.channel.send(message, fds)?;
        loop {
            let (answer, fds) = connect::receive(&self.link.channel, request, self.limit)?;
            match answer {
                answer if answer == *expected => return Ok(()),
                SidecarAnswer::Refused { reason } => {
                    return Err(Error::Refused { request, reason });
                }
                SidecarAnswer::Members(_)
                | SidecarAnswer::Result { .. }
                | SidecarAnswer::Gone { .. } => {
                    self.answers.push((answer, fds));
                }
                SidecarAnswer::Attached { .. }
                | SidecarAnswer::Taken { .. }
                | SidecarAnswer::Noted
                | SidecarAnswer::Over { .. }
                | SidecarAnswer::Waits { .. }
                | SidecarAnswer::Input { .. } => return Err(Error::Unexpected { request }),
            }
        }
    }
}

impl Shared {
    /// The connection, while the sidecar is there or looked for.
    fn present(&self) -> Option<Arc<Link>> {
        let state = self.lock().ok()?;
        state.alive().ok()?;
        Some(state.link())
    }

    /// Something has happened to a connection: perhaps it has ended.
    fn look_after(&self, link: &Arc<Link>) {
        if let Ok(mut state) = self.lock()
            && state.is_there()
            && Arc::ptr_eq(&state.link(), link)
        {
            state.receive();
        }
        self.notify();
    }

    /// How long to look for the next sidecar: not at all while one is there. None when all is lost.
    fn is_away(&self) -> Option<Duration> {
        let state = self.lock().ok()?;
        state.alive().ok()?;
        Some(if state.is_there() {
            Duration::ZERO
        } else {
            state.patience()
        })
    }

    fn belongings(&self) -> Option<Belongings> {
        Some(self.lock().ok()?.belongings())
    }

    fn go_on(
        &self,
        attachment: Attachment,
        segments: &[u32],
        answers: HandoverAnswers,
    ) -> Result<(), Error> {
        let mut state = self.lock()?;
        let sidecar_sleeps = state.go_on(attachment, segments, answers)?;
        let link = state.link();
        drop(state);
        if sidecar_sleeps {
            link.wake_fd.notify();
        }
        self.notify();
        Ok(())
    }

    fn give_up(&self, error: &Error, waited: Duration) {
        let socket = self.socket.display();
        let next = if connect::is_absence(error) {
            format!("none took its place at {socket} within {waited:.0?} ({error})")
        } else {
            format!("the one in its place cannot go on with this process: {error}")
        };
        if let Ok(mut state) = self.lock() {
            state.lose(format!(
                "it ended or was killed, and {next}; look at the restarts and the log of this pod's container hfreduce"
            ));
        }
        self.notify();
    }

    /// Wakes all threads that wait.
    fn notify(&self) {
        if let Ok(state) = self.lock() {
            let _ = state.link().outcomes.event_count().notify();
        }
        self.looked.notify_all();
    }
}
