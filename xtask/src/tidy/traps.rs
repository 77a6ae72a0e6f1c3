//! Each trap of `docs/protocol/traps.md` names tests that exist, or says that it is not run. A test is a link whose text is its
//! name and whose target is its file.

use super::{File, Findings};
use std::path::{Component, Path, PathBuf};

const PAGE: &str = "docs/protocol/traps.md";
/// Traps are numbered from 1.
const TRAPS: usize = 30;

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        findings.errors.push(format!("{PAGE} is missing"));
        return;
    };
    let mut next = 1;
    for row in page.text.lines().filter(|line| line.starts_with("| T")) {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let id = cells.next().unwrap_or_default();
        if !id[1..].starts_with(|c: char| c.is_ascii_digit()) {
            continue; // The head.
        }
        let held_by = cells.nth(1).unwrap_or_default();
        if id != format!("T{next}") {
            findings
                .errors
                .push(format!("{PAGE}: {id} stands where T{next} belongs"));
        }
        next += 1;
        let tests: Vec<(&str, &str)> = links(held_by).filter(|(name, _)| is_name(name)).collect();
        if tests.is_empty() && !held_by.starts_with("Not run: ") {
            findings.errors.push(format!(
                "{PAGE}: {id} names no test and does not begin with \"Not run: \""
            ));
        }
        for (name, target) in tests {
            let path = resolve(target);
            let has_it = files.iter().any(|file| {
                Path::new(&file.path) == path
                    && ["fn", "def"]
                        .iter()
                        .any(|word| file.text.contains(&format!("{word} {name}(")))
            });
            if !has_it {
                findings.errors.push(format!(
                    "{PAGE}: {id} names {name}, which is not in {}",
                    path.display()
                ));
            }
        }
    }
    if next != TRAPS + 1 {
        findings
            .errors
            .push(format!("{PAGE} has {} traps, not {TRAPS}", next - 1));
    }
}

/// Text and target of each link of a line.
fn links(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split('[').skip(1).filter_map(|rest| {
        let (text, rest) = rest.split_once("](")?;
        Some((text, rest.split_once(')')?.0))
    })
}

/// Whether a link's text is a function's name and not prose or a file.
fn is_name(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A target relative to the page, from the root.
fn resolve(target: &str) -> PathBuf {
    let mut path = PathBuf::from("docs/protocol");
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(_)
            | Component::CurDir
            | Component::RootDir
            | Component::Prefix(_) => {
                path.push(part);
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::{File, Findings, PAGE, TRAPS, check};

    /// Traps that are not run, but for the first, which is held as it says.
    fn errors(held_by: &str) -> Vec<String> {
        let mut text = format!("| T1 | It quacks. | {held_by} |\n");
        for trap in 2..=TRAPS {
            text += &format!("| T{trap} | It swims. | Not run: no duck |\n");
        }
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let test = "#[test]\nfn a_duck_quacks() {}\n";
        let files = [file(PAGE, &text), file("wire/src/duck.rs", test)];
        let mut findings = Findings::default();
        check(&files, &mut findings);
        findings.errors
    }

    #[test]
    fn a_trap_names_a_test_that_exists_or_says_that_it_is_not_run() {
        assert_eq!(errors("[a_duck_quacks](../../wire/src/duck.rs)"), [""; 0]);
        assert_eq!(errors("Not run: no duck"), [""; 0]);
        for wrong in [
            "somehow",
            "[a_goose_honks](../../wire/src/duck.rs)",
            "[a_duck_quacks](../../wire/src/goose.rs)",
            "[a_duck](../../wire/src/duck.rs)",
        ] {
            assert_eq!(errors(wrong).len(), 1, "{wrong}");
        }
    }

    #[test]
    fn no_trap_is_left_out() {
        let found = errors("Not run: no duck |\n| T3 | Again. | Not run: no duck");
        assert!(!found.is_empty());
    }
}
