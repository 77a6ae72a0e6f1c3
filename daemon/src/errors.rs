//! The text of an error. What an error says stays in the crate that makes it.

use std::error::Error;

/// An error with its causes, in one line. Some errors repeat a cause in their own text: it is added
/// once.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Step {
        text: &'static str,
        source: Option<io::Error>,
    }

    #[test]
    fn each_cause_is_named_once() {
        let of = |text| {
            chain(&Step {
                text,
                source: Some(io::Error::other("no route")),
            })
        };
        assert_eq!(of("failed to list"), "failed to list: no route");
        assert_eq!(of("failed to list: no route"), "failed to list: no route");
        let alone = Step {
            text: "failed",
            source: None,
        };
        assert_eq!(chain(&alone), "failed");
    }
}
