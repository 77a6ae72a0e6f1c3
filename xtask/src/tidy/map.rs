//! The code map of ARCHITECTURE.md: a row for every package and every folder at the top, and no row for a
//! folder that is gone.

use super::{File, Findings};
use std::collections::BTreeSet;

const DOCUMENT: &str = "ARCHITECTURE.md";

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let document = files.iter().find(|file| file.path == DOCUMENT);
    // That it is missing is found elsewhere.
    let Some(document) = document else { return };
    let rows: BTreeSet<&str> = document.text.lines().filter_map(row).collect();
    let below = |folder: &str, path: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    for row in &rows {
        if !files.iter().any(|file| below(row, &file.path)) {
            findings
                .errors
                .push(format!("{DOCUMENT}: its map has {row}, which is no folder"));
        }
    }
    let packages = files
        .iter()
        .filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
    let top = files.iter().filter_map(|file| file.path.split_once('/'));
    // A folder that only holds others needs no row of its own.
    let top = top
        .map(|(folder, _)| folder)
        .filter(|folder| !rows.iter().any(|row| below(folder, row)));
    let wanted: BTreeSet<&str> = packages.chain(top).collect();
    for folder in wanted.difference(&rows) {
        findings.errors.push(format!(
            "{DOCUMENT}: its map has no row for {folder}: what is it, where does one start reading?"
        ));
    }
}

/// The folder of a row ``| `core/topology` | …``.
fn row(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?
        .split_once("` | ")
        .map(|(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::{DOCUMENT, File, Findings, check};

    fn errors(map: &str, paths: &[&str]) -> Vec<String> {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut files = vec![file(DOCUMENT, map)];
        files.extend(paths.iter().map(|path| file(path, "")));
        let mut findings = Findings::default();
        check(&files, &mut findings);
        findings.errors
    }

    #[test]
    fn a_map_of_every_package_and_folder_passes() {
        let map = "| `core/a` | a |\n| `docs` | texts |\n| `.ci` | checks |\n";
        let paths = [
            "core/a/Cargo.toml",
            "core/clippy.toml",
            "docs/x.md",
            ".ci/run",
            "README.md",
        ];
        assert_eq!(errors(map, &paths), Vec::<String>::new());
    }

    #[test]
    fn a_package_or_a_folder_without_a_row_is_found() {
        let found = errors(
            "| `core/a` | a |\n",
            &["core/a/Cargo.toml", "core/b/Cargo.toml"],
        );
        assert!(found.len() == 1 && found[0].contains("core/b"), "{found:?}");
        let found = errors("| `docs` | texts |\n", &["docs/x.md", ".ci/run"]);
        assert!(found.len() == 1 && found[0].contains(".ci"), "{found:?}");
    }

    #[test]
    fn a_row_for_what_is_gone_is_found() {
        let found = errors("| `doc` | texts |\n| `docs` | texts |\n", &["docs/x.md"]);
        assert!(
            found.len() == 1 && found[0].contains("has doc,"),
            "{found:?}"
        );
    }
}
