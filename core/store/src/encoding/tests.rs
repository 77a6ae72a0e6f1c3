//! Bytes there and back, and any others.

use super::*;

fn value(text: &str) -> Value {
    text.as_bytes().into()
}

fn commands() -> Vec<Command> {
    let key = || "key".to_owned();
    vec![
        Command::Set(vec![(key(), value("a")), (String::new(), value(""))]),
        Command::Get(vec![key(), key()]),
        Command::Wait(vec![key()]),
        Command::Check(vec![]),
        Command::Add(key(), -1),
        Command::CompareSet {
            key: key(),
            expected: value("a"),
            desired: value("b"),
        },
        Command::Append(key(), value("c")),
        Command::Delete(key()),
        Command::Count,
        Command::Push(key(), value("d")),
        Command::Pop(key()),
        Command::TryPop(key()),
        Command::Length(key()),
        Command::Cancel,
    ]
}

/// A store with everything in it, and what one says of it.
fn messages() -> Vec<Message> {
    let mut keys = Keys::default();
    let mut calls = Vec::new();
    for (number, command) in commands()
        .into_iter()
        .chain([Command::Pop("q".into()), Command::Get(vec!["x".into()])])
        .enumerate()
    {
        let client = ClientId {
            node: 3,
            number: number as u64,
        };
        let call = Call {
            client,
            sequence: 1,
            command,
        };
        keys.apply(&call);
        calls.push(call);
    }
    let version = Version {
        epoch: 2,
        position: 9,
    };
    let ask = Message::Ask(7, calls[0].clone());
    let keys = Box::new(keys);
    vec![
        Message::Have(None),
        Message::Have(Some(version)),
        Message::Fetch,
        Message::State(version, keys.clone()),
        Message::Begin(version, None),
        Message::Begin(version, Some(keys)),
        Message::Lost,
        Message::Calls {
            after: 4,
            calls,
            stable: 3,
        },
        ask,
    ]
}

#[test]
fn what_is_written_is_read_and_nothing_shorter_or_longer_is() {
    for command in commands() {
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
    for message in messages() {
        let mut bytes = message.encode();
        for length in 0..bytes.len() {
            let read = Message::decode(&bytes[..length]);
            assert!(read.is_err(), "{length} bytes of {message:?} are {read:?}");
        }
        assert_eq!(Message::decode(&bytes), Ok(message));
        bytes.push(0);
        assert!(Message::decode(&bytes).is_err());
    }
    for answer in [
        Answer::Done,
        Answer::Values(vec![value("a"), value("")]),
        Answer::Number(-3),
        Answer::Is(true),
        Answer::Nothing,
        Answer::Failed(Failure::NoNumber { key: "n".into() }),
    ] {
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }
}

#[test]
fn any_bytes_are_read_or_refused() {
    sim::for_each_seed(2000, |rng| {
        let mut bytes = match rng.below(2) {
            0 => (0..rng.below(40))
                .map(|_| rng.next_u64() as u8 % 20)
                .collect(),
            _ => {
                let all = messages();
                all[rng.below(all.len())].encode()
            }
        };
        if !bytes.is_empty() {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next_u64() as u8;
        }
        // What was read is whole: it can be written and read again.
        if let Ok(message) = Message::decode(&bytes) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        Command::decode(&bytes).ok();
        Answer::decode(&bytes).ok();
    });
}

#[test]
fn a_client_says_no_more_than_it_may() {
    let large = Command::Append("k".into(), vec![0; COMMAND_LIMIT_BYTES].into());
    assert!(Command::decode(&large.encode()).is_err());
    assert!(Command::decode(&Command::Leave.encode()).is_err());
}
