//! Parts jobs that would otherwise try again at the same moment, for ever. Not by chance: the same
//! job in the same turn gets the same answer from every leader.

use std::time::Duration;

use crate::snapshot::JobKey;

/// Steps into which a span is divided.
const PARTS: u32 = 1024;

/// A part of `most` that depends on the job's uid and on how often it has tried: from nothing to
/// just less than all of it.
pub fn jitter(job: &JobKey, turn: u32, most: Duration) -> Duration {
    // FNV-1a. Its upper half depends on every byte.
    let bytes = job.uid.bytes().chain(turn.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let part = u32::try_from((hash >> 32) % u64::from(PARTS)).unwrap_or(0);
    most * part / PARTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::JobKind;

    const MOST: Duration = Duration::from_secs(64);

    fn pause(uid: u32, turn: u32) -> Duration {
        let job = JobKey {
            kind: JobKind::TrainingJob,
            namespace: "team".into(),
            name: "train".into(),
            uid: format!("7f9c0a52-31d4-4bd8-9c41-{uid:012x}").into(),
        };
        jitter(&job, turn, MOST)
    }

    #[test]
    fn a_job_has_its_own_part_of_a_span_and_another_in_each_turn() {
        assert_eq!(pause(1, 1), pause(1, 1));
        assert_ne!(pause(1, 1), pause(2, 1));
        assert_ne!(pause(1, 1), pause(1, 2));
    }

    #[test]
    fn jobs_are_spread_evenly_over_a_span() {
        for turn in 1..4 {
            let mut quarters = [0; 4];
            for uid in 0..4000 {
                let pause = pause(uid, turn);
                assert!(pause < MOST);
                quarters[usize::try_from(pause.as_secs() / 16).unwrap()] += 1;
            }
            let even = |count: &i32| (800..1200).contains(count);
            assert!(quarters.iter().all(even), "{quarters:?}");
        }
    }
}
