//! Frames that are larger than what a sidecar may say at any time: how many bytes of them there may
//! be at once, of each gang and together. A frame counts from its length until its gang has handled
//! it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::limits::{GANG_FRAMES_BYTES, LARGE_FRAMES_BYTES};
use contract::identity::{Identity, JobId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Those that are on their way. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub(super) struct LargeFrames {
    total: Arc<Semaphore>,
    gangs: Arc<Mutex<Gangs>>,
}

/// Of gangs that have connections.
type Gangs = BTreeMap<(JobId, u32), Weak<Semaphore>>;

/// What the connections of one gang share.
#[derive(Clone, Debug)]
pub(super) struct Share {
    total: Arc<Semaphore>,
    gang: Arc<Semaphore>,
}

/// The bytes of one frame, until it is dropped.
#[derive(Debug)]
pub(super) struct LargeFramePermit {
    _gang: OwnedSemaphorePermit,
    _total: OwnedSemaphorePermit,
}

impl Default for LargeFrames {
    fn default() -> Self {
        Self {
            total: Arc::new(Semaphore::new(LARGE_FRAMES_BYTES)),
            gangs: Arc::default(),
        }
    }
}

impl LargeFrames {
    /// The share of the gang of this sidecar.
    pub(super) fn of(&self, identity: &Identity) -> Share {
        let id = (identity.job, identity.attempt);
        // Every change is one step, so a panic elsewhere does not spoil it.
        let mut gangs = self.gangs.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = gangs.get(&id).and_then(Weak::upgrade);
        let gang = shared.unwrap_or_else(|| {
            gangs.retain(|_, gang| gang.strong_count() > 0);
            let gang = Arc::new(Semaphore::new(GANG_FRAMES_BYTES));
            gangs.insert(id, Arc::downgrade(&gang));
            gang
        });
        let total = Arc::clone(&self.total);
        Share { total, gang }
    }
}

impl Share {
    /// Waits until there is room for a frame. None for one that never has it.
    pub(super) async fn admit(&self, bytes: usize) -> Option<LargeFramePermit> {
        let bytes = u32::try_from(bytes)
            .ok()
            .filter(|_| bytes <= GANG_FRAMES_BYTES)?;
        // A gang that has used up its own share does not stand in the way of others.
        let gang = Arc::clone(&self.gang).acquire_many_owned(bytes).await;
        let total = Arc::clone(&self.total).acquire_many_owned(bytes).await;
        Some(LargeFramePermit {
            _gang: gang.ok()?,
            _total: total.ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use collective::membership::encoding::FRAME_LIMIT_BYTES;
    use contract::identity::Party;
    use futures::FutureExt;

    use super::*;

    fn gang(name: &str) -> Identity {
        Identity {
            job: JobId::new(name),
            attempt: 1,
            party: Party::Sidecar { rank: 0 },
        }
    }

    /// So many of the largest frames, all admitted at once.
    fn admitted(share: &Share, frames: usize) -> Vec<LargeFramePermit> {
        let now = |_| share.admit(FRAME_LIMIT_BYTES).now_or_never();
        (0..frames).map(|at| now(at).unwrap().unwrap()).collect()
    }

    #[test]
    fn the_largest_frames_of_all_gangs_take_64_mib_and_the_next_waits_until_one_is_handled() {
        let large = LargeFrames::default();
        let of_each = GANG_FRAMES_BYTES / FRAME_LIMIT_BYTES;
        let gangs: Vec<Share> = (0..8)
            .map(|at| large.of(&gang(&format!("u-{at}"))))
            .collect();
        let mut parts: Vec<Vec<LargeFramePermit>> =
            gangs.iter().map(|one| admitted(one, of_each)).collect();
        let held: usize = parts.iter().map(Vec::len).sum();
        assert_eq!(held * FRAME_LIMIT_BYTES, LARGE_FRAMES_BYTES);
        let late = large.of(&gang("late"));
        let mut next = std::pin::pin!(late.admit(FRAME_LIMIT_BYTES));
        assert!(next.as_mut().now_or_never().is_none());
        parts[3].pop();
        assert!(next.now_or_never().flatten().is_some());
    }

    #[test]
    fn one_gang_leaves_room_for_others_whatever_its_ranks_begin() {
        let large = LargeFrames::default();
        let (hostile, again) = (large.of(&gang("hostile")), large.of(&gang("hostile")));
        let _held = admitted(&hostile, GANG_FRAMES_BYTES / FRAME_LIMIT_BYTES);
        let mut more: Vec<_> = (0..4096)
            .map(|_| Box::pin(again.admit(FRAME_LIMIT_BYTES)))
            .collect();
        assert!(more.iter_mut().all(|more| more.now_or_never().is_none()));
        let honest = large.of(&gang("honest"));
        drop(admitted(&honest, GANG_FRAMES_BYTES / FRAME_LIMIT_BYTES));
        assert!(
            honest
                .admit(GANG_FRAMES_BYTES + 1)
                .now_or_never()
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn gangs_without_connections_are_forgotten() {
        let large = LargeFrames::default();
        for number in 0..100 {
            drop(large.of(&gang(&format!("u-{number}"))));
        }
        assert!(large.gangs.lock().unwrap().len() <= 1);
    }
}
