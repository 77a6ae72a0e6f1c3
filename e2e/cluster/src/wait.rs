//! Waiting for a condition with a deadline.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const POLL: Duration = Duration::from_millis(100);

/// Asks until there is an answer. At the deadline the error says what was waited for and what the
/// last try said.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let answer = ask();
        if let Ok(Some(value)) = answer {
            return Ok(value);
        }
        if Instant::now() > deadline {
            let last = answer
                .err()
                .map(|error| format!(": {error}"))
                .unwrap_or_default();
            return Err(Error::new(format!(
                "{what}: not within {} s{last}",
                limit.as_secs()
            )));
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::until;
    use crate::error::Error;

    #[test]
    fn it_asks_until_there_is_an_answer() {
        let mut asked = 0;
        let answer = until("three", Duration::from_secs(10), || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(answer.unwrap(), 3);
    }

    #[test]
    fn the_error_tells_what_the_last_try_said() {
        let error =
            until::<()>("the moon", Duration::ZERO, || Err(Error::new("cloudy"))).unwrap_err();
        assert_eq!(error.to_string(), "the moon: not within 0 s: cloudy");
    }
}
