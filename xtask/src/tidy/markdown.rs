//! Rules for Markdown: one title, relative links that lead somewhere, a changelog that parses.

use super::{File, Findings};
use crate::r#gen::root;

/// Headings that a release's changes are sorted under.
const KINDS: [&str; 6] = [
    "Added", "Changed", "Fixed", "Removed", "Security", "Upgrade",
];

pub(super) fn check(files: &[File], findings: &mut Findings) {
    for file in files.iter().filter(|file| file.extension() == "md") {
        // Templates of the forge begin with their own front matter instead of a title.
        let template = file.path.starts_with(".github/");
        let titles = prose(&file.text)
            .filter(|(_, line)| line.starts_with("# "))
            .count();
        if titles != 1 && !template {
            findings.errors.push(format!(
                "{}: {titles} titles (`# `), there must be one",
                file.path
            ));
        }
        for (number, line) in prose(&file.text) {
            for target in links(line).filter(|target| is_relative(target)) {
                if !leads_somewhere(&file.path, target) {
                    findings.errors.push(format!(
                        "{}:{number}: the link {target} leads nowhere",
                        file.path
                    ));
                }
            }
        }
        if file.path == "CHANGELOG.md" {
            findings.errors.extend(changelog(&file.text));
        }
    }
}

/// Lines outside code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((index + 1, line))
    })
}

/// Targets of `[text](target)` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
}

fn is_relative(target: &str) -> bool {
    !target.contains("://") && !target.starts_with('#') && !target.starts_with("mailto:")
}

fn leads_somewhere(from: &str, target: &str) -> bool {
    let path = target.split('#').next().unwrap_or_default();
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    root().join(folder).join(path).exists()
}

/// Complaints about headings that a release tool could not read.
fn changelog(text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut releases = 0;
    for (number, line) in prose(text) {
        let complaint = if let Some(title) = line.strip_prefix("## ") {
            releases += 1;
            (!is_release(title))
                .then_some("a release is `## [Unreleased]` or `## [1.2.3] - 2026-11-21`")
        } else if let Some(kind) = line.strip_prefix("### ") {
            (!KINDS.contains(&kind))
                .then_some("changes are Added, Changed, Fixed, Removed, Security or Upgrade")
        } else {
            None
        };
        complaints.extend(complaint.map(|what| format!("CHANGELOG.md:{number}: {what}")));
    }
    if releases == 0 {
        complaints.push("CHANGELOG.md: no release".to_owned());
    }
    complaints
}

fn is_release(title: &str) -> bool {
    if title == "[Unreleased]" {
        return true;
    }
    let Some((version, date)) = title
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] - "))
    else {
        return false;
    };
    let numbers = |text: &str, separator: char, count: usize| {
        let parts: Vec<&str> = text.split(separator).collect();
        parts.len() == count
            && parts
                .iter()
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    numbers(version, '.', 3) && numbers(date, '-', 3)
}

#[cfg(test)]
mod tests {
    use super::{File, Findings, changelog, check};

    fn errors(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check(
            &[File {
                path: path.to_owned(),
                text: text.to_owned(),
            }],
            &mut findings,
        );
        findings.errors
    }

    #[test]
    fn one_title_and_living_links_pass() {
        assert!(
            errors(
                "docs/x.md",
                "# X\n[root](../Cargo.toml) [web](https://example.com) [here](#x)\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn a_title_inside_code_is_none() {
        assert!(errors("x.md", "# X\n```\n# a comment\n[dead](nowhere)\n```\n").is_empty());
    }

    #[test]
    fn missing_titles_and_dead_links_are_found() {
        assert!(errors("x.md", "text\n")[0].contains("0 titles"));
        assert!(errors("x.md", "# X\n# Y\n")[0].contains("2 titles"));
        assert!(errors("x.md", "# X\n[a](no/such/file.md)\n")[0].contains("no/such/file.md"));
    }

    #[test]
    fn the_changelog_headings_parse_or_are_named() {
        assert!(changelog("## [Unreleased]\n### Added\n- x\n## [0.1.0] - 2026-11-21\n").is_empty());
        assert_eq!(changelog("## 0.1.0\n### Misc\n").len(), 2);
        assert_eq!(changelog("# Changelog\n").len(), 1);
    }
}
