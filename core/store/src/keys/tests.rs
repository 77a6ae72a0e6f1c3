//! What the calls do, by examples.

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

// STORE-5
#[test]
fn everything_that_is_kept_is_counted_and_the_limit_refuses() {
    let mut clients = Clients::default();
    let large: Value = vec![0; ANSWER_LIMIT_BYTES].into();
    let mut failed = None;
    for number in 0..=BYTES_LIMIT / ANSWER_LIMIT_BYTES {
        let pair = (number.to_string(), large.clone());
        let answer = clients.answer(Command::Set(vec![pair]));
        if answer != Answer::Done {
            failed.get_or_insert((number, answer));
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
