//! Reading a command line: switches, options with a value, words. A verb takes out what it knows,
//! in any order, and calls [`Args::finish`], which refuses what is left. What the words mean is the
//! verb's business.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// A command line that makes no sense: `main` prints the verb's usage below it and exits with 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The arguments that nobody has taken yet.
#[derive(Debug, Clone)]
pub(crate) struct Args {
    rest: VecDeque<String>,
}

impl Args {
    pub(crate) fn new(arguments: impl IntoIterator<Item = String>) -> Self {
        Self {
            rest: arguments.into_iter().collect(),
        }
    }

    /// Takes `--help` or `-h`.
    pub(crate) fn help(&mut self) -> bool {
        self.switch("--help") | self.switch("-h")
    }

    /// Takes the next argument when it is a word and not an option.
    pub(crate) fn positional(&mut self) -> Option<String> {
        let next = self.rest.front()?;
        if next.starts_with('-') {
            None
        } else {
            self.rest.pop_front()
        }
    }

    /// Takes a switch such as `--check`; true when it was there.
    pub(crate) fn switch(&mut self, name: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|argument| argument != name);
        self.rest.len() < before
    }

    /// Takes an option with a value: `--name N` or `--name=N`. Given twice, it is an error.
    pub(crate) fn option(&mut self, name: &str) -> Result<Option<String>, Usage> {
        let mut found = None;
        while let Some(value) = self.take_option(name)? {
            if found.replace(value).is_some() {
                return Err(Usage(format!("{name} is given twice")));
            }
        }
        Ok(found)
    }

    /// Takes an option whose value must parse as `T`.
    pub(crate) fn parsed<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, Usage> {
        let Some(text) = self.option(name)? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(Usage(format!(
                "{name} {text}: not a value that {name} takes"
            ))),
        }
    }

    /// What nobody has taken, for a program that reads it.
    pub(crate) fn rest(self) -> impl Iterator<Item = String> {
        self.rest.into_iter()
    }

    /// Refuses whatever nobody has taken.
    pub(crate) fn finish(self) -> Result<(), Usage> {
        match self.rest.front() {
            None => Ok(()),
            Some(argument) => Err(Usage(format!("unexpected argument {argument:?}"))),
        }
    }

    fn take_option(&mut self, name: &str) -> Result<Option<String>, Usage> {
        let found = self.rest.iter().position(|argument| {
            argument
                .strip_prefix(name)
                .is_some_and(|tail| tail.is_empty() || tail.starts_with('='))
        });
        let Some(index) = found else { return Ok(None) };
        let argument = self.rest.remove(index).unwrap_or_default();
        if let Some(value) = argument
            .strip_prefix(name)
            .and_then(|tail| tail.strip_prefix('='))
        {
            return Ok(Some(value.to_owned()));
        }
        match self.rest.remove(index) {
            Some(value) if !value.starts_with("--") => Ok(Some(value)),
            Some(_) | None => Err(Usage(format!("{name} needs a value"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Args;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_found_anywhere_and_in_both_spellings() {
        let mut args = args("up --nodes 3 --name=demo --check");
        assert_eq!(args.positional().as_deref(), Some("up"));
        assert_eq!(args.option("--name").unwrap().as_deref(), Some("demo"));
        assert_eq!(args.parsed::<usize>("--nodes").unwrap(), Some(3));
        assert!(args.switch("--check"));
        assert!(!args.switch("--check"));
        args.finish().unwrap();
    }

    #[test]
    fn what_nobody_took_is_refused_by_name() {
        let mut args = args("--nodes 3 --nods 4");
        args.parsed::<usize>("--nodes").unwrap();
        assert_eq!(
            args.finish().unwrap_err().0,
            "unexpected argument \"--nods\""
        );
    }

    #[test]
    fn an_option_without_a_value_or_given_twice_is_refused() {
        assert_eq!(
            args("--name").option("--name").unwrap_err().0,
            "--name needs a value"
        );
        assert_eq!(
            args("--name --x").option("--name").unwrap_err().0,
            "--name needs a value"
        );
        assert_eq!(
            args("--name a --name b").option("--name").unwrap_err().0,
            "--name is given twice"
        );
        assert!(args("--nodes three").parsed::<usize>("--nodes").is_err());
    }
}
