//! Licences of everything that is built in: each dependency's expression must be satisfiable by the
//! list in `deny.toml`. cargo-deny checks more, where it is installed; this needs nothing but cargo.

use super::Findings;
use crate::r#gen::root;
use anyhow::{Context, bail};
use serde_json::Value;
use std::process::Command;

/// A package and its licence expression, as its manifest says.
pub(super) type Licence = (String, String);

/// Asks cargo for every package of the lock file that this platform builds.
pub(super) fn licences() -> anyhow::Result<Vec<Licence>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .context("failed to start cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("failed to read cargo's metadata")?;
    let packages = metadata["packages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(packages
        .iter()
        .map(|package| (text(&package["name"]), text(&package["license"])))
        .collect())
}

/// The list under `[licenses]` in deny.toml.
pub(super) fn allowed(deny: &str) -> anyhow::Result<Vec<String>> {
    let list = deny
        .split_once("allow = [")
        .and_then(|(_, rest)| rest.split_once(']'));
    let Some((list, _)) = list else {
        bail!("deny.toml has no list `allow` of licences")
    };
    Ok(list
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect())
}

pub(super) fn check(licences: &[Licence], allowed: &[String], findings: &mut Findings) {
    for (name, expression) in licences {
        if !satisfiable(expression, allowed) {
            findings.errors.push(format!(
                "{name}: licence `{expression}` is not on the list in deny.toml: adding it is a decision"
            ));
        }
    }
}

/// Whether one of the ways to read an SPDX expression needs only licences of the list.
fn satisfiable(expression: &str, allowed: &[String]) -> bool {
    // `MIT/Apache-2.0` is how alternatives were written before SPDX.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let holds = alternatives(&mut words, allowed);
    holds && words.peek().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn alternatives(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut holds = together(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        holds |= together(words, allowed);
    }
    holds
}

fn together(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut holds = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        holds &= one(words, allowed);
    }
    holds
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let holds = alternatives(words, allowed);
        return words.next_if_eq(&")").is_some() && holds;
    }
    let mut licence = words.next().unwrap_or_default().to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", words.next().unwrap_or_default());
    }
    allowed.contains(&licence)
}

#[cfg(test)]
mod tests {
    use super::satisfiable;

    fn holds(expression: &str) -> bool {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
        satisfiable(expression, &allowed.map(str::to_owned))
    }

    #[test]
    fn one_allowed_alternative_is_enough() {
        assert!(holds("MIT"));
        assert!(holds("GPL-3.0 OR MIT"));
        assert!(holds("GPL-3.0/Apache-2.0"));
        assert!(holds("Apache-2.0 WITH LLVM-exception"));
        assert!(holds("(GPL-3.0 OR MIT) AND Apache-2.0"));
    }

    #[test]
    fn every_part_of_a_conjunction_is_needed() {
        assert!(!holds("MIT AND GPL-3.0"));
        assert!(!holds("GPL-3.0"));
        assert!(!holds("Apache-2.0 WITH Some-exception"));
        assert!(!holds(""));
        assert!(!holds("MIT )"));
    }
}
