//! What the calls do, one after the other: keys and queues, sessions with the answer of their last call, and calls that
//! wait for what is not there yet. The same calls in the same order give the same on every node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::call::{
    ANSWER_LIMIT_BYTES, Answer, BYTES_LIMIT, Call, ClientId, Command, Failure, SESSION_LIMIT, Value,
};

/// What an entry costs beside its bytes.
const ENTRY_BYTES: u64 = 64;

/// What a call waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Key(String),
    Queue(String),
}

/// How the last call of a session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// It waits.
    Waits(Command, Place),
    /// It was answered, and is answered the same when it is said again.
    Kept(Answer),
    /// It was answered, and may be done again.
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) sequence: u64,
    pub(crate) last: Last,
}

/// An answer, and to which call of whom.
pub(crate) type Told = (ClientId, u64, Answer);

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has to be done, perhaps again.
    Undone,
    /// It waits.
    Waiting,
    /// It is answered.
    Answered(Answer),
    /// A later call of its session was done.
    Past,
}

/// The content of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pub(crate) keys: BTreeMap<String, Value>,
    /// None is empty.
    pub(crate) queues: BTreeMap<String, VecDeque<Value>>,
    pub(crate) sessions: BTreeMap<ClientId, Session>,
    /// Who waits for what, in the order in which they came; none is empty. Who waits for several keys is with the first
    /// that is missing.
    pub(crate) waiting: BTreeMap<Place, VecDeque<ClientId>>,
    /// What all that takes.
    pub(crate) bytes: u64,
}

/// What became of a command.
enum Outcome {
    Answered(Answer),
    Waits(Place),
}

impl Keys {
    /// How far a call is.
    pub fn progress(&self, client: ClientId, sequence: u64, command: &Command) -> Progress {
        let Some(session) = self.sessions.get(&client) else {
            return if *command == Command::Leave {
                Progress::Answered(Answer::Done)
            } else {
                Progress::Undone
            };
        };
        if session.sequence != sequence {
            return if sequence < session.sequence {
                Progress::Past
            } else {
                Progress::Undone
            };
        }
        match &session.last {
            Last::Waits(..) => Progress::Waiting,
            Last::Kept(answer) => Progress::Answered(answer.clone()),
            Last::Read => Progress::Undone,
        }
    }

    /// Does a call. Says who is answered what: its own session, and others that it ends the waiting of.
    pub(crate) fn apply(&mut self, call: &Call) -> Vec<Told> {
        let Call {
            client,
            sequence,
            command,
        } = call;
        match self.progress(*client, *sequence, command) {
            Progress::Past | Progress::Waiting => return Vec::new(),
            Progress::Answered(answer) => return vec![(*client, *sequence, answer)],
            Progress::Undone => {}
        }
        let before = self.end_last(*client);
        if *command == Command::Leave {
            return vec![(*client, *sequence, Answer::Done)];
        }
        if before.is_none() && self.sessions.len() >= SESSION_LIMIT {
            return vec![(*client, *sequence, Answer::Failed(Failure::Sessions))];
        }
        let mut arrived = BTreeSet::new();
        let outcome = match (command, before) {
            (
                Command::Cancel,
                Some(Session {
                    sequence: of,
                    last: Last::Kept(answer),
                }),
            ) if of.checked_add(1) == Some(*sequence) => Outcome::Answered(answer),
            (Command::Cancel, _) => Outcome::Answered(Answer::Nothing),
            _ => self.execute(command, &mut arrived),
        };
        let mut told = self.conclude((*client, *sequence), command, outcome);
        self.wake(arrived, &mut told);
        told
    }

    /// Forgets the sessions of all nodes but these.
    pub(crate) fn retain(&mut self, members: &[u32]) {
        let gone: Vec<ClientId> = self.sessions.keys().copied().collect();
        for client in gone {
            if members.binary_search(&client.node).is_err() {
                self.end_last(client);
            }
        }
    }

    /// Takes a session out, with what it waits for.
    fn end_last(&mut self, client: ClientId) -> Option<Session> {
        let session = self.sessions.remove(&client)?;
        self.bytes = self.bytes.saturating_sub(cost(&session.last));
        if let Last::Waits(_, place) = &session.last
            && let Some(queue) = self.waiting.get_mut(place)
        {
            queue.retain(|one| *one != client);
            if queue.is_empty() {
                self.waiting.remove(place);
            }
        }
        Some(session)
    }

    /// Notes what became of a call.
    fn conclude(
        &mut self,
        (client, sequence): (ClientId, u64),
        command: &Command,
        outcome: Outcome,
    ) -> Vec<Told> {
        // What waits lies here twice: by its session, and by what it waits for.
        let outcome = match (outcome, self.check_room(2 * command.bytes() as u64)) {
            (Outcome::Waits(_), Err(full)) => Outcome::Answered(Answer::Failed(full)),
            (outcome, _) => outcome,
        };
        let (last, told) = match outcome {
            Outcome::Answered(answer) => {
                let told = vec![(client, sequence, answer.clone())];
                let last = if command.is_read() {
                    Last::Read
                } else {
                    Last::Kept(answer)
                };
                (last, told)
            }
            Outcome::Waits(place) => {
                let queue = self.waiting.entry(place.clone()).or_default();
                queue.push_back(client);
                (Last::Waits(command.clone(), place), Vec::new())
            }
        };
        self.bytes += cost(&last);
        self.sessions.insert(client, Session { sequence, last });
        told
    }

    /// Those who waited for what has come try again, in their order.
    fn wake(&mut self, arrived: BTreeSet<Place>, told: &mut Vec<Told>) {
        for place in arrived {
            for client in self.waiting.remove(&place).into_iter().flatten() {
                let Some(Session { sequence, last }) = self.end_last(client) else {
                    continue;
                };
                let Last::Waits(command, _) = last else {
                    continue;
                };
                // It reads or takes, so nothing arrives by it.
                let outcome = self.execute(&command, &mut BTreeSet::new());
                told.extend(self.conclude((client, sequence), &command, outcome));
            }
        }
    }

    fn execute(&mut self, command: &Command, arrived: &mut BTreeSet<Place>) -> Outcome {
        let answered = match command {
            Command::Get(keys) => return self.get(keys),
            Command::Wait(keys) => match self.missing(keys) {
                Some(key) => return Outcome::Waits(Place::Key(key.clone())),
                None => Ok(Answer::Done),
            },
            Command::Pop(key) => match self.pop(key) {
                Some(value) => Ok(Answer::Values(vec![value])),
                None => return Outcome::Waits(Place::Queue(key.clone())),
            },
            Command::TryPop(key) => {
                let taken = self.pop(key);
                Ok(taken.map_or(Answer::Nothing, |value| Answer::Values(vec![value])))
            }
            Command::Check(keys) => Ok(Answer::Is(self.missing(keys).is_none())),
            Command::Count => Ok(Answer::Number(self.keys.len() as i64)),
            Command::Length(key) => {
                let length = self.queues.get(key).map_or(0, VecDeque::len);
                Ok(Answer::Number(length as i64))
            }
            Command::Set(pairs) => self.set(pairs, arrived).map(|()| Answer::Done),
            Command::Add(key, amount) => self.add(key, *amount, arrived),
            Command::CompareSet {
                key,
                expected,
                desired,
            } => self.compare_set(key, (expected, desired), arrived),
            Command::Append(key, value) => {
                let content: Value = match self.keys.get(key) {
                    Some(content) => [content, value.as_ref()].concat().into(),
                    None => value.clone(),
                };
                let set = self.set(&[(key.clone(), content)], arrived);
                set.map(|()| Answer::Done)
            }
            Command::Delete(key) => {
                let was = self.keys.remove(key);
                let freed = was.as_ref().map_or(0, |value| entry(key, value));
                self.bytes = self.bytes.saturating_sub(freed);
                Ok(Answer::Is(was.is_some()))
            }
            Command::Push(key, value) => self.push(key, value, arrived),
            Command::Cancel | Command::Leave => Ok(Answer::Done), // Of the session, not of the keys.
        };
        Outcome::Answered(answered.unwrap_or_else(Answer::Failed))
    }

    fn missing<'a>(&self, keys: &'a [String]) -> Option<&'a String> {
        keys.iter().find(|key| !self.keys.contains_key(*key))
    }

    fn get(&self, keys: &[String]) -> Outcome {
        if let Some(missing) = self.missing(keys) {
            return Outcome::Waits(Place::Key(missing.clone()));
        }
        let values = keys.iter().filter_map(|key| self.keys.get(key).cloned());
        let answer = Answer::Values(values.collect());
        let wanted = answer.bytes() as u64;
        Outcome::Answered(if wanted > ANSWER_LIMIT_BYTES as u64 {
            Answer::Failed(Failure::TooLarge { wanted })
        } else {
            answer
        })
    }

    fn pop(&mut self, key: &str) -> Option<Value> {
        let queue = self.queues.get_mut(key)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        let freed = first.as_ref().map_or(0, |value| entry(key, value));
        self.bytes = self.bytes.saturating_sub(freed);
        first
    }

    fn push(
        &mut self,
        key: &str,
        value: &Value,
        arrived: &mut BTreeSet<Place>,
    ) -> Result<Answer, Failure> {
        self.grow(entry(key, value))?;
        let queue = self.queues.entry(key.to_owned()).or_default();
        queue.push_back(value.clone());
        arrived.insert(Place::Queue(key.to_owned()));
        Ok(Answer::Done)
    }

    /// All or none of them. A key that comes twice has the last content.
    fn set(
        &mut self,
        pairs: &[(String, Value)],
        arrived: &mut BTreeSet<Place>,
    ) -> Result<(), Failure> {
        let new: BTreeMap<&String, &Value> =
            pairs.iter().map(|(key, value)| (key, value)).collect();
        let freed = new
            .keys()
            .filter_map(|key| Some(entry(key, self.keys.get(*key)?)));
        let freed: u64 = freed.sum();
        let needed: u64 = new.iter().map(|(key, value)| entry(key, value)).sum();
        if needed > freed {
            self.grow(needed - freed)?;
        } else {
            self.bytes = self.bytes.saturating_sub(freed - needed);
        }
        for (key, value) in new {
            self.keys.insert(key.clone(), value.clone());
            arrived.insert(Place::Key(key.clone()));
        }
        Ok(())
    }

    fn add(
        &mut self,
        key: &str,
        amount: i64,
        arrived: &mut BTreeSet<Place>,
    ) -> Result<Answer, Failure> {
        let number = match self.keys.get(key) {
            None => Some(0),
            Some(content) => std::str::from_utf8(content)
                .ok()
                .and_then(|text| text.parse().ok()),
        };
        let sum = number.and_then(|number: i64| number.checked_add(amount));
        let sum = sum.ok_or_else(|| Failure::NoNumber {
            key: key.to_owned(),
        })?;
        let content = sum.to_string().into_bytes().into();
        self.set(&[(key.to_owned(), content)], arrived)?;
        Ok(Answer::Number(sum))
    }

    fn compare_set(
        &mut self,
        key: &str,
        (expected, desired): (&Value, &Value),
        arrived: &mut BTreeSet<Place>,
    ) -> Result<Answer, Failure> {
        let content = self.keys.get(key);
        let matches = content.map_or(expected.is_empty(), |content| content == expected);
        // The answer is kept too.
        self.check_room(content.map_or(0, |content| content.len() as u64))?;
        let content = if matches {
            self.set(&[(key.to_owned(), desired.clone())], arrived)?;
            desired
        } else {
            content.unwrap_or(expected)
        };
        Ok(Answer::Values(vec![content.clone()]))
    }

    fn check_room(&self, more: u64) -> Result<(), Failure> {
        let wanted = self.bytes.saturating_add(more);
        if wanted > BYTES_LIMIT as u64 {
            return Err(Failure::Full { wanted });
        }
        Ok(())
    }

    fn grow(&mut self, by: u64) -> Result<(), Failure> {
        self.check_room(by)?;
        self.bytes += by;
        Ok(())
    }
}

/// What a key or an element of a queue takes.
fn entry(key: &str, value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ENTRY_BYTES
}

/// What a session takes.
fn cost(last: &Last) -> u64 {
    let bytes = match last {
        Last::Waits(command, _) => 2 * command.bytes(),
        Last::Kept(answer) => answer.bytes(),
        Last::Read => 0,
    };
    bytes as u64 + ENTRY_BYTES
}

#[cfg(test)]
mod tests;
