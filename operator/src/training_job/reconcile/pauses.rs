//! Jobs whose plan could not be written: why, and until when they are left alone. No truth is kept
//! here, only patience; a new leader starts without it.

use std::collections::BTreeMap;
use std::time::Duration;

use scheduler::{JobKey, JobPlan, Problem};
use tokio::time::Instant;

use crate::training_job::apply::{Wait, creates};

/// After a write collided, the mirrors need a moment. As all pauses, doubled up to the longest.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// After a write failed.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How long a refusal of the API server is believed before it is asked again; doubled as well.
const FIRST_REFUSAL: Duration = Duration::from_secs(60);
const LONGEST_REFUSAL: Duration = Duration::from_secs(1800);
/// One part in so many comes on top, another one for each job and turn: gangs of which a quota has
/// room for one would be refused at the same moment, and ask again at the same moment.
const REFUSAL_JITTER: u32 = 2;

/// Why and until when a job is not touched.
#[derive(Clone, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
    /// Number of pauses in a row before it that had the same reason.
    turn: u32,
    reason: &'static str,
    /// What the API server refused to create, shown as the reason why the job waits.
    refusal: Option<String>,
}

/// All pauses; at most one for each job.
#[derive(Debug, Default)]
pub(super) struct Pauses(BTreeMap<JobKey, Pause>);

impl Pauses {
    /// A job's plan could not be written. Returns why in one word, and for how long it rests.
    pub(super) fn begin(
        &mut self,
        job: JobKey,
        wait: Wait,
        now: Instant,
    ) -> (&'static str, Duration) {
        let (reason, first, longest, refusal) = match wait {
            Wait::Look => ("stale", FIRST_LOOK, LONGEST_LOOK, None),
            Wait::Retry => ("failed", FIRST_RETRY, LONGEST_RETRY, None),
            Wait::Refused(what) => ("refused", FIRST_REFUSAL, LONGEST_REFUSAL, Some(what)),
        };
        let before = self.0.get(&job).filter(|pause| pause.reason == reason);
        let length = before.map_or(first, |pause| (pause.length * 2).min(longest));
        let turn = before.map_or(0, |pause| pause.turn.saturating_add(1));
        let more = match refusal {
            Some(_) => scheduler::jitter(&job, turn, length / REFUSAL_JITTER),
            None => Duration::ZERO,
        };
        let pause = Pause {
            until: now + length + more,
            length,
            turn,
            reason,
            refusal,
        };
        self.0.insert(job, pause);
        (reason, length + more)
    }

    /// What the API server refused to create for a job, as long as that is believed.
    pub(super) fn refusal(&self, job: &JobKey, now: Instant) -> Option<Problem> {
        let pause = self.0.get(job).filter(|pause| now < pause.until)?;
        pause.refusal.clone().map(|message| Problem {
            reason: "Refused",
            message,
        })
    }

    /// The plans without what a pause forbids. A job whose objects are refused is still recorded
    /// and releases what it holds; only creating is not tried again before the pause is over.
    pub(super) fn allowed(&self, plans: Vec<JobPlan>, now: Instant) -> Vec<JobPlan> {
        let allow = |mut plan: JobPlan| {
            if let Some(pause) = self.0.get(&plan.job).filter(|pause| now < pause.until) {
                let allowed = match pause.refusal {
                    Some(_) => plan.actions.iter().take_while(|a| !creates(a)).count(),
                    None => 0,
                };
                plan.actions.truncate(allowed);
            }
            (!plan.actions.is_empty()).then_some(plan)
        };
        plans.into_iter().filter_map(allow).collect()
    }

    /// When the next pause ends.
    pub(super) fn next_end(&self, now: Instant) -> Option<Instant> {
        let ends = self.0.values().map(|pause| pause.until);
        ends.filter(|until| *until > now).min()
    }

    /// Forgets jobs that are gone, and pauses that ended so long ago that the next one is a first
    /// one again.
    pub(super) fn forget(&mut self, exists: impl Fn(&JobKey) -> bool, now: Instant) {
        self.0
            .retain(|job, pause| exists(job) && now < pause.until + pause.length * 2);
    }
}

#[cfg(test)]
mod tests {
    use scheduler::{Action, JobStatus};

    use super::*;

    fn job() -> JobKey {
        job_of("u-1")
    }

    fn job_of(uid: &str) -> JobKey {
        JobKey {
            kind: scheduler::JobKind::TrainingJob,
            namespace: "team".into(),
            name: "digits".into(),
            uid: uid.into(),
        }
    }

    fn plan(actions: Vec<Action>) -> Vec<JobPlan> {
        vec![JobPlan {
            job: job(),
            actions,
        }]
    }

    fn record() -> Action {
        Action::Record {
            status: Box::new(JobStatus::default()),
            event: None,
        }
    }

    fn refused() -> Wait {
        Wait::Refused("quota is used up".to_owned())
    }

    #[test]
    fn a_refusal_is_believed_until_its_pause_is_over_and_then_asked_again() {
        let now = Instant::now();
        let mut pauses = Pauses::default();
        let (_, length) = pauses.begin(job(), refused(), now);
        let last = now + length - Duration::from_millis(1);
        let problem = pauses.refusal(&job(), last).unwrap();
        assert_eq!(
            (problem.reason, &*problem.message),
            ("Refused", "quota is used up")
        );
        assert!((FIRST_REFUSAL..FIRST_REFUSAL * 3 / 2).contains(&length));
        assert_eq!(pauses.next_end(now), Some(now + length));

        let over = now + length;
        assert_eq!(pauses.refusal(&job(), over), None);
        let creating = plan(vec![record(), Action::CreateKey { attempt: 1 }]);
        assert_eq!(pauses.allowed(creating.clone(), over), creating);
    }

    #[test]
    fn a_refused_job_is_recorded_and_releases_but_creates_nothing() {
        let now = Instant::now();
        let mut pauses = Pauses::default();
        pauses.begin(job(), refused(), now);
        let creating = plan(vec![record(), Action::CreateKey { attempt: 1 }, record()]);
        assert_eq!(pauses.allowed(creating, now), plan(vec![record()]));
        let releasing = plan(vec![record(), Action::DeleteAttempt { attempt: 1 }]);
        assert_eq!(pauses.allowed(releasing.clone(), now), releasing);
    }

    #[test]
    fn gangs_that_a_quota_refused_at_once_ask_again_at_different_moments() {
        let mut now = Instant::now();
        let mut pauses = Pauses::default();
        for _ in 0..8 {
            let one = pauses.begin(job_of("u-1"), refused(), now).1;
            let other = pauses.begin(job_of("u-2"), refused(), now).1;
            // A gang is created within a second or two.
            let apart = one.max(other) - one.min(other);
            assert!(apart > Duration::from_secs(2), "{one:?} and {other:?}");
            assert!(one.max(other) <= LONGEST_REFUSAL * 3 / 2);
            now += one.max(other);
        }
    }

    #[test]
    fn a_job_whose_write_failed_rests_as_a_whole() {
        for wait in [Wait::Look, Wait::Retry] {
            let now = Instant::now();
            let mut pauses = Pauses::default();
            let (_, length) = pauses.begin(job(), wait, now);
            assert_eq!(pauses.allowed(plan(vec![record()]), now), []);
            let one = plan(vec![record()]);
            assert_eq!(pauses.allowed(one.clone(), now + length), one);
        }
    }

    #[test]
    fn pauses_double_up_to_their_longest_and_are_forgotten_after_a_while() {
        let mut now = Instant::now();
        let mut pauses = Pauses::default();
        let mut lengths = Vec::new();
        for _ in 0..8 {
            let (_, length) = pauses.begin(job(), Wait::Retry, now);
            lengths.push(length.as_secs());
            now += length;
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 60, 60]);
        pauses.forget(|_| true, now + LONGEST_RETRY);
        assert_eq!(pauses.begin(job(), Wait::Retry, now).1, LONGEST_RETRY);
        pauses.forget(|_| true, now + LONGEST_RETRY * 3);
        assert_eq!(pauses.begin(job(), Wait::Retry, now).1, FIRST_RETRY);
        pauses.forget(|_| false, now);
        assert_eq!(pauses.next_end(now), None);
    }
}
