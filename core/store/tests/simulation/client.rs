//! A session of a process: it calls one thing after the other, and calls again what a sidecar that forgot was asked.

use std::collections::VecDeque;
use std::time::Duration;

use sim::Rng;
use store::{Answer, Call, ClientId, Command};

use crate::history::Event;

/// Calls of a client: as many as make all orders of all clients' calls a small number.
const CALLS: usize = 6;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    rng: Rng,
    sequence: u64,
    left: usize,
    /// What it calls after that.
    script: VecDeque<Command>,
    /// The call under way, and whether it is being cancelled.
    current: Option<(Event, bool)>,
    pub(crate) history: Vec<Event>,
}

impl Client {
    pub(crate) fn new(id: ClientId, rng: Rng) -> Self {
        Self {
            id,
            rng,
            sequence: 0,
            left: CALLS,
            script: VecDeque::new(),
            current: None,
            history: Vec::new(),
        }
    }

    /// Whether it has nothing more to do.
    pub(crate) fn is_done(&self) -> bool {
        self.current.is_none() && self.left == 0 && self.script.is_empty()
    }

    /// Looks at all that there is now.
    pub(crate) fn audit(&mut self) {
        let get = |key: &str| Command::Get(vec![key.into()]);
        let pop = || Command::TryPop("q".into());
        let push = Command::Push("q".into(), b"last".as_slice().into());
        self.script = [
            get("a"),
            get("b"),
            get("n"),
            pop(),
            pop(),
            pop(),
            push,
            pop(),
        ]
        .into();
    }

    /// Calls the next thing.
    pub(crate) fn call(&mut self, now: Duration) -> Option<Call> {
        if self.current.is_some() || self.is_done() {
            return None;
        }
        let command = match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.draw()
            }
            None => self.script.pop_front()?,
        };
        let event = Event {
            command,
            called: now,
            told: None,
        };
        self.current = Some((event, false));
        self.sequence += 1;
        self.again()
    }

    /// Stops waiting for what it has called.
    pub(crate) fn cancel(&mut self) -> Option<Call> {
        let (_, cancelled) = self.current.as_mut()?;
        if *cancelled {
            return None;
        }
        *cancelled = true;
        self.sequence += 1;
        self.again()
    }

    /// What it waits for, as it says it to another sidecar.
    pub(crate) fn again(&self) -> Option<Call> {
        let (event, cancelled) = self.current.as_ref()?;
        Some(Call {
            client: self.id,
            sequence: self.sequence,
            command: match cancelled {
                true => Command::Cancel,
                false => event.command.clone(),
            },
        })
    }

    pub(crate) fn told(&mut self, sequence: u64, answer: Answer, now: Duration) {
        assert_eq!(sequence, self.sequence, "an answer to another call");
        let (mut event, cancelled) = self.current.take().unwrap();
        assert!(
            !matches!(answer, Answer::Failed(_)),
            "{event:?} is told {answer:?}"
        );
        if cancelled && answer == Answer::Nothing {
            return; // It was not done and never will be, or it has taken nothing.
        }
        event.told = Some((now, answer));
        self.history.push(event);
    }

    /// Whether somebody else took what it had just put into the queue.
    pub(crate) fn was_robbed(&self) -> bool {
        let told = |event: &Event| event.told.clone().map(|(_, answer)| answer);
        match &self.history[..] {
            [.., put, took] => {
                matches!(put.command, Command::Push(..))
                    && told(put) == Some(Answer::Done)
                    && matches!(took.command, Command::TryPop(_))
                    && told(took) == Some(Answer::Nothing)
            }
            _ => false,
        }
    }

    /// What was under way when its node ended, or the run.
    pub(crate) fn end(&mut self) {
        if let Some((event, _)) = self.current.take() {
            self.history.push(event);
        }
    }

    /// Contents tell who has written them, and with which call.
    fn draw(&mut self) -> Command {
        let key = ["a", "b"][self.rng.below(2)].to_owned();
        let content = format!("{}.{}.{} ", self.id.node, self.id.number, self.sequence);
        let content = || content.as_bytes().into();
        match self.rng.below(12) {
            0 => Command::Set(vec![(key, content())]),
            1 => Command::Get(vec![key]),
            2 => Command::Wait(vec!["a".into(), "b".into()]),
            3 => Command::Check(vec![key]),
            4 | 5 => Command::Add("n".into(), 1),
            6 => Command::CompareSet {
                key,
                expected: [].into(),
                desired: content(),
            },
            7 => Command::Append(key, content()),
            8 => Command::Delete(key),
            9 => Command::Push("q".into(), content()),
            10 => Command::Pop("q".into()),
            _ => Command::TryPop("q".into()),
        }
    }
}
