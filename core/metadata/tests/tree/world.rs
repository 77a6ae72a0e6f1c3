//! Everything that is shared: the store, the judge, the bytes, and what goes wrong when somebody commits.

use std::collections::BTreeMap;
use std::rc::Rc;

use metadata::{
    Changes, Collected, Given, InodeNumber, MetaAnswer, MetaOperation, MetaRequest, MountId,
    NextStep, OperationId, collect, collected, step,
};
use sim::Rng;

use crate::oracle::Oracle;
use crate::physical::Physical;
use crate::store::{Snapshot, Store};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A conflict, with somebody or for no reason.
    Conflict,
    /// A commit is done, and nobody knows.
    UnknownDone,
    /// It is not done, and nobody knows.
    UnknownLost,
    /// It is done later, and nobody knows.
    UnknownLate,
    /// Whoever does it is gone.
    Death,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] = [
        Self::Conflict,
        Self::UnknownDone,
        Self::UnknownLost,
        Self::UnknownLate,
        Self::Death,
    ];
}

/// In what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Make,
    Remove,
    Rename,
    Link,
    Change,
    Open,
    Write,
    Trim,
    End,
    Collect,
}

impl Phase {
    pub(crate) const ALL: [Self; 10] = [
        Self::Make,
        Self::Remove,
        Self::Rename,
        Self::Link,
        Self::Change,
        Self::Open,
        Self::Write,
        Self::Trim,
        Self::End,
        Self::Collect,
    ];

    fn of(operation: &MetaOperation) -> Self {
        match operation {
            MetaOperation::Make { .. } => Self::Make,
            MetaOperation::Unlink { .. } | MetaOperation::RemoveDirectory { .. } => Self::Remove,
            MetaOperation::Rename { .. } => Self::Rename,
            MetaOperation::Link { .. } => Self::Link,
            MetaOperation::SetAttributes { .. } => Self::Change,
            MetaOperation::Open { .. } => Self::Open,
            MetaOperation::Extend { .. }
            | MetaOperation::Sync { .. }
            | MetaOperation::Close { .. } => Self::Write,
            MetaOperation::Trimmed { .. } | MetaOperation::TakeTrim { .. } => Self::Trim,
            _ => Self::End,
        }
    }
}

/// An operation on its way.
pub(crate) struct Attempt {
    pub(crate) request: MetaRequest,
    mount: MountId,
    /// It was answered, and comes once more.
    is_old: bool,
    begun: Option<Begun>,
}

struct Begun {
    snapshot: Snapshot,
    given: Given,
    /// As they were then.
    oracle: Rc<Oracle>,
    kept: Option<MetaAnswer>,
}

impl Attempt {
    pub(crate) fn new(mount: MountId, request: MetaRequest) -> Self {
        Self {
            request,
            mount,
            is_old: false,
            begun: None,
        }
    }

    pub(crate) fn old(mount: MountId, request: MetaRequest) -> Self {
        Self {
            is_old: true,
            ..Self::new(mount, request)
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::of(&self.request.operation)
    }
}

/// A commit that comes later, or not.
struct Late {
    snapshot: Snapshot,
    changes: Changes,
    done: Effect,
}

/// What a commit does, for the judge.
enum Effect {
    Operation(Box<Operation>),
    Collection,
}

struct Operation {
    mount: MountId,
    request: MetaRequest,
    given: Given,
    answer: MetaAnswer,
}

/// Mounts of services have numbers from here on.
const FIRST_SERVICE: u64 = 1 << 32;

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) oracle: Rc<Oracle>,
    pub(crate) physical: Physical,
    pub(crate) met: BTreeMap<(Fault, Phase), u64>,
    /// Nothing goes wrong any more.
    pub(crate) is_calm: bool,
    store: Store,
    late: Vec<Late>,
    kept: BTreeMap<OperationId, MetaAnswer>,
    now_ns: i64,
    fresh: u64,
    services: u64,
}

/// What became of a commit.
enum Outcome {
    Done,
    Again,
}

impl World {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self {
            rng: rng.fork(),
            oracle: Rc::default(),
            physical: Physical::default(),
            met: BTreeMap::new(),
            is_calm: false,
            store: Store::default(),
            late: Vec::new(),
            kept: BTreeMap::new(),
            now_ns: 1000,
            fresh: 1 << 16,
            services: 0,
        }
    }

    pub(crate) fn now_ns(&mut self) -> i64 {
        self.now_ns += 1;
        self.now_ns
    }

    fn given(&mut self) -> Given {
        self.fresh += 1;
        Given {
            now_ns: self.now_ns(),
            fresh: InodeNumber(self.fresh),
        }
    }

    /// The mount of a service that starts.
    pub(crate) fn new_service(&mut self) -> MountId {
        self.services += 1;
        MountId(FIRST_SERVICE + self.services)
    }

    /// Whether its answer was kept.
    pub(crate) fn is_kept(&self, request: &MetaRequest) -> bool {
        request.id.is_some_and(|id| self.kept.contains_key(&id))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn meet(&mut self, fault: Fault, phase: Phase) {
        *self.met.entry((fault, phase)).or_default() += 1;
    }

    /// Goes one round on with an operation; its answer at the end.
    pub(crate) fn advance(&mut self, attempt: &mut Attempt) -> Option<MetaAnswer> {
        self.let_late_ones_come();
        let Some(mut begun) = attempt.begun.take() else {
            attempt.begun = Some(Begun {
                snapshot: self.store.snapshot(),
                given: self.given(),
                oracle: Rc::clone(&self.oracle),
                kept: attempt
                    .request
                    .id
                    .and_then(|id| self.kept.get(&id).cloned()),
            });
            return None;
        };
        match step(&attempt.request, &begun.given, &begun.snapshot.seen) {
            NextStep::Read(reads) => {
                begun.snapshot.read(reads);
                attempt.begun = Some(begun);
                None
            }
            NextStep::Answer(answer) => {
                self.judge(attempt, begun, &answer);
                Some(answer)
            }
            NextStep::Commit(changes, answer) => {
                let done = Effect::Operation(Box::new(Operation {
                    mount: attempt.mount,
                    request: attempt.request.clone(),
                    given: begun.given,
                    answer: answer.clone(),
                }));
                match self.commit(begun.snapshot, changes, done, attempt.phase()) {
                    Outcome::Done => Some(answer),
                    Outcome::Again => None,
                }
            }
        }
    }

    /// One without a commit is judged as of its snapshot.
    fn judge(&self, attempt: &Attempt, begun: Begun, answer: &MetaAnswer) {
        let operation = &attempt.request.operation;
        if attempt.is_old && *answer == Err(metadata::Errno::Ended) {
            return;
        }
        let expected = match begun.kept {
            Some(kept) => kept,
            None if operation.needs_id() && begun.oracle.has_ended(attempt.mount) => {
                Err(metadata::Errno::Ended)
            }
            None if matches!(
                operation,
                MetaOperation::ListHandles { .. } | MetaOperation::EndMount { .. }
            ) =>
            {
                return;
            }
            None => Oracle::clone(&begun.oracle).apply(attempt.mount, operation, &begun.given),
        };
        assert_eq!(answer, &expected, "META-1: {operation:?}");
    }

    fn commit(
        &mut self,
        snapshot: Snapshot,
        changes: Changes,
        done: Effect,
        phase: Phase,
    ) -> Outcome {
        let dice = match self.is_calm {
            true => 100,
            false => self.rng.below(40),
        };
        match dice {
            0 => {
                self.meet(Fault::Conflict, phase);
                return Outcome::Again;
            }
            1 => {
                self.meet(Fault::UnknownLost, phase);
                return Outcome::Again;
            }
            2 => {
                self.meet(Fault::UnknownLate, phase);
                self.late.push(Late {
                    snapshot,
                    changes,
                    done,
                });
                return Outcome::Again;
            }
            _ => {}
        }
        if !self.store.commit(&snapshot, &changes) {
            self.meet(Fault::Conflict, phase);
            return Outcome::Again;
        }
        self.take_effect(done);
        if dice == 3 {
            self.meet(Fault::UnknownDone, phase);
            return Outcome::Again;
        }
        Outcome::Done
    }

    fn take_effect(&mut self, done: Effect) {
        let Effect::Operation(operation) = done else {
            return;
        };
        let Operation {
            mount,
            request,
            given,
            answer,
        } = *operation;
        let is_once = request.operation.needs_id();
        let ended = self.oracle.has_ended(mount);
        assert!(!(is_once && ended), "META-8: {request:?} of an ended mount");
        if let Some(id) = request.id {
            let before = self.kept.insert(id, answer.clone());
            assert_eq!(before, None, "META-3: {request:?} is done again");
        }
        let oracle = Rc::make_mut(&mut self.oracle);
        let expected = oracle.apply(mount, &request.operation, &given);
        if !matches!(request.operation, MetaOperation::EndMount { .. }) {
            assert_eq!(answer, expected, "META-1: {request:?}");
        }
    }

    fn let_late_ones_come(&mut self) {
        if self.late.is_empty() || !self.rng.chance(1, 8) {
            return;
        }
        let at = self.rng.below(self.late.len());
        let late = self.late.swap_remove(at);
        if self.store.commit(&late.snapshot, &late.changes) {
            self.take_effect(late.done);
        }
    }

    /// A round of the collection of an inode: a step, or that its chunks are removed.
    pub(crate) fn collect(&mut self, inode: InodeNumber, are_removed: bool) -> Option<Collected> {
        let given = self.given();
        let mut snapshot = self.store.snapshot();
        let next = match are_removed {
            true => {
                let next =
                    crate::fixture::run(&mut snapshot, |seen| collected(inode, &given, seen));
                match next {
                    NextStep::Commit(changes, _) => NextStep::Commit(changes, Ok(Collected::All)),
                    _ => NextStep::Answer(Ok(Collected::All)),
                }
            }
            false => crate::fixture::run(&mut snapshot, |seen| collect(inode, &given, seen)),
        };
        match next {
            NextStep::Commit(changes, answer) => {
                match self.commit(snapshot, changes, Effect::Collection, Phase::Collect) {
                    Outcome::Done => answer.ok(),
                    Outcome::Again => None,
                }
            }
            NextStep::Answer(answer) => Some(answer.unwrap()),
            NextStep::Read(_) => None,
        }
    }

    pub(crate) fn garbage(&self) -> Vec<InodeNumber> {
        let mut snapshot = self.store.snapshot();
        let next = crate::fixture::run(&mut snapshot, |seen| metadata::garbage(None, 64, seen));
        match next {
            NextStep::Answer(Ok(found)) => found,
            other => panic!("{other:?}"),
        }
    }
}
