//! How long things took, read from what a stage prints: test programs of cargo, scenarios, tests of the guest, Python
//! modules, steps such as a build. The lines are those that `counts` and `made` read.

use std::collections::BTreeMap;

/// Collects the times of one stage, line by line.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The package whose test programs run: cargo names it for unit tests only, which come first.
    package: String,
    /// The test program that runs.
    program: Option<String>,
    /// Under one name, times add up: a Python module has many tests.
    seconds: BTreeMap<String, f64>,
}

impl Times {
    pub(super) fn read(&mut self, line: &str) {
        if let Some(program) = self.program(line) {
            self.program = Some(program);
        } else if let Some(seconds) = finished(line) {
            if let Some(program) = self.program.take() {
                self.add(program, seconds);
            }
        } else if let Some((name, seconds)) = test(line)
            .or_else(|| python(line))
            .or_else(|| step(line))
            .or_else(|| build(line))
        {
            self.add(name, seconds);
        }
    }

    /// Programs, scenarios and steps with their seconds, by name.
    pub(super) fn rows(self) -> Vec<(String, f64)> {
        self.seconds.into_iter().collect()
    }

    fn add(&mut self, name: String, seconds: f64) {
        *self.seconds.entry(name).or_default() += seconds;
    }

    /// `     Running tests/real/main.rs (target/debug/deps/real-0a1b)`, or `   Doc-tests link`.
    fn program(&mut self, line: &str) -> Option<String> {
        let line = line.trim_start();
        if let Some(package) = line.strip_prefix("Doc-tests ") {
            return Some(format!("{package} documentation"));
        }
        let (source, file) = line.strip_prefix("Running ")?.split_once(" (")?;
        if let Some(source) = source.strip_prefix("unittests ") {
            let file = file.trim_end_matches(')').rsplit('/').next()?;
            let (package, _) = file.rsplit_once('-')?;
            package.clone_into(&mut self.package);
            return Some(format!("{package} {source}"));
        }
        Some(format!("{} {source}", self.package))
    }
}

/// `test result: ok. 3 passed; …; finished in 0.01s`
fn finished(line: &str) -> Option<f64> {
    let (_, time) = line
        .strip_prefix("test result: ")?
        .rsplit_once("finished in ")?;
    duration(time)
}

/// `test trains_to_accuracy ... ok (41.2 s)`, `test links ... FAILED (status 137, 120 s)`
fn test(line: &str) -> Option<(String, f64)> {
    let (name, how) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, inside) = how.strip_suffix(')')?.rsplit_once('(')?;
    let time = inside.rsplit(", ").next()?.strip_suffix(" s")?;
    Some((name.to_owned(), number(time)?))
}

/// One line of unittest's list of durations: `1.234s     test_a (test_gang.Gang.test_a)`.
fn python(line: &str) -> Option<(String, f64)> {
    let (time, test) = line.split_once("s  ")?;
    let (_, path) = test.trim().strip_suffix(')')?.split_once('(')?;
    let module = path.split('.').next()?;
    Some((module.to_owned(), number(time)?))
}

/// A line of `report::line`: `  trainer base                built      140.0 s`.
fn step(line: &str) -> Option<(String, f64)> {
    let words: Vec<&str> = line.strip_prefix("  ")?.split_whitespace().collect();
    let [
        name @ ..,
        "built" | "installed" | "cached" | "done",
        time,
        "s",
    ] = &words[..]
    else {
        return None;
    };
    Some((name.join(" "), number(time)?))
}

/// What cargo says when all is built: ``    Finished `test` profile […] target(s) in 1m 02s``.
fn build(line: &str) -> Option<(String, f64)> {
    let (_, time) = line
        .trim_start()
        .strip_prefix("Finished ")?
        .rsplit_once("target(s) in ")?;
    Some(("cargo build".to_owned(), duration(time)?))
}

/// `1m 02s` or `0.01s`.
fn duration(text: &str) -> Option<f64> {
    let (minutes, seconds) = text.rsplit_once("m ").unwrap_or(("0", text));
    Some(number(minutes)? * 60.0 + number(seconds.trim_end().strip_suffix('s')?)?)
}

fn number(text: &str) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::Times;

    fn rows(lines: &[&str]) -> Vec<(String, f64)> {
        let mut times = Times::default();
        lines.iter().for_each(|line| times.read(line));
        times.rows()
    }

    fn row(name: &str, seconds: f64) -> (String, f64) {
        (name.to_owned(), seconds)
    }

    #[test]
    fn a_test_program_is_named_by_its_package_and_its_source() {
        let found = rows(&[
            "    Finished `test` profile [unoptimized + debuginfo] target(s) in 1m 02s",
            "     Running unittests src/lib.rs (target/debug/deps/link-0a1b)",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s",
            "     Running tests/verbs/main.rs (target/debug/deps/verbs-2c3d)",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 61.25s",
            "   Doc-tests link",
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ]);
        let expected = [
            row("cargo build", 62.0),
            row("link documentation", 0.0),
            row("link src/lib.rs", 0.5),
            row("link tests/verbs/main.rs", 61.25),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_program_that_broke_off_does_not_get_the_time_of_the_next() {
        let found = rows(&[
            "     Running unittests src/lib.rs (target/debug/deps/a-0a1b)",
            "     Running unittests src/lib.rs (target/debug/deps/b-0a1b)",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.00s",
            "test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.00s",
        ]);
        assert_eq!(found, [row("b src/lib.rs", 2.0)]);
    }

    #[test]
    fn scenarios_and_tests_of_the_guest_are_rows_whether_they_pass_or_fail() {
        let found = rows(&[
            "test trains_to_accuracy ... ok (41.2 s)",
            "test survives ... FAILED (90.0 s)",
            "test links ... FAILED (status 137, 120 s)",
            "test quick ... ok",
            "test other ... not run: needs Docker and kind (or root)",
        ]);
        let expected = [
            row("links", 120.0),
            row("survives", 90.0),
            row("trains_to_accuracy", 41.2),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn tests_in_python_add_up_by_module() {
        let found = rows(&[
            "test_a (test_gang.Gang.test_a) ... ok",
            "1.250s     test_a (test_gang.Gang.test_a)",
            "0.500s     test_b (test_gang.Gang.test_b)",
            "0.001s     test_c (test_tidy.Tidy.test_c)",
            "Ran 12 tests in 3.4s",
        ]);
        assert_eq!(found, [row("test_gang", 1.75), row("test_tidy", 0.001)]);
    }

    #[test]
    fn steps_are_rows_once_they_ended() {
        let found = rows(&[
            "  image operator                     …            30.0 s",
            "  image operator                     built        45.5 s",
            "  trainer base                       cached        0.0 s",
            "  link tests/fuzz/main.rs            done          3.5 s",
        ]);
        let expected = [
            row("image operator", 45.5),
            row("link tests/fuzz/main.rs", 3.5),
            row("trainer base", 0.0),
        ];
        assert_eq!(found, expected);
    }
}
