//! What clients called and were told, and whether one store that does one call after the other could have told them that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use store::{Answer, Command};

/// A call as its client saw it.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) command: Command,
    pub(crate) called: Duration,
    /// When and what it was told; a call that was never answered may have been done or not.
    pub(crate) told: Option<(Duration, Answer)>,
}

/// A store of a few lines: keys, and queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Model {
    keys: BTreeMap<String, Vec<u8>>,
    queues: BTreeMap<String, VecDeque<Vec<u8>>>,
}

impl Model {
    /// Does a command. None if it would wait.
    fn execute(&mut self, command: &Command) -> Option<Answer> {
        let value = |bytes: &[u8]| Answer::Values(vec![bytes.into()]);
        let has = |keys: &[String]| keys.iter().all(|key| self.keys.contains_key(key));
        Some(match command {
            Command::Set(pairs) => {
                for (key, content) in pairs {
                    self.keys.insert(key.clone(), content.to_vec());
                }
                Answer::Done
            }
            Command::Get(keys) => {
                let values: Option<Vec<_>> = keys.iter().map(|key| self.keys.get(key)).collect();
                let values = values?.into_iter().map(|bytes| bytes.as_slice().into());
                Answer::Values(values.collect())
            }
            Command::Wait(keys) => has(keys).then_some(Answer::Done)?,
            Command::Check(keys) => Answer::Is(has(keys)),
            Command::Add(key, amount) => {
                let content = self
                    .keys
                    .entry(key.clone())
                    .or_insert_with(|| b"0".to_vec());
                let number: i64 = String::from_utf8(content.clone()).unwrap().parse().unwrap();
                *content = (number + amount).to_string().into_bytes();
                Answer::Number(number + amount)
            }
            Command::CompareSet {
                key,
                expected,
                desired,
            } => match self.keys.get_mut(key) {
                Some(content) => {
                    if content[..] == expected[..] {
                        *content = desired.to_vec();
                    }
                    value(content)
                }
                None if expected.is_empty() => {
                    self.keys.insert(key.clone(), desired.to_vec());
                    value(desired)
                }
                None => value(expected),
            },
            Command::Append(key, content) => {
                self.keys
                    .entry(key.clone())
                    .or_default()
                    .extend_from_slice(content);
                Answer::Done
            }
            Command::Delete(key) => Answer::Is(self.keys.remove(key).is_some()),
            Command::Count => Answer::Number(self.keys.len() as i64),
            Command::Push(key, content) => {
                self.queues
                    .entry(key.clone())
                    .or_default()
                    .push_back(content.to_vec());
                Answer::Done
            }
            Command::Pop(key) => value(&self.queues.get_mut(key)?.pop_front()?),
            Command::TryPop(key) => {
                let first = self.queues.get_mut(key).and_then(VecDeque::pop_front);
                first.map_or(Answer::Nothing, |first| value(&first))
            }
            Command::Length(key) => {
                Answer::Number(self.queues.get(key).map_or(0, VecDeque::len) as i64)
            }
            Command::Cancel | Command::Leave => panic!("no call of a client"),
        })
    }
}

/// Whether there is an order of the calls, each between its beginning and its end, in which a store says just this.
pub(crate) fn check(events: &[Event]) {
    assert!(events.len() <= 64, "more than a word has bits");
    let needed: u64 = (0..events.len())
        .filter(|at| events[*at].told.is_some())
        .map(|at| 1 << at)
        .sum();
    let mut seen = BTreeSet::new();
    let mut open = vec![(0u64, Model::default())];
    while let Some((done, model)) = open.pop() {
        if done & needed == needed {
            return;
        }
        if !seen.insert((done, model.clone())) {
            continue;
        }
        let left = || (0..events.len()).filter(|at| done & (1 << at) == 0);
        // Nothing comes after what ended before it began.
        let first_end = left()
            .filter_map(|at| events[at].told.as_ref().map(|told| told.0))
            .min();
        for at in left() {
            let Event {
                command,
                called,
                told,
            } = &events[at];
            if first_end.is_some_and(|end| *called > end) {
                continue;
            }
            let mut next = model.clone();
            let Some(answer) = next.execute(command) else {
                continue;
            };
            if told.as_ref().is_none_or(|(_, told)| *told == answer) {
                open.push((done | (1 << at), next));
            }
        }
    }
    panic!("no store tells that: {events:#?}");
}

#[test]
fn what_no_store_tells_is_found() {
    let at = Duration::from_secs;
    let event = |command, (called, ended), answer| Event {
        command,
        called: at(called),
        told: Some((at(ended), answer)),
    };
    let add = || Command::Add("n".into(), 1);
    check(&[
        event(add(), (0, 2), Answer::Number(2)),
        event(add(), (1, 3), Answer::Number(1)),
    ]);
    let lies = [
        // Done twice.
        vec![event(add(), (0, 1), Answer::Number(2))],
        // Out of order.
        vec![
            event(add(), (0, 1), Answer::Number(2)),
            event(add(), (2, 3), Answer::Number(1)),
        ],
        // Forgotten.
        vec![
            event(
                Command::Push("q".into(), b"x".as_slice().into()),
                (0, 1),
                Answer::Done,
            ),
            event(Command::TryPop("q".into()), (2, 3), Answer::Nothing),
        ],
    ];
    for lie in lies {
        std::panic::catch_unwind(|| check(&lie)).unwrap_err();
    }
}
