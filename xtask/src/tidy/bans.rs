//! Packages that `deny.toml` bans, in case cargo-deny is not installed: none may be built in.

use super::Findings;

/// The names under `[bans]`: `{ crate = "name", reason = "…" }`, one a line.
pub(super) fn banned(deny: &str) -> Vec<String> {
    let names = deny
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{ crate = \"")?.split('"').next());
    names.map(str::to_owned).collect()
}

pub(super) fn check<'a>(
    packages: impl Iterator<Item = &'a str>,
    banned: &[String],
    findings: &mut Findings,
) {
    if banned.is_empty() {
        findings
            .errors
            .push("deny.toml bans nothing that tidy can read".to_owned());
    }
    for package in packages.filter(|package| banned.iter().any(|name| name == package)) {
        findings.errors.push(format!(
            "{package} is built in, which deny.toml bans: it says why"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::{Findings, banned, check};

    #[test]
    fn a_banned_package_is_found_and_its_namesakes_are_not() {
        let deny = "[bans]\ndeny = [\n    { crate = \"serde_yaml\", reason = \"old\" },\n]\n";
        let mut findings = Findings::default();
        let packages = ["serde", "serde_yaml", "serde_yaml_ng"];
        check(packages.into_iter(), &banned(deny), &mut findings);
        assert_eq!(findings.errors.len(), 1, "{:?}", findings.errors);
        assert!(findings.errors[0].starts_with("serde_yaml is"));
    }

    #[test]
    fn a_list_that_cannot_be_read_is_found() {
        let mut findings = Findings::default();
        check(
            ["serde"].into_iter(),
            &banned("[bans]\ndeny = []\n"),
            &mut findings,
        );
        assert_eq!(findings.errors.len(), 1);
    }
}
