//! The crate's one error: what was being done, and what came of it. It has no variants because
//! nobody who brings a test cluster up can do better than read it.

use std::error::Error as StdError;
use std::fmt;

/// What failed, and why.
#[derive(Debug)]
pub struct Error {
    doing: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that has no deeper cause.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            doing: message.into(),
            source: None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.doing)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

/// Says what was being done when something failed.
pub trait ErrorContext<T> {
    /// The message is built only when there is an error.
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: StdError + Send + Sync + 'static> ErrorContext<T> for std::result::Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error {
            doing: doing(),
            source: Some(Box::new(source)),
        })
    }
}
