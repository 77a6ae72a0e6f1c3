//! Each trap of `docs/protocol/traps.md` and each fault of `docs/protocol/reliability.md` names tests that exist, or says
//! why there is none. A test is a link whose text is its name and whose target is its file.

use super::{File, Findings};
use std::path::{Component, Path, PathBuf};

/// A page with a table of numbered rows.
struct Page {
    path: &'static str,
    /// What a row's number begins with; rows count from 1.
    letter: char,
    /// How a row begins its last cell when no test holds it.
    without: &'static str,
    /// Where a list from elsewhere is answered, its length: no row may be left out.
    rows: Option<usize>,
}

const PAGES: [Page; 3] = [
    Page {
        path: "docs/protocol/traps.md",
        letter: 'T',
        without: "Not run: ",
        rows: Some(30),
    },
    Page {
        path: "docs/protocol/traps.md",
        letter: 'V',
        without: "Not run: ",
        rows: Some(18),
    },
    Page {
        path: "docs/protocol/reliability.md",
        letter: 'R',
        without: "Open: ",
        rows: None,
    },
];

pub(super) fn check(files: &[File], findings: &mut Findings) {
    for page in &PAGES {
        page.check(files, findings);
    }
}

impl Page {
    fn check(&self, files: &[File], findings: &mut Findings) {
        let Self {
            path,
            letter,
            without,
            rows,
        } = self;
        let Some(page) = files.iter().find(|file| file.path == *path) else {
            findings.errors.push(format!("{path} is missing"));
            return;
        };
        let mut next = 1;
        let head = format!("| {letter}");
        for row in page.text.lines().filter(|line| line.starts_with(&head)) {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let id = cells.next().unwrap_or_default();
            if !id[1..].starts_with(|c: char| c.is_ascii_digit()) {
                continue; // The head.
            }
            let held_by = cells.nth(1).unwrap_or_default();
            if id != format!("{letter}{next}") {
                findings
                    .errors
                    .push(format!("{path}: {id} stands where {letter}{next} belongs"));
            }
            next += 1;
            let tests: Vec<_> = links(held_by).filter(|(name, _)| is_name(name)).collect();
            if tests.is_empty() && !held_by.starts_with(without) {
                findings.errors.push(format!(
                    "{path}: {id} names no test and does not begin with {without:?}"
                ));
            }
            for (name, target) in tests {
                let file = resolve(target);
                let has_it = files.iter().any(|other| {
                    Path::new(&other.path) == file
                        && ["fn", "def"]
                            .iter()
                            .any(|word| other.text.contains(&format!("{word} {name}(")))
                });
                if !has_it {
                    findings.errors.push(format!(
                        "{path}: {id} names {name}, which is not in {}",
                        file.display()
                    ));
                }
            }
        }
        if rows.is_some_and(|rows| next != rows + 1) {
            findings
                .errors
                .push(format!("{path} has {} rows, not {rows:?}", next - 1));
        }
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
    use super::{File, Findings, PAGES, Page};

    const PAGE: &Page = &PAGES[0];

    /// Traps that are not run, but for the first, which is held as it says.
    fn errors(held_by: &str) -> Vec<String> {
        let mut text = format!("| T1 | It quacks. | {held_by} |\n");
        for trap in 2..=PAGE.rows.unwrap() {
            text += &format!("| T{trap} | It swims. | Not run: no duck |\n");
        }
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let test = "#[test]\nfn a_duck_quacks() {}\n";
        let files = [file(PAGE.path, &text), file("link/src/duck.rs", test)];
        let mut findings = Findings::default();
        PAGE.check(&files, &mut findings);
        findings.errors
    }

    #[test]
    fn a_trap_names_a_test_that_exists_or_says_that_it_is_not_run() {
        assert_eq!(errors("[a_duck_quacks](../../link/src/duck.rs)"), [""; 0]);
        assert_eq!(errors("Not run: no duck"), [""; 0]);
        for wrong in [
            "somehow",
            "[a_goose_honks](../../link/src/duck.rs)",
            "[a_duck_quacks](../../link/src/goose.rs)",
            "[a_duck](../../link/src/duck.rs)",
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
