//! Judges a history of calls on a shared object: is there one order of them, in which each takes effect at a moment
//! between its begin and its end, that explains every answer? Calls on different keys are judged apart, which is the
//! same for objects that do not touch each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// Most calls on one key: they are the bits of a word.
pub const MOST_CALLS: usize = 64;

/// What an object does, one call after the other.
pub trait Sequential {
    /// Its state; the default is the first.
    type State: Clone + Default + Ord;
    /// What is asked of it.
    type Call: Debug;
    /// What it says.
    type Answer: Debug;
    /// The state after a call, if the object may give this answer then. Of a call without an answer nobody knows what
    /// it would have said.
    fn step(
        state: &Self::State,
        call: &Self::Call,
        answer: Option<&Self::Answer>,
    ) -> Option<Self::State>;
}

/// A call that somebody made.
#[derive(Clone, Debug)]
pub struct Invocation<S: Sequential> {
    /// What it is about.
    pub key: u64,
    /// What was asked.
    pub call: S::Call,
    /// When it began, on any scale.
    pub begin: u64,
    /// When it was answered, and how. None: never; it may have taken effect, at any time since, or not.
    pub end: Option<(u64, S::Answer)>,
}

/// No order explains the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexplained {
    /// The key.
    pub key: u64,
    /// Its calls and answers in the order in which they began, a line each; those that some order explains are marked.
    pub calls: String,
}

/// Judges a history. Panics if a key has more than [`MOST_CALLS`].
pub fn linearize<S: Sequential>(events: &[Invocation<S>]) -> Result<(), Unexplained> {
    let mut by_key: BTreeMap<u64, Vec<&Invocation<S>>> = BTreeMap::new();
    for event in events {
        by_key.entry(event.key).or_default().push(event);
    }
    for (key, mut events) in by_key {
        assert!(
            events.len() <= MOST_CALLS,
            "{} calls on key {key}",
            events.len()
        );
        events.sort_by_key(|event| event.begin);
        let mut search = Search {
            events: &events,
            seen: BTreeSet::new(),
            best: 0,
        };
        if !search.explains(0, &S::State::default()) {
            let calls = search.show();
            return Err(Unexplained { key, calls });
        }
    }
    Ok(())
}

/// The search for an order, by Wing and Gong, that comes to no state twice, as Lowe's does.
struct Search<'a, S: Sequential> {
    events: &'a [&'a Invocation<S>],
    /// Which calls were done, and the state then.
    seen: BTreeSet<(u64, S::State)>,
    /// The most answered calls that were done.
    best: u64,
}

impl<S: Sequential> Search<'_, S> {
    fn explains(&mut self, done: u64, state: &S::State) -> bool {
        let open = |done: u64, at: usize| done & 1 << at == 0;
        let answered = self
            .events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.end.is_some());
        let left = answered.filter(|(at, _)| open(done, *at));
        let ends = left.filter_map(|(_, event)| event.end.as_ref().map(|(end, _)| *end));
        // Nothing that began after the end of a call that is left can be before it.
        let Some(until) = ends.min() else {
            return true;
        };
        if done.count_ones() > self.best.count_ones() {
            self.best = done;
        }
        for (at, event) in self.events.iter().enumerate() {
            if event.begin > until {
                break;
            }
            if !open(done, at) {
                continue;
            }
            let answer = event.end.as_ref().map(|(_, answer)| answer);
            let Some(next) = S::step(state, &event.call, answer) else {
                continue;
            };
            let done = done | 1 << at;
            if self.seen.insert((done, next.clone())) && self.explains(done, &next) {
                return true;
            }
        }
        false
    }

    fn show(&self) -> String {
        let line = |(at, event): (usize, &&Invocation<S>)| {
            let mark = if self.best & 1 << at == 0 { " " } else { "*" };
            let end = match &event.end {
                Some((end, answer)) => format!("{end}: {answer:?}"),
                None => "no answer".to_owned(),
            };
            format!("{mark} {} {:?} -> {end}\n", event.begin, event.call)
        };
        self.events.iter().enumerate().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, for_each_seed};

    /// A number that is written and read.
    #[derive(Clone, Debug)]
    struct Register;

    #[derive(Clone, Debug)]
    enum Ask {
        Write(u8),
        Read,
    }

    impl Sequential for Register {
        type State = u8;
        type Call = Ask;
        type Answer = u8;

        fn step(state: &u8, call: &Ask, answer: Option<&u8>) -> Option<u8> {
            let (next, says) = match call {
                Ask::Write(value) => (*value, *value),
                Ask::Read => (*state, *state),
            };
            answer.is_none_or(|answer| *answer == says).then_some(next)
        }
    }

    fn write(value: u8, begin: u64, end: Option<u64>) -> Invocation<Register> {
        Invocation {
            key: 1,
            call: Ask::Write(value),
            begin,
            end: end.map(|end| (end, value)),
        }
    }

    fn read(value: u8, begin: u64, end: u64) -> Invocation<Register> {
        Invocation {
            key: 1,
            call: Ask::Read,
            begin,
            end: Some((end, value)),
        }
    }

    #[test]
    fn a_read_may_see_a_write_while_it_lasts_but_not_go_back() {
        let during = |first, second| {
            [
                write(7, 10, Some(20)),
                read(first, 11, 12),
                read(second, 13, 14),
            ]
        };
        for (first, second) in [(0, 0), (0, 7), (7, 7)] {
            assert_eq!(linearize(&during(first, second)), Ok(()));
        }
        // What some replicas of a chain would answer that forget the rule for dirty versions.
        let back = linearize(&during(7, 0)).unwrap_err();
        assert_eq!(
            back.calls,
            "* 10 Write(7) -> 20: 7\n* 11 Read -> 12: 7\n  13 Read -> 14: 0\n"
        );
        let stale = [write(7, 10, Some(20)), read(0, 21, 22)];
        assert!(linearize(&stale).is_err());
    }

    #[test]
    fn a_call_without_an_answer_may_have_taken_effect_at_any_time_since_or_not() {
        let write = || write(7, 10, None);
        assert_eq!(linearize(&[write(), read(0, 100, 101)]), Ok(()));
        assert_eq!(
            linearize(&[write(), read(0, 100, 101), read(7, 200, 201)]),
            Ok(())
        );
        assert!(linearize(&[write(), read(7, 5, 6)]).is_err());
        assert!(linearize(&[write(), read(7, 100, 101), read(0, 200, 201)]).is_err());
    }

    #[test]
    fn keys_are_judged_apart() {
        let of = |key, event: Invocation<Register>| Invocation { key, ..event };
        let one = [of(1, write(7, 1, Some(2))), of(2, read(0, 3, 4))];
        assert_eq!(linearize(&one), Ok(()));
        let two = [
            of(1, write(7, 1, Some(2))),
            of(1, read(7, 3, 4)),
            of(2, read(7, 5, 6)),
        ];
        assert_eq!(linearize(&two).unwrap_err().key, 2);
    }

    /// Clients of one register, whose calls take effect at a random moment within them.
    fn history(rng: &mut Rng) -> Vec<Invocation<Register>> {
        let mut calls: Vec<(u64, Invocation<Register>)> = Vec::new();
        for _ in 0..4 {
            let mut now = rng.range(0..10);
            for _ in 0..12 {
                let (begin, effect) = (now, now + rng.range(0..20));
                let end = effect + rng.range(0..20);
                now = end + 1 + rng.range(0..5);
                let event = match rng.chance(1, 2) {
                    true => write(rng.range(1..200) as u8, begin, Some(end)),
                    false => read(0, begin, end),
                };
                calls.push((effect, event));
            }
        }
        calls.sort_by_key(|(effect, _)| *effect);
        let mut value = 0;
        for (_, event) in &mut calls {
            match event.call {
                Ask::Write(written) => value = written,
                Ask::Read => event.end = event.end.map(|(end, _)| (end, value)),
            }
        }
        calls.into_iter().map(|(_, event)| event).collect()
    }

    #[test]
    fn histories_of_a_real_register_are_explained_and_foreign_answers_are_not() {
        for_each_seed(100, |rng| {
            let mut events = history(rng);
            rng.shuffle(&mut events);
            assert_eq!(linearize(&events), Ok(()));
            // Nobody writes this.
            events.push(read(255, 50, 51));
            assert!(linearize(&events).is_err());
        });
    }
}
