//! Plans that only say why a job waits. They come after everything else and not too many at a time,
//! so that a burst of submissions does not hold up what is given to the first of them.

use std::collections::BTreeMap;
use std::time::Duration;

use scheduler::{Action, Job, JobKey, JobPlan};
use tokio::time::Instant;

use crate::token_bucket::TokenBucket;

/// Notes at once, and the time for one more.
const BURST: u32 = 100;
const NOTE_PERIOD: Duration = Duration::from_millis(20);
/// While nodes are being given to jobs a note waits for so long: its job may be the next.
const PATIENCE: Duration = Duration::from_secs(1);
/// When to look again at notes that wait.
const PERIOD: Duration = Duration::from_millis(200);

/// Notes that wait, and how many may go.
#[derive(Debug)]
pub(super) struct Notes {
    /// Since when each job has one.
    held: BTreeMap<JobKey, Instant>,
    tokens: TokenBucket,
}

/// Whether a plan only says why its job waits, or that its spec was taken note of.
pub(super) fn is_note(plan: &JobPlan, job: Option<&Job>) -> bool {
    let ([Action::Record { status, .. }], Some(job)) = (&plan.actions[..], job) else {
        return false;
    };
    let waits = status.phase == job.status.phase && !status.phase.holds_nodes();
    waits || **status == job.status
}

impl Notes {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            held: BTreeMap::new(),
            tokens: TokenBucket::new(BURST, NOTE_PERIOD, now),
        }
    }

    /// The notes that may be written now, the oldest first, and when to look again if some wait.
    /// `busy` says that nodes are being given to jobs.
    pub(super) fn due(
        &mut self,
        notes: Vec<JobPlan>,
        busy: bool,
        now: Instant,
    ) -> (Vec<JobPlan>, Option<Instant>) {
        let old = std::mem::take(&mut self.held);
        let first = |note: &JobPlan| old.get(&note.job).copied().unwrap_or(now);
        let mut notes: Vec<_> = notes.into_iter().map(|note| (first(&note), note)).collect();
        notes.sort_by_key(|(first, _)| *first);
        let mut due = Vec::new();
        for (first, note) in notes {
            let waits = busy && now < first + PATIENCE;
            if waits || !self.tokens.take(now) {
                self.held.insert(note.job, first);
            } else {
                due.push(note);
            }
        }
        let again = (!self.held.is_empty()).then(|| now + PERIOD);
        (due, again)
    }
}

#[cfg(test)]
mod tests {
    use scheduler::JobStatus;

    use super::*;

    fn notes(count: usize) -> Vec<JobPlan> {
        let note = |index: usize| JobPlan {
            job: JobKey {
                kind: scheduler::JobKind::TrainingJob,
                namespace: "team".into(),
                name: format!("job-{index:05}").into(),
                uid: "u".into(),
            },
            actions: vec![Action::Record {
                status: Box::new(JobStatus::default()),
                event: None,
            }],
        };
        (0..count).map(note).collect()
    }

    #[test]
    fn notes_wait_while_nodes_are_given_but_not_for_long() {
        let now = Instant::now();
        let mut waiting = Notes::new(now);
        let (due, again) = waiting.due(notes(1), true, now);
        assert_eq!((due.len(), again), (0, Some(now + PERIOD)));
        assert_eq!(waiting.due(notes(1), true, now + PATIENCE).0.len(), 1);
        assert_eq!(waiting.due(notes(1), false, now + PATIENCE).0.len(), 1);
    }

    #[test]
    fn a_burst_of_notes_is_spread_and_each_comes_in_its_turn() {
        let now = Instant::now();
        let mut waiting = Notes::new(now);
        let mut left = notes(500);
        let mut seconds = 0;
        while !left.is_empty() {
            let (due, _) = waiting.due(left.clone(), false, now + Duration::from_secs(seconds));
            assert!(due.len() <= BURST as usize);
            assert_eq!(due[0].job, left[0].job, "the oldest first");
            left.drain(..due.len());
            seconds += 1;
        }
        assert_eq!(seconds, 9, "100 at once, then 50 a second");
    }
}
