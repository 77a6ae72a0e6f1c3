//! Each invariant of ARCHITECTURE.md and of the protocols' pages has an ID, and a test that names it: the one that fails when
//! the invariant does not hold. An ID in the code that the document lacks is as wrong.

use super::{File, Findings};
use std::collections::BTreeSet;

/// Where the invariants are listed, one table row each; those of one protocol are in its page.
const DOCUMENT: &str = "ARCHITECTURE.md";
const PROTOCOLS: &str = "docs/protocol/";

pub(super) fn check(files: &[File], findings: &mut Findings) {
    if !files.iter().any(|file| file.path == DOCUMENT) {
        findings
            .errors
            .push(format!("{DOCUMENT} is missing: it lists the invariants"));
        return;
    }
    let listed = listed(files);
    if listed.is_empty() {
        findings.errors.push(format!(
            "{DOCUMENT} lists no invariant (rows like `| GANG-1 | …`)"
        ));
    }
    let tested: BTreeSet<&str> = files
        .iter()
        .filter_map(tests)
        .flat_map(|text| listed.iter().filter(|id| names(text, id)))
        .map(String::as_str)
        .collect();
    for id in listed.iter().filter(|id| !tested.contains(id.as_str())) {
        findings.errors.push(format!(
            "no test names {id}: write the ID at the test that fails without it"
        ));
    }
    let families: BTreeSet<&str> = listed
        .iter()
        .filter_map(|id| id.split('-').next())
        .collect();
    for file in files
        .iter()
        .filter(|file| matches!(file.extension(), "rs" | "py"))
    {
        for id in ids(&file.text, &families).filter(|id| !listed.contains(id)) {
            findings.errors.push(format!(
                "{}: {id} is in neither {DOCUMENT} nor {PROTOCOLS}",
                file.path
            ));
        }
    }
}

/// The IDs of all invariants.
pub(super) fn listed(files: &[File]) -> BTreeSet<String> {
    let lists = |file: &&File| file.path == DOCUMENT || file.path.starts_with(PROTOCOLS);
    files
        .iter()
        .filter(lists)
        .flat_map(|file| file.text.lines().filter_map(row))
        .collect()
}

/// The ID of a table row `| GANG-1 | …`.
fn row(line: &str) -> Option<String> {
    let id = line.strip_prefix("| ")?.split(" |").next()?;
    let (family, number) = id.split_once('-')?;
    let is_id = family.len() >= 3
        && family.bytes().all(|byte| byte.is_ascii_uppercase())
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit());
    is_id.then(|| id.to_owned())
}

/// The part of a file that is tests: all of a test file, else what follows `#[cfg(test)]`.
pub(super) fn tests(file: &File) -> Option<&str> {
    let whole = match file.extension() {
        "py" => file.path.contains("test"),
        "rs" => {
            file.path.contains("tests/")
                || file.path.ends_with("tests.rs")
                || file.path.starts_with("e2e/scenarios/")
        }
        _ => return None,
    };
    let start = if whole {
        0
    } else {
        file.text.find("#[cfg(test)]")?
    };
    // This file's own tests speak of invariants without testing any.
    (!file.path.starts_with("xtask/")).then(|| &file.text[start..])
}

pub(super) fn names(text: &str, id: &str) -> bool {
    text.match_indices(id)
        .any(|(at, _)| !text[at + id.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// IDs of the known families in a text.
fn ids<'a>(text: &'a str, families: &'a BTreeSet<&str>) -> impl Iterator<Item = String> + 'a {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter_map(move |word| {
            let (family, number) = word.split_once('-')?;
            let number: String = number.chars().take_while(char::is_ascii_digit).collect();
            (families.contains(family) && !number.is_empty()).then(|| format!("{family}-{number}"))
        })
}

#[cfg(test)]
mod tests {
    use super::{File, Findings, check};

    fn errors(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        let files: Vec<File> = files.iter().map(file).collect();
        let mut findings = Findings::default();
        check(&files, &mut findings);
        findings.errors
    }

    #[test]
    fn an_invariant_that_a_test_names_passes() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { /* DUCK-1 */ }\n";
        assert!(
            errors(&[
                ("ARCHITECTURE.md", "| DUCK-1 | quacks |\n"),
                ("core/a.rs", code)
            ])
            .is_empty()
        );
        assert!(
            errors(&[
                ("ARCHITECTURE.md", "| DUCK-1 | quacks |\n"),
                ("core/tests/a.rs", "// DUCK-1\n")
            ])
            .is_empty()
        );
    }

    #[test]
    fn a_mention_outside_tests_is_not_enough() {
        let found = errors(&[
            ("ARCHITECTURE.md", "| DUCK-1 | quacks |\n"),
            ("core/a.rs", "// DUCK-1\n"),
        ]);
        assert!(
            found.len() == 1 && found[0].contains("no test names DUCK-1"),
            "{found:?}"
        );
    }

    #[test]
    fn a_longer_number_is_another_invariant() {
        let found = errors(&[
            ("ARCHITECTURE.md", "| DUCK-1 | quacks |\n"),
            ("a/tests/a.rs", "// DUCK-12\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn the_page_of_a_protocol_lists_invariants_too() {
        let page = ("docs/protocol/duck.md", "| DUCK-1 | quacks |\n");
        let found = errors(&[
            ("ARCHITECTURE.md", "| GOOSE-1 | honks |\n"),
            page,
            ("a/tests/a.rs", "// GOOSE-1\n"),
        ]);
        assert!(found.len() == 1 && found[0].contains("DUCK-1"), "{found:?}");
    }

    #[test]
    fn the_document_must_be_there() {
        assert!(errors(&[])[0].contains("missing"));
    }
}
