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
            return match command {
                Command::Leave => Progress::Answered(Answer::Done),
                _ => Progress::Undone,
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
        let room = match command {
            Command::Cancel | Command::Leave | Command::Delete(_) | Command::Count => Ok(()),
            // Of what waits or is kept there may be two.
            _ => self.check_room(2 * command.bytes() as u64),
        };
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
            _ => match room {
                Ok(()) => self.execute(command, &mut arrived),
                Err(full) => Outcome::Answered(Answer::Failed(full)),
            },
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
                Answer::Nothing => return Outcome::Waits(Place::Queue(key.clone())),
                value => Ok(value),
            },
            Command::TryPop(key) => Ok(self.pop(key)),
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

    fn pop(&mut self, key: &str) -> Answer {
        let Some(queue) = self.queues.get_mut(key) else {
            return Answer::Nothing;
        };
        let first = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        match first {
            Some(value) => {
                self.bytes = self.bytes.saturating_sub(entry(key, &value));
                Answer::Values(vec![value])
            }
            None => Answer::Nothing,
        }
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
mod tests {
    use super::*;

    const ONE: ClientId = ClientId { node: 0, number: 1 };
    const TWO: ClientId = ClientId { node: 1, number: 1 };
    const THREE: ClientId = ClientId { node: 2, number: 1 };

    fn value(text: &str) -> Value {
        text.as_bytes().into()
    }

    fn set(key: &str, content: &str) -> Command {
        Command::Set(vec![(key.to_owned(), value(content))])
    }

    fn values(text: &str) -> Answer {
        Answer::Values(vec![value(text)])
    }

    /// Calls in their order, numbered for each client, and all that is told meanwhile.
    #[derive(Default)]
    struct Clients {
        keys: Keys,
        sequences: BTreeMap<ClientId, u64>,
    }

    impl Clients {
        fn call(&mut self, client: ClientId, command: Command) -> Vec<(ClientId, Answer)> {
            let sequence = self.sequences.entry(client).or_default();
            *sequence += 1;
            self.say(client, *self.sequences.get(&client).unwrap(), command)
        }

        fn say(
            &mut self,
            client: ClientId,
            sequence: u64,
            command: Command,
        ) -> Vec<(ClientId, Answer)> {
            let call = Call {
                client,
                sequence,
                command,
            };
            let told = self.keys.apply(&call);
            told.into_iter()
                .map(|(client, _, answer)| (client, answer))
                .collect()
        }

        fn answer(&mut self, command: Command) -> Answer {
            match &self.call(ONE, command)[..] {
                [(ONE, answer)] => answer.clone(),
                told => panic!("told {told:?}"),
            }
        }
    }

    #[test]
    fn commands_do_what_pytorchs_store_does() {
        let mut clients = Clients::default();
        let key = || "k".to_owned();
        let swap = |expected: &str, desired: &str| Command::CompareSet {
            key: "c".to_owned(),
            expected: value(expected),
            desired: value(desired),
        };
        let check = [
            (set("k", "v"), Answer::Done),
            (Command::Get(vec![key()]), values("v")),
            (Command::Append(key(), value("w")), Answer::Done),
            (Command::Get(vec![key()]), values("vw")),
            (Command::Append("new".to_owned(), value("w")), Answer::Done),
            (
                Command::Check(vec![key(), "new".to_owned()]),
                Answer::Is(true),
            ),
            (
                Command::Check(vec![key(), "x".to_owned()]),
                Answer::Is(false),
            ),
            (Command::Wait(vec![key()]), Answer::Done),
            (Command::Count, Answer::Number(2)),
            (Command::Delete(key()), Answer::Is(true)),
            (Command::Delete(key()), Answer::Is(false)),
            (Command::Add("n".to_owned(), 5), Answer::Number(5)),
            (Command::Add("n".to_owned(), -7), Answer::Number(-2)),
            (Command::Get(vec!["n".to_owned()]), values("-2")),
            (swap("old", "one"), values("old")),
            (Command::Check(vec!["c".to_owned()]), Answer::Is(false)),
            (swap("", "one"), values("one")),
            (swap("", "two"), values("one")),
            (swap("one", "two"), values("two")),
            (Command::TryPop("q".to_owned()), Answer::Nothing),
            (Command::Push("q".to_owned(), value("1")), Answer::Done),
            (Command::Push("q".to_owned(), value("2")), Answer::Done),
            (Command::Length("q".to_owned()), Answer::Number(2)),
            (Command::Pop("q".to_owned()), values("1")),
            (Command::TryPop("q".to_owned()), values("2")),
            (Command::Length("q".to_owned()), Answer::Number(0)),
        ];
        for (command, answer) in check {
            assert_eq!(clients.answer(command.clone()), answer, "{command:?}");
        }
        let failure = Failure::NoNumber {
            key: "new".to_owned(),
        };
        let failed = clients.answer(Command::Add("new".to_owned(), 1));
        assert_eq!(failed, Answer::Failed(failure));
        clients.answer(set("n", &i64::MAX.to_string()));
        let failed = clients.answer(Command::Add("n".to_owned(), 1));
        assert!(matches!(failed, Answer::Failed(Failure::NoNumber { .. })));
    }

    #[test]
    fn who_waits_is_answered_when_all_is_there_and_queues_serve_in_order() {
        let mut clients = Clients::default();
        let both = vec!["a".to_owned(), "b".to_owned()];
        assert!(clients.call(TWO, Command::Get(both.clone())).is_empty());
        assert!(clients.call(THREE, Command::Wait(both)).is_empty());
        assert_eq!(clients.call(ONE, set("a", "1")).len(), 1);
        let told = clients.call(ONE, set("b", "2"));
        let both = Answer::Values(vec![value("1"), value("2")]);
        assert_eq!(
            told,
            [(ONE, Answer::Done), (TWO, both), (THREE, Answer::Done)]
        );
        for client in [THREE, TWO] {
            assert!(
                clients
                    .call(client, Command::Pop("q".to_owned()))
                    .is_empty()
            );
        }
        for (client, text) in [(THREE, "x"), (TWO, "y")] {
            let told = clients.call(ONE, Command::Push("q".to_owned(), value(text)));
            assert_eq!(told, [(ONE, Answer::Done), (client, values(text))]);
        }
        assert!(clients.keys.waiting.is_empty());
    }

    #[test]
    fn a_call_said_again_is_answered_the_same_and_done_once() {
        let mut clients = Clients::default();
        let add = || Command::Add("n".to_owned(), 1);
        for _ in 0..3 {
            assert_eq!(clients.say(ONE, 1, add()), [(ONE, Answer::Number(1))]);
        }
        assert_eq!(clients.say(ONE, 2, add()), [(ONE, Answer::Number(2))]);
        assert!(clients.say(ONE, 1, add()).is_empty(), "it is past");
    }

    #[test]
    fn a_cancelled_call_takes_nothing_and_one_that_took_before_is_answered() {
        let mut clients = Clients::default();
        assert!(clients.call(TWO, Command::Pop("q".to_owned())).is_empty());
        assert_eq!(clients.call(TWO, Command::Cancel), [(TWO, Answer::Nothing)]);
        clients.call(ONE, Command::Push("q".to_owned(), value("x")));
        assert_eq!(
            clients.call(TWO, Command::Pop("q".to_owned())),
            [(TWO, values("x"))]
        );
        // The answer came too late.
        assert_eq!(clients.call(TWO, Command::Cancel), [(TWO, values("x"))]);
    }

    #[test]
    fn who_has_left_or_is_no_member_takes_nothing() {
        let mut clients = Clients::default();
        for client in [TWO, THREE] {
            assert!(
                clients
                    .call(client, Command::Pop("q".to_owned()))
                    .is_empty()
            );
        }
        clients.call(TWO, Command::Leave);
        clients.keys.retain(&[0, 1]);
        assert_eq!(
            clients
                .call(ONE, Command::Push("q".to_owned(), value("x")))
                .len(),
            1
        );
        assert_eq!(
            clients.answer(Command::Length("q".to_owned())),
            Answer::Number(1)
        );
    }

    #[test]
    fn everything_that_is_kept_is_counted_and_the_limit_refuses() {
        let mut clients = Clients::default();
        let large: Value = vec![0; ANSWER_LIMIT_BYTES].into();
        let mut failed = None;
        for number in 0..=BYTES_LIMIT / ANSWER_LIMIT_BYTES {
            let pair = (number.to_string(), large.clone());
            match clients.answer(Command::Set(vec![pair])) {
                Answer::Done => {}
                other => {
                    failed.get_or_insert((number, other));
                }
            }
        }
        let Some((number, Answer::Failed(Failure::Full { .. }))) = failed else {
            panic!("not refused: {failed:?}");
        };
        assert_eq!(
            clients.answer(Command::Count),
            Answer::Number(number as i64)
        );
        let both = Command::Get(vec!["0".to_owned(), "1".to_owned()]);
        let refused = clients.answer(both);
        assert!(matches!(refused, Answer::Failed(Failure::TooLarge { .. })));
        for number in 0..number {
            clients.answer(Command::Delete(number.to_string()));
        }
        clients.call(TWO, Command::Pop("q".to_owned()));
        clients.call(ONE, Command::Push("q".to_owned(), large));
        clients.call(TWO, Command::Leave);
        clients.call(ONE, Command::Leave);
        assert_eq!(clients.keys, Keys::default());
    }
}
