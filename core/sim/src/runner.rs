//! A runner for tests that not every machine can run: what cannot counts as ignored, with the reason, and not as passed.

use std::panic::{UnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Runs tests by name, one after the other, and reports them as cargo's own runner does. In the place of a test that
/// cannot run here stands why. The first argument of the process that is no flag nor the value of one picks those whose
/// names contain it; what contains the value of `--skip` is ignored.
#[expect(
    clippy::disallowed_methods,
    reason = "the arguments of a runner say what to run"
)]
#[expect(clippy::print_stdout, reason = "the outcomes are the result")]
pub fn run_tests<T>(tests: impl IntoIterator<Item = (String, Result<T, String>)>) -> ExitCode
where
    T: FnOnce() + UnwindSafe,
{
    let filter = filter(std::env::args().skip(1));
    let skip = skip(std::env::args().skip(1));
    let is_skipped = |name: &str| skip.as_deref().is_some_and(|skip| name.contains(skip));
    let wanted = |name: &str| filter.as_deref().is_none_or(|filter| name.contains(filter));
    let tests: Vec<_> = tests.into_iter().filter(|(name, _)| wanted(name)).collect();
    println!("\nrunning {} tests", tests.len());
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for (name, test) in tests {
        let test = match is_skipped(&name) {
            true => Err("skipped by this command".to_owned()),
            false => test,
        };
        let (count, outcome) = match test.map(catch_unwind) {
            Err(why) => (&mut ignored, format!("ignored, {why}")),
            Ok(Ok(())) => (&mut passed, "ok".to_owned()),
            Ok(Err(_)) => (&mut failed, "FAILED".to_owned()),
        };
        *count += 1;
        println!("test {name} ... {outcome}");
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {result}. {passed} passed; {failed} failed; {ignored} ignored\n");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Flags of cargo's own runner whose value is the next word.
const WITH_VALUES: [&str; 6] = [
    "--color",
    "--format",
    "--logfile",
    "--shuffle-seed",
    "--skip",
    "--test-threads",
];

fn filter(mut words: impl Iterator<Item = String>) -> Option<String> {
    loop {
        let word = words.next()?;
        if WITH_VALUES.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(word);
        }
    }
}

fn skip(mut words: impl Iterator<Item = String>) -> Option<String> {
    words.find(|word| word == "--skip")?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_behind_skip_names_what_is_ignored() {
        for (line, skipped) in [("", None), ("one --skip posix_", Some("posix_"))] {
            let words = line.split_whitespace().map(str::to_owned);
            assert_eq!(skip(words).as_deref(), skipped, "{line}");
        }
    }

    #[test]
    fn the_value_of_a_flag_picks_no_tests() {
        for (line, picked) in [
            ("", None),
            ("--nocapture --test-threads 1", None),
            ("--test-threads=1 one_pair --nocapture", Some("one_pair")),
            ("--test-threads 1 one_pair", Some("one_pair")),
        ] {
            let words = line.split_whitespace().map(str::to_owned);
            assert_eq!(filter(words).as_deref(), picked, "{line}");
        }
    }
}
