//! What a stage's lines say about its work: that something was built, or that all was there from an
//! earlier run.

/// The later word counts more: a stage that built one of ten things has built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Made {
    /// There was nothing to build.
    #[default]
    Nothing,
    Cached,
    Built,
}

impl Made {
    /// Takes in a line of cargo's or of a step (`report::line`); any other says nothing.
    pub(super) fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<f64>().is_ok();
        let said = match *words.as_slice() {
            ["Compiling" | "Checking" | "Documenting", _, version, ..]
                if version.starts_with('v') =>
            {
                Self::Built
            }
            ["Finished", ..] => Self::Cached,
            [.., "built" | "installed", elapsed, "s"] if number(elapsed) => Self::Built,
            [.., "cached", elapsed, "s"] if number(elapsed) => Self::Cached,
            _ => Self::Nothing,
        };
        *self = said.max(*self);
    }

    /// What the summary says of a stage that ended well.
    pub(super) fn ok(self) -> &'static str {
        match self {
            Self::Nothing => "ok",
            Self::Cached => "ok cached",
            Self::Built => "ok built",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Made;

    fn of(lines: &[&str]) -> Made {
        let mut made = Made::default();
        lines.iter().for_each(|line| made.read(line));
        made
    }

    #[test]
    fn cargo_says_what_it_builds_before_it_says_that_all_is_there() {
        let finished = "    Finished `dev` profile [unoptimized + debuginfo] target(s) in 0.1s";
        assert_eq!(of(&[finished]), Made::Cached);
        assert_eq!(of(&["   Compiling serde v1.0.229", finished]), Made::Built);
        assert_eq!(
            of(&["    Checking link v0.1.0 (link)", finished]),
            Made::Built
        );
    }

    #[test]
    fn one_step_that_was_built_is_enough() {
        let cached = "  trainer base                       cached        0.0 s";
        let built = "  image operator                     built         2.1 s";
        assert_eq!(of(&[cached]), Made::Cached);
        assert_eq!(of(&[built, cached]), Made::Built);
        let packages = "  packages                           installed     6.0 s";
        assert_eq!(of(&[packages]), Made::Built);
    }

    #[test]
    fn other_lines_say_nothing() {
        let lines = [
            "  tools                              …            30.0 s",
            "test what_was_built ... ok",
            "the demo was built in 3 s or so",
            "",
        ];
        assert_eq!(of(&lines), Made::Nothing);
    }
}
