//! The rules of one node's ranks as a state machine without processes or clock: when to end whom,
//! and what the end of all of them means. [`crate::run`] carries out the effects.
//!
//! - A requested stop is passed on, then waited for: nothing is killed here, the kubelet does that
//!   when the grace is over.
//! - Once nothing of the pod may run on, because others do its work, all end: SIGTERM at once,
//!   SIGKILL after the exit time. What they would save now is not wanted.
//! - A rank that fails without a stop ends the others alike.
//! - Once the ranks are to end, one whose first process ended but left its program running (a shell
//!   script that started python) gets SIGTERM for all of it, and is over only when nothing is left.

use std::fmt;
use std::time::Duration;

const SIGTERM: i32 = 15;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Code(i32),
    Signal(i32),
}

impl Ending {
    /// The exit code a shell would report.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    fn is_from_sigterm(self) -> bool {
        self.code() == 128 + SIGTERM
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The pod is being deleted, or somebody asked the launcher to leave.
    Stop,
    /// Nothing of this pod may run on.
    Void,
    /// A rank's first process ended; `left_behind` says whether its process group lives on.
    Ended {
        rank: usize,
        ending: Ending,
        left_behind: bool,
    },
    /// Nothing of a rank's process group is left.
    GroupGone { rank: usize },
    /// Time went by.
    Tick,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Create the file that announces the stop to the ranks.
    AnnounceStop,
    /// SIGTERM to a rank's first process. Its children get none: data loader workers that die of
    /// it would break the save.
    Terminate { rank: usize },
    /// SIGTERM to all of a rank's process group.
    TerminateGroup { rank: usize },
    /// SIGKILL to all of a rank's process group.
    KillGroup { rank: usize },
}

/// The first failure of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) ending: Ending,
}

/// How it all ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GangOutcome {
    Succeeded,
    /// A stop was requested; a rank may still have failed on the way out.
    Interrupted(Option<Failure>),
    Failed(Failure),
}

impl GangOutcome {
    /// The launcher's own exit code.
    pub(crate) fn exit_code(self) -> i32 {
        match self {
            Self::Succeeded => 0,
            Self::Interrupted(_) => 128 + SIGTERM,
            Self::Failed(failure) => failure.ending.code(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    Running,
    Leaving,
    Over,
}

/// The ranks of this node.
#[derive(Debug)]
pub(crate) struct Gang {
    ranks: Vec<Rank>,
    /// How long the other ranks have after one failed: to say where they were, not to save, which
    /// they cannot without it.
    exit: Duration,
    stopping: bool,
    failure: Option<Failure>,
    kill_at: Option<Duration>,
}

impl Gang {
    /// `ranks` processes, all running; `exit` is between SIGTERM and SIGKILL of those who must end.
    pub(crate) fn new(ranks: usize, exit: Duration) -> Self {
        Self {
            ranks: vec![Rank::Running; ranks],
            exit,
            stopping: false,
            failure: None,
            kill_at: None,
        }
    }

    /// Takes one input at `now`, counted from any fixed moment, and says what to do.
    pub(crate) fn step(&mut self, now: Duration, input: Input) -> Vec<Effect> {
        match input {
            Input::Stop => self.stop(),
            Input::Void => self.void(now),
            Input::Ended {
                rank,
                ending,
                left_behind,
            } => self.ended(now, rank, ending, left_behind),
            Input::GroupGone { rank } => {
                self.ranks[rank] = Rank::Over;
                Vec::new()
            }
            Input::Tick => self.tick(now),
        }
    }

    /// When the next tick matters.
    pub(crate) fn wake_at(&self) -> Option<Duration> {
        self.kill_at
    }

    /// Whether a stop was requested.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Whether the ranks are to end: a stop was requested, or one failed.
    pub(crate) fn is_ending(&self) -> bool {
        self.stopping || self.failure.is_some()
    }

    /// The ranks whose process groups are waited for.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = usize> {
        self.those(Rank::Leaving)
    }

    /// How it ended, once every rank is over.
    pub(crate) fn verdict(&self) -> Option<GangOutcome> {
        if self.ranks.iter().any(|&rank| rank != Rank::Over) {
            return None;
        }
        Some(match (self.stopping, self.failure) {
            (true, failure) => GangOutcome::Interrupted(failure),
            (false, Some(failure)) => GangOutcome::Failed(failure),
            (false, None) => GangOutcome::Succeeded,
        })
    }

    fn stop(&mut self) -> Vec<Effect> {
        // After a failure the ranks are being ended anyway, and the failure stays the outcome.
        if self.stopping || self.failure.is_some() {
            return Vec::new();
        }
        self.stopping = true;
        let terminate = self
            .those(Rank::Running)
            .map(|rank| Effect::Terminate { rank });
        [Effect::AnnounceStop]
            .into_iter()
            .chain(terminate)
            .collect()
    }

    fn void(&mut self, now: Duration) -> Vec<Effect> {
        if self.kill_at.is_some() {
            return Vec::new();
        }
        self.stopping = true;
        self.kill_at = Some(now + self.exit);
        let running = self.those(Rank::Running);
        running.map(|rank| Effect::Terminate { rank }).collect()
    }

    fn ended(
        &mut self,
        now: Duration,
        rank: usize,
        ending: Ending,
        left_behind: bool,
    ) -> Vec<Effect> {
        let expected = ending.is_success() || (self.stopping && ending.is_from_sigterm());
        let is_cause = !expected && self.failure.is_none();
        if is_cause {
            self.failure = Some(Failure { rank, ending });
        }
        let mut effects = Vec::new();
        if self.is_ending() && left_behind {
            self.ranks[rank] = Rank::Leaving;
            effects.push(Effect::TerminateGroup { rank });
        } else {
            self.ranks[rank] = Rank::Over;
        }
        if is_cause && !self.stopping {
            self.kill_at = Some(now + self.exit);
            let others = self.those(Rank::Running);
            effects.extend(others.map(|rank| Effect::Terminate { rank }));
        }
        effects
    }

    fn tick(&mut self, now: Duration) -> Vec<Effect> {
        if self.kill_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.kill_at = None;
        self.those(Rank::Running)
            .chain(self.those(Rank::Leaving))
            .map(|rank| Effect::KillGroup { rank })
            .collect()
    }

    fn those(&self, state: Rank) -> impl Iterator<Item = usize> {
        self.ranks
            .iter()
            .enumerate()
            .filter(move |&(_, &rank)| rank == state)
            .map(|(rank, _)| rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const EXIT: Duration = crate::limits::EXIT;

    fn ended(rank: usize, ending: Ending) -> Input {
        Input::Ended {
            rank,
            ending,
            left_behind: false,
        }
    }

    #[test]
    fn all_ranks_done_is_success() {
        let mut gang = Gang::new(2, EXIT);
        assert_eq!(gang.step(NOW, ended(1, Ending::Code(0))), []);
        assert_eq!(gang.verdict(), None);
        gang.step(NOW, ended(0, Ending::Code(0)));
        assert_eq!(gang.verdict(), Some(GangOutcome::Succeeded));
    }

    #[test]
    fn the_first_failure_ends_the_others_and_is_the_outcome() {
        let mut gang = Gang::new(3, EXIT);
        gang.step(NOW, ended(0, Ending::Code(0)));
        let effects = gang.step(NOW, ended(2, Ending::Signal(11)));
        assert_eq!(effects, [Effect::Terminate { rank: 1 }]);
        assert_eq!(gang.wake_at(), Some(NOW + EXIT));
        assert_eq!(gang.step(NOW + EXIT / 2, Input::Tick), []);
        assert_eq!(
            gang.step(NOW + EXIT, Input::Tick),
            [Effect::KillGroup { rank: 1 }]
        );
        gang.step(NOW + EXIT, ended(1, Ending::Signal(9)));
        let failure = Failure {
            rank: 2,
            ending: Ending::Signal(11),
        };
        assert_eq!(gang.verdict(), Some(GangOutcome::Failed(failure)));
        assert_eq!(GangOutcome::Failed(failure).exit_code(), 139);
    }

    #[test]
    fn the_others_have_as_long_as_the_job_says() {
        let exit = Duration::from_secs(30);
        for end in [ended(0, Ending::Code(1)), Input::Void] {
            let mut gang = Gang::new(2, exit);
            gang.step(NOW, end);
            assert_eq!(gang.wake_at(), Some(NOW + exit));
            let before = NOW + exit - Duration::from_millis(1);
            assert_eq!(gang.step(before, Input::Tick), []);
            assert!(!gang.step(NOW + exit, Input::Tick).is_empty());
        }
    }

    #[test]
    fn a_pod_ends_within_the_1_5_s_after_its_first_failed_rank_that_the_policy_counts_with() {
        let mut gang = Gang::new(2, EXIT);
        gang.step(NOW, ended(0, Ending::Code(1)));
        let killed_by = NOW + Duration::from_millis(1500) - crate::limits::DRAIN;
        assert_eq!(
            gang.step(killed_by, Input::Tick),
            [Effect::KillGroup { rank: 1 }]
        );
    }

    #[test]
    fn a_stop_is_passed_on_once_and_nobody_is_killed_for_it() {
        let mut gang = Gang::new(2, EXIT);
        let effects = gang.step(NOW, Input::Stop);
        let expected = [
            Effect::AnnounceStop,
            Effect::Terminate { rank: 0 },
            Effect::Terminate { rank: 1 },
        ];
        assert_eq!(effects, expected);
        assert_eq!(gang.step(NOW, Input::Stop), []);
        gang.step(NOW, ended(0, Ending::Code(1)));
        assert_eq!(gang.step(NOW + 100 * EXIT, Input::Tick), []);
        gang.step(NOW + 100 * EXIT, ended(1, Ending::Code(0)));
        let failure = Failure {
            rank: 0,
            ending: Ending::Code(1),
        };
        assert_eq!(
            gang.verdict(),
            Some(GangOutcome::Interrupted(Some(failure)))
        );
    }

    #[test]
    fn ranks_whose_work_others_do_end_within_a_second_and_save_nothing() {
        let mut gang = Gang::new(2, EXIT);
        gang.step(NOW, ended(0, Ending::Code(0)));
        let effects = gang.step(NOW, Input::Void);
        assert_eq!(effects, [Effect::Terminate { rank: 1 }]);
        assert_eq!(gang.step(NOW + EXIT / 2, Input::Void), []);
        assert_eq!(
            gang.step(NOW + EXIT, Input::Tick),
            [Effect::KillGroup { rank: 1 }]
        );
        gang.step(NOW + EXIT, ended(1, Ending::Signal(9)));
        assert!(matches!(gang.verdict(), Some(GangOutcome::Interrupted(_))));
    }

    #[test]
    fn a_program_left_behind_by_its_shell_gets_the_stop_and_is_waited_for() {
        let mut gang = Gang::new(1, EXIT);
        gang.step(NOW, Input::Stop);
        let shell_died = Input::Ended {
            rank: 0,
            ending: Ending::Signal(15),
            left_behind: true,
        };
        assert_eq!(
            gang.step(NOW, shell_died),
            [Effect::TerminateGroup { rank: 0 }]
        );
        assert_eq!(gang.verdict(), None);
        assert_eq!(gang.leaving().collect::<Vec<_>>(), [0]);
        gang.step(NOW, Input::GroupGone { rank: 0 });
        assert_eq!(gang.verdict(), Some(GangOutcome::Interrupted(None)));
    }

    #[test]
    fn a_shell_that_ends_well_does_not_cost_its_program_the_save() {
        let mut gang = Gang::new(1, EXIT);
        gang.step(NOW, Input::Stop);
        let shell_ended = Input::Ended {
            rank: 0,
            ending: Ending::Code(0),
            left_behind: true,
        };
        assert_eq!(
            gang.step(NOW, shell_ended),
            [Effect::TerminateGroup { rank: 0 }]
        );
        assert_eq!(gang.step(NOW + 100 * EXIT, Input::Tick), []);
        assert_eq!(gang.verdict(), None);
        gang.step(NOW, Input::GroupGone { rank: 0 });
        assert_eq!(gang.verdict(), Some(GangOutcome::Interrupted(None)));
    }

    #[test]
    fn after_a_failure_a_program_left_behind_by_its_shell_has_the_same_time() {
        let mut gang = Gang::new(2, EXIT);
        gang.step(NOW, ended(0, Ending::Code(3)));
        let shell_died = Input::Ended {
            rank: 1,
            ending: Ending::Signal(15),
            left_behind: true,
        };
        assert_eq!(
            gang.step(NOW, shell_died),
            [Effect::TerminateGroup { rank: 1 }]
        );
        assert_eq!(gang.verdict(), None);
        assert_eq!(
            gang.step(NOW + EXIT, Input::Tick),
            [Effect::KillGroup { rank: 1 }]
        );
        gang.step(NOW + EXIT, Input::GroupGone { rank: 1 });
        let failure = Failure {
            rank: 0,
            ending: Ending::Code(3),
        };
        assert_eq!(gang.verdict(), Some(GangOutcome::Failed(failure)));
    }

    #[test]
    fn background_processes_do_not_hold_back_a_rank_that_is_done() {
        let mut gang = Gang::new(1, EXIT);
        gang.step(
            NOW,
            Input::Ended {
                rank: 0,
                ending: Ending::Code(0),
                left_behind: true,
            },
        );
        assert_eq!(gang.verdict(), Some(GangOutcome::Succeeded));
    }

    #[test]
    fn a_stop_after_a_failure_does_not_hide_the_failure() {
        let mut gang = Gang::new(2, EXIT);
        gang.step(NOW, ended(0, Ending::Code(3)));
        assert_eq!(gang.step(NOW, Input::Stop), []);
        gang.step(NOW, ended(1, Ending::Signal(15)));
        let failure = Failure {
            rank: 0,
            ending: Ending::Code(3),
        };
        assert_eq!(gang.verdict(), Some(GangOutcome::Failed(failure)));
    }
}
