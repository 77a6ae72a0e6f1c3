//! The gang's store as a Python class: each method asks the node's sidecar, and waits without the interpreter.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use store::{Answer, Command, Value};
use wire::store::{Client, Error};

use crate::client::seconds;
use crate::error::raise;

/// The way to the store; for any thread. Methods raise `TimeoutError` when there is no answer within `timeout`
/// seconds, and `HFReduceError` when there will be none.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Store(Client);

/// The store answered something else than was asked.
#[derive(Debug)]
struct OutOfTurn;

impl std::fmt::Display for OutOfTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the store answered out of turn; use a wheel and a sidecar of one release")
    }
}

impl std::error::Error for OutOfTurn {}

impl Store {
    fn call(&self, py: Python<'_>, command: &Command, timeout: f64) -> PyResult<Answer> {
        let timeout: Duration = seconds(timeout)?;
        let command = command.encode();
        let answered = py.detach(|| self.0.call(command, timeout));
        let answer = answered.map_err(|error| match &error {
            Error::Timeout(_) | Error::Absent { .. } => PyTimeoutError::new_err(text(&error)),
            Error::Refused(_) | Error::Malformed(_) | Error::Random(_) => raise(py, &error),
        })?;
        match Answer::decode(&answer).map_err(|error| raise(py, &error))? {
            Answer::Failed(why) => Err(raise(py, &why)),
            answer @ (Answer::Done
            | Answer::Values(_)
            | Answer::Number(_)
            | Answer::Is(_)
            | Answer::Nothing) => Ok(answer),
        }
    }

    fn done(&self, py: Python<'_>, command: &Command, timeout: f64) -> PyResult<()> {
        let Answer::Done = self.call(py, command, timeout)? else {
            return Err(raise(py, &OutOfTurn));
        };
        Ok(())
    }

    fn number(&self, py: Python<'_>, command: &Command, timeout: f64) -> PyResult<i64> {
        let Answer::Number(number) = self.call(py, command, timeout)? else {
            return Err(raise(py, &OutOfTurn));
        };
        Ok(number)
    }

    fn truth(&self, py: Python<'_>, command: &Command, timeout: f64) -> PyResult<bool> {
        let Answer::Is(is) = self.call(py, command, timeout)? else {
            return Err(raise(py, &OutOfTurn));
        };
        Ok(is)
    }

    fn values<'py>(
        &self,
        py: Python<'py>,
        command: &Command,
        timeout: f64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        match self.call(py, command, timeout)? {
            Answer::Values(values) => Ok(values.iter().map(|one| PyBytes::new(py, one)).collect()),
            Answer::Nothing => Ok(Vec::new()),
            Answer::Done | Answer::Number(_) | Answer::Is(_) | Answer::Failed(_) => {
                Err(raise(py, &OutOfTurn))
            }
        }
    }
}

fn text(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn value(bytes: &[u8]) -> Value {
    bytes.into()
}

#[pymethods]
impl Store {
    /// Of the sidecar that listens at `socket`, now or later.
    #[new]
    fn new(socket: PathBuf) -> Self {
        Self(Client::new(&socket))
    }

    /// Gives keys their contents.
    fn set(&self, py: Python<'_>, pairs: Vec<(String, Vec<u8>)>, timeout: f64) -> PyResult<()> {
        let pairs = pairs
            .into_iter()
            .map(|(key, content)| (key, value(&content)));
        self.done(py, &Command::Set(pairs.collect()), timeout)
    }

    /// The contents of keys, when all are there.
    fn get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        timeout: f64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        self.values(py, &Command::Get(keys), timeout)
    }

    /// Returns when all keys are there.
    fn wait(&self, py: Python<'_>, keys: Vec<String>, timeout: f64) -> PyResult<()> {
        self.done(py, &Command::Wait(keys), timeout)
    }

    /// Whether all keys are there.
    fn check(&self, py: Python<'_>, keys: Vec<String>, timeout: f64) -> PyResult<bool> {
        self.truth(py, &Command::Check(keys), timeout)
    }

    /// Adds to a number, and returns the sum.
    fn add(&self, py: Python<'_>, key: String, amount: i64, timeout: f64) -> PyResult<i64> {
        self.number(py, &Command::Add(key, amount), timeout)
    }

    /// Sets a key if it has the first content, to the second, and returns what it has then.
    fn compare_set<'py>(
        &self,
        py: Python<'py>,
        key: String,
        contents: (Vec<u8>, Vec<u8>),
        timeout: f64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let (expected, desired) = (value(&contents.0), value(&contents.1));
        let command = Command::CompareSet {
            key,
            expected,
            desired,
        };
        self.values(py, &command, timeout)
    }

    /// Adds to the end of a key's content.
    fn append(&self, py: Python<'_>, key: String, content: Vec<u8>, timeout: f64) -> PyResult<()> {
        self.done(py, &Command::Append(key, value(&content)), timeout)
    }

    /// Removes a key, and says whether it was there.
    fn delete(&self, py: Python<'_>, key: String, timeout: f64) -> PyResult<bool> {
        self.truth(py, &Command::Delete(key), timeout)
    }

    /// How many keys there are.
    fn count(&self, py: Python<'_>, timeout: f64) -> PyResult<i64> {
        self.number(py, &Command::Count, timeout)
    }

    /// Adds to the end of a queue.
    fn push(&self, py: Python<'_>, key: String, content: Vec<u8>, timeout: f64) -> PyResult<()> {
        self.done(py, &Command::Push(key, value(&content)), timeout)
    }

    /// Takes the first of a queue: when one is there, or nothing where none is and `block` is false.
    fn pop<'py>(
        &self,
        py: Python<'py>,
        key: String,
        block: bool,
        timeout: f64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let command = match block {
            true => Command::Pop(key),
            false => Command::TryPop(key),
        };
        self.values(py, &command, timeout)
    }

    /// How long a queue is.
    fn length(&self, py: Python<'_>, key: String, timeout: f64) -> PyResult<i64> {
        self.number(py, &Command::Length(key), timeout)
    }
}
