//! A public type's name stands for one thing: a name that several crates define is in a list, with why.

use super::{File, Findings};
use std::collections::{BTreeMap, BTreeSet};

/// Names that every crate may use, and the same thing in two crates.
const SHARED: [(&str, &str); 12] = [
    (
        "Verdict",
        "of ranks whose calls differ; of checks on a node",
    ),
    ("Args", "a program's command line"),
    ("Cli", "a program's command line"),
    ("Command", "a program's command line"),
    ("Effect", "what a protocol's step wants done"),
    ("Error", "the error of its module"),
    ("Input", "what a protocol's step takes"),
    ("Metrics", "a program's metrics"),
    ("Numerics", "the API's twin: its text is the manual"),
    ("OnPeerLoss", "the API's twin: its text is the manual"),
    ("WhenBusy", "the API's twin: its text is the manual"),
    ("ZonePolicy", "the API's twin: its text is the manual"),
];

/// How a definition begins. What is not public in its crate may have any name.
const DEFINES: [&str; 4] = ["pub struct ", "pub enum ", "pub trait ", "pub type "];

pub(super) fn check(files: &[File], findings: &mut Findings) {
    compare(files, &SHARED.map(|(name, _)| name), findings);
}

fn compare(files: &[File], listed: &[&str], findings: &mut Findings) {
    let mut definitions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        let Some(package) = package(&file.path) else {
            continue;
        };
        for name in file.text.lines().filter_map(name) {
            definitions.entry(name).or_default().insert(package);
        }
    }
    for (name, packages) in definitions.iter().filter(|(_, crates)| crates.len() > 1) {
        if !listed.contains(name) {
            let packages: Vec<&str> = packages.iter().copied().collect();
            findings.errors.push(format!(
                "{} each define a public type {name}: give each thing a name of its own, or list the name in \
                 xtask/src/tidy/names.rs and say why",
                packages.join(", ")
            ));
        }
    }
    let is_needed = |name: &&&str| {
        definitions
            .get(**name)
            .is_some_and(|crates| crates.len() > 1)
    };
    for name in listed.iter().filter(|name| !is_needed(name)) {
        findings.errors.push(format!(
            "xtask/src/tidy/names.rs: at most one crate defines a public type {name}: delete its row"
        ));
    }
}

/// The folder of the package that a source file belongs to. Tests and generated files have names of their own.
fn package(path: &str) -> Option<&str> {
    let (package, file) = path.split_once("/src/")?;
    let is_ours = !file.starts_with("pb/") && !file.contains("tests");
    (is_ours && file.ends_with(".rs")).then_some(package)
}

/// The type that a line defines.
fn name(line: &str) -> Option<&str> {
    let rest = DEFINES.iter().find_map(|begin| line.strip_prefix(begin))?;
    rest.split(|next: char| !next.is_alphanumeric() && next != '_')
        .next()
}

#[cfg(test)]
mod tests {
    use super::{File, Findings, compare};

    fn errors(files: &[(&str, &str)], listed: &[&str]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        let files: Vec<File> = files.iter().map(file).collect();
        let mut findings = Findings::default();
        compare(&files, listed, &mut findings);
        findings.errors
    }

    #[test]
    fn a_name_that_two_crates_define_is_an_error_unless_it_is_listed() {
        let files = [
            ("core/pond/src/lib.rs", "pub struct Duck {\n"),
            (
                "hut/src/a/b.rs",
                "//! x\npub enum Duck<'a> {\npub type Error = u8;\n",
            ),
            ("nest/src/lib.rs", "pub struct Error(u8);\n"),
        ];
        let found = errors(&files, &["Error"]);
        assert!(
            found.len() == 1
                && found[0].starts_with("core/pond, hut each define a public type Duck"),
            "{found:?}"
        );
    }

    #[test]
    fn one_crate_tests_and_private_types_may_repeat_a_name() {
        let none: [&str; 0] = [];
        let files = [
            ("pond/src/a.rs", "pub struct Duck;\n"),
            ("pond/src/b.rs", "pub struct Duck;\n"),
            (
                "hut/src/lib.rs",
                "pub(crate) struct Duck;\n    pub struct Duck;\nstruct Duck;\n",
            ),
            ("hut/src/duck/tests.rs", "pub struct Duck;\n"),
            ("hut/tests/duck.rs", "pub struct Duck;\n"),
        ];
        assert_eq!(errors(&files, &[]), none);
    }

    #[test]
    fn a_row_that_excuses_nothing_is_an_error() {
        let found = errors(&[("pond/src/a.rs", "pub struct Duck;\n")], &["Duck"]);
        assert!(
            found.len() == 1 && found[0].ends_with("type Duck: delete its row"),
            "{found:?}"
        );
    }
}
