//! Rules for single files, line by line.

use super::{File, Findings};

/// From here on a file probably holds two ideas.
const LONG_FILE_LINES: usize = 600;

/// Files whose blanks and tabs matter to nobody but us.
const OURS: [&str; 11] = [
    "rs", "py", "pyi", "yaml", "yml", "toml", "md", "sh", "json", "tpl", "proto",
];

/// Words that are not left behind. Written in halves, so that this file passes.
const MARKERS: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("db", "g!("),
    concat!("to", "do!("),
];

/// Folders that exist on one machine only.
const MACHINE_PATHS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/tmp/", "gobin"),
    concat!("/ho", "me/"),
];

/// Hosts of package registries: which one is used is the machine's business.
const REGISTRIES: [&str; 9] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("deb.debian", ".org"),
    concat!("ghcr", ".io"),
    concat!("quay", ".io"),
    concat!("registry.k8s", ".io"),
];

/// The one whose images a chart names: a cluster pulls them, not this machine.
const CHART_REGISTRY: (&str, &str) = ("helm/", concat!("registry.k8s", ".io"));

/// Widest line of a comment, as rustfmt keeps code.
const COMMENT_WIDTH: usize = 100;

/// Where comments keep to it.
const NARROW: [&str; 7] = [
    "core/scheduler/",
    "core/topology/",
    "crds/",
    "daemon/",
    "device-plugin/",
    "launcher/",
    "operator/",
];

/// Written by cargo, go and lawyers.
const EXEMPT: [&str; 2] = ["Cargo.lock", "LICENSE"];

/// Where actions of others are named.
const WORKFLOWS: &str = ".github/workflows/";

/// Returns true if a line of a workflow names an action by anything other than a commit with the
/// version behind it. A tag can be moved to other code.
fn is_action_by_tag(line: &str) -> bool {
    let Some((_, action)) = line.split_once("uses: ") else {
        return false;
    };
    let is_commit = |name: &str| name.len() == 40 && name.bytes().all(|b| b.is_ascii_hexdigit());
    let named = action
        .split_once('@')
        .and_then(|(_, name)| name.split_once(" # v"));
    !named.is_some_and(|(name, _version)| is_commit(name))
}

pub(super) fn check(file: &File, findings: &mut Findings) {
    let File { path, text } = file;
    if EXEMPT.contains(&path.as_str()) || path.ends_with("go.sum") || path.ends_with("go.mod") {
        return;
    }
    let mut error =
        |line: usize, what: String| findings.errors.push(format!("{path}:{line}: {what}"));
    if file.extension() == "rs" && !text.starts_with("//!") {
        error(
            1,
            "start with `//!`: what the file owns, and what it leaves to others".to_owned(),
        );
    }
    let is_narrow = NARROW.iter().any(|folder| path.starts_with(folder));
    let is_narrow = is_narrow && file.extension() == "rs" && !path.contains("/pb/");
    for (number, line) in text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
    {
        if is_narrow && line.trim_start().starts_with("//") && line.chars().count() > COMMENT_WIDTH
        {
            error(
                number,
                format!("comment wider than {COMMENT_WIDTH} columns: wrap it"),
            );
        }
        if OURS.contains(&file.extension()) {
            if line.ends_with([' ', '\t', '\r']) {
                error(number, "blank at the end of the line".to_owned());
            }
            if line.contains('\t') {
                error(number, "tab: indent with spaces".to_owned());
            }
        }
        for marker in MARKERS.iter().filter(|marker| is_word(line, marker)) {
            error(
                number,
                format!("leftover {marker}: do it, or say why it stays as it is"),
            );
        }
        for place in MACHINE_PATHS.iter().filter(|place| line.contains(**place)) {
            error(number, format!("{place} exists on one machine only"));
        }
        if path.starts_with(WORKFLOWS) && is_action_by_tag(line) {
            let what = "an action by its tag: name the tag's commit, and `# vX.Y.Z` behind it";
            error(number, what.to_owned());
        }
        for host in REGISTRIES.iter().filter(|host| line.contains(**host)) {
            let (folder, pulled) = CHART_REGISTRY;
            if *host == pulled && path.starts_with(folder) {
                continue;
            }
            error(
                number,
                format!("{host}: which registry is used is the machine's business"),
            );
        }
    }
    let is_data = file.path.contains("/tests/data/");
    if OURS.contains(&file.extension()) && !is_data && !text.is_empty() && !text.ends_with('\n') {
        error(
            text.lines().count(),
            "no line end at the end of the file".to_owned(),
        );
    }
    if path.ends_with("Cargo.toml") && !text.contains("license") {
        error(
            1,
            "no licence: add `license.workspace = true` under [package]".to_owned(),
        );
    }
    if path.ends_with("Cargo.toml")
        && text.contains("[package]")
        && !text.contains("[lints]\nworkspace = true\n")
    {
        error(
            1,
            "no lints: add `workspace = true` under [lints]".to_owned(),
        );
    }
    let lines = text.lines().count();
    if matches!(file.extension(), "rs" | "py") && lines > LONG_FILE_LINES {
        findings.warnings.push(format!(
            "{path} has {lines} lines: look for the second idea in it"
        ));
    }
}

/// Whether the marker stands there as a word, not inside a longer one.
fn is_word(line: &str, marker: &str) -> bool {
    line.match_indices(marker).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + marker.len()..].chars().next();
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !joins(before) && (marker.ends_with('(') || !joins(after))
    })
}

#[cfg(test)]
mod tests {
    use super::{COMMENT_WIDTH, File, Findings, check};

    fn errors(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check(
            &File {
                path: path.to_owned(),
                text: text.to_owned(),
            },
            &mut findings,
        );
        findings.errors
    }

    #[test]
    fn a_clean_file_has_no_finding() {
        assert!(errors("a.rs", "//! Owns nothing.\n\nfn main() {}\n").is_empty());
        assert!(errors("a.md", "# A title\n").is_empty());
    }

    #[test]
    fn each_rule_finds_its_own_breach() {
        let found = |path: &str, text: &str, expected: &str| {
            let errors = errors(path, text);
            assert!(
                errors.len() == 1 && errors[0].contains(expected),
                "{expected}: {errors:?}"
            );
        };
        let workflow = ".github/workflows/ci.yaml";
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let by_commit = format!("      - uses: actions/checkout@{commit} # v4.4.0\n");
        assert!(errors(workflow, &by_commit).is_empty());
        for action in ["actions/checkout@v4", &format!("actions/checkout@{commit}")] {
            found(workflow, &format!("      - uses: {action}\n"), "by its tag");
        }
        found("a.rs", "fn main() {}\n", "start with `//!`");
        let wide = format!("//! {}\n", "x".repeat(COMMENT_WIDTH));
        found("operator/src/a.rs", &wide, "wrap it");
        found("a.py", "x = 1 \n", "blank at the end");
        found("a.yaml", "a:\tb\n", "tab");
        found("a.md", "# A title", "no line end");
        found("a.md", concat!("FIX", "ME later\n"), "leftover");
        found("a.sh", concat!("cd /ro", "ot/x\n"), "one machine");
        found(
            "a.toml",
            concat!("url = \"https://crates", ".io\"\n"),
            "registry",
        );
        let lints = "[lints]\nworkspace = true\n";
        found("x/Cargo.toml", &format!("[package]\n{lints}"), "licence");
        let licence = "[package]\nlicense.workspace = true\n";
        found("x/Cargo.toml", licence, "no lints");
    }

    #[test]
    fn a_chart_names_the_registry_that_clusters_pull_from() {
        let line = concat!("image: registry.k8s", ".io/etcd\n");
        assert!(errors("helm/values.yaml", line).is_empty());
        assert_eq!(errors("e2e/values.yaml", line).len(), 1);
    }

    #[test]
    fn a_marker_inside_a_word_is_no_marker() {
        assert!(errors("a.md", "METHODS and HACKERS\n").is_empty());
    }

    #[test]
    fn a_long_file_is_a_warning() {
        let mut findings = Findings::default();
        let text = "//! Long.\n".to_owned() + &"\n".repeat(600);
        check(
            &File {
                path: "a.rs".to_owned(),
                text,
            },
            &mut findings,
        );
        assert_eq!((findings.errors.len(), findings.warnings.len()), (0, 1));
    }
}
