//! `docs/reference.md`: every flag and every metric, taken from where they are declared, so that the
//! page can be neither incomplete nor out of date. Reads two shapes of source: fields with
//! `#[arg(long, …)]` in `args.rs`, and `registry.<kind>("name", "help", &["label"])` in `metrics.rs`.

use crate::r#gen::root;
use anyhow::{Context, bail};
use std::fmt::Write as _;
use std::fs;

/// The page, from the repository's root.
const PAGE: &str = "docs/reference.md";

/// Whose flags and metrics: folder, and what the section says.
const PROGRAMS: [(&str, &str); 4] = [
    ("daemon", "Every program has these."),
    ("operator", "The Deployment `fireflyer-operator`."),
    ("device-plugin", "The DaemonSet `fireflyer-device-plugin`."),
    (
        "hfreduce-sidecar",
        "The container `hfreduce` of every job's pod.",
    ),
];

/// Writes the page, or with `check` compares it.
pub(crate) fn page(check: bool) -> anyhow::Result<()> {
    let mut text = String::from(
        "# Flags and metrics\n\n\
         Made by `cargo xtask gen` from the declarations in the code. Do not edit.\n",
    );
    for (folder, about) in PROGRAMS {
        write!(text, "\n## {folder}\n\n{about}\n")?;
        if let Some(source) = source(folder, "args.rs")? {
            write_flags(&mut text, &flags(&source))?;
        }
        if let Some(source) = source(folder, "metrics.rs")? {
            write_metrics(&mut text, &metrics(&source))?;
        }
    }
    let path = root().join(PAGE);
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if check {
        bail!("{PAGE} is stale: run `cargo xtask gen`");
    }
    fs::write(&path, text).with_context(|| format!("failed to write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// The declarations of a file, without its tests; nothing where a program has no such file.
fn source(folder: &str, file: &str) -> anyhow::Result<Option<String>> {
    let path = root().join(folder).join("src").join(file);
    if !path.is_file() {
        return Ok(None);
    }
    let text =
        fs::read_to_string(&path).with_context(|| format!("failed to read {folder}/src/{file}"))?;
    Ok(text.split("#[cfg(test)]").next().map(str::to_owned))
}

#[derive(Debug, PartialEq, Eq)]
struct Flag {
    /// What the flag's group is for, from the documentation of its struct.
    group: String,
    name: String,
    variable: String,
    default: String,
    help: String,
}

fn flags(source: &str) -> Vec<Flag> {
    let mut flags = Vec::new();
    let (mut help, mut attribute, mut group) = (String::new(), String::new(), String::new());
    let mut open = 0_i32;
    for line in source.lines().map(str::trim) {
        if open > 0 || line.starts_with("#[arg(") {
            attribute.push_str(line);
            attribute.push(' ');
            open += depth(line);
        } else if let Some(text) = line.strip_prefix("/// ") {
            help = if help.is_empty() {
                text.to_owned()
            } else {
                format!("{help} {text}")
            };
        } else if line.starts_with("#[") || line.is_empty() {
            // Other attributes stand between a field and its documentation.
        } else {
            if line.contains("struct ") {
                group = std::mem::take(&mut help);
            } else if let Some((field, _)) = line
                .strip_prefix("pub ")
                .and_then(|rest| rest.split_once(':'))
            {
                let words = attribute.trim_start_matches("#[arg(").trim_start();
                if words.starts_with("long") && !words.contains("hide = true") {
                    flags.push(Flag {
                        group: group.clone(),
                        name: format!("--{}", field.replace('_', "-")),
                        variable: literal(words, "env = ").unwrap_or_default(),
                        default: default(words),
                        help: help.replace('|', "\\|"),
                    });
                }
            }
            help.clear();
            attribute.clear();
        }
    }
    flags
}

/// How many parentheses a line leaves open, text in quotes aside.
fn depth(line: &str) -> i32 {
    let mut quoted = false;
    line.chars().fold(0, |depth, c| {
        quoted ^= c == '"';
        match c {
            '(' if !quoted => depth + 1,
            ')' if !quoted => depth - 1,
            _ => depth,
        }
    })
}

/// The text in quotes directly after `key`.
fn literal(words: &str, key: &str) -> Option<String> {
    let rest = words.split_once(key)?.1.strip_prefix('"')?;
    Some(rest.split('"').next()?.to_owned())
}

fn default(words: &str) -> String {
    match literal(words, "default_value = ") {
        Some(text) => format!("`{text}`"),
        None if words.contains("default_value") => "built in".to_owned(),
        None => String::new(),
    }
}

fn write_flags(text: &mut String, flags: &[Flag]) -> std::fmt::Result {
    // One group needs no heading of its own.
    let several = flags.iter().any(|flag| flag.group != flags[0].group);
    let mut group = None;
    for flag in flags {
        if group != Some(&flag.group) {
            group = Some(&flag.group);
            if several {
                write!(text, "\n{}\n", flag.group)?;
            }
            text.push_str("\n| Flag | Variable | Default | Meaning |\n");
            text.push_str("| --- | --- | --- | --- |\n");
        }
        let variable = match flag.variable.as_str() {
            "" => String::new(),
            name => format!("`{name}`"),
        };
        writeln!(
            text,
            "| `{}` | {variable} | {} | {} |",
            flag.name, flag.default, flag.help
        )?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Metric {
    name: String,
    kind: &'static str,
    labels: String,
    help: String,
}

fn metrics(source: &str) -> Vec<Metric> {
    let kinds = [
        ("counter", "counter"),
        ("gauge", "gauge"),
        ("float", "gauge"),
        ("histogram", "histogram"),
    ];
    let mut metrics = Vec::new();
    for call in source.split("registry").skip(1) {
        // `registry.counters(` or `registry\n    .gauges(`.
        let Some((method, arguments)) = call
            .trim_start()
            .strip_prefix('.')
            .and_then(|rest| rest.split_once('('))
        else {
            continue;
        };
        let Some((_, kind)) = kinds
            .iter()
            .find(|(name, _)| method.trim_end_matches('s') == *name)
        else {
            continue;
        };
        let arguments = arguments.split(")?").next().unwrap_or_default();
        let mut texts = arguments.split('"').skip(1).step_by(2).map(str::to_owned);
        let (Some(name), Some(help)) = (texts.next(), texts.next()) else {
            continue;
        };
        if name.starts_with("fireflyer_") {
            metrics.push(Metric {
                name,
                kind,
                help,
                labels: texts.collect::<Vec<_>>().join(", "),
            });
        }
    }
    metrics
}

fn write_metrics(text: &mut String, metrics: &[Metric]) -> std::fmt::Result {
    if metrics.is_empty() {
        return Ok(());
    }
    text.push_str("\n| Metric | Kind | Labels | Meaning |\n| --- | --- | --- | --- |\n");
    for Metric {
        name,
        kind,
        labels,
        help,
    } in metrics
    {
        writeln!(text, "| `{name}` | {kind} | {labels} | {help} |")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{flags, metrics};

    #[test]
    fn flags_are_read_with_their_variable_default_and_help() {
        let source = r#"
            /// For running.
            pub struct Args {
                /// Where to
                /// listen.
                #[arg(
                    long,
                    env = "LISTEN",
                    default_value = "0.0.0.0:1"
                )]
                pub listen_here: String,
                /// Hidden.
                #[arg(long, hide = true)]
                pub hidden: String,
                /// Not a flag.
                #[command(flatten)]
                pub daemon: Daemon,
                /// Computed.
                #[arg(long, default_value_t = f(1))]
                pub size: u32,
            }
        "#;
        let found: Vec<_> = flags(source)
            .into_iter()
            .map(|f| (f.group, f.name, f.variable, f.default, f.help))
            .collect();
        let expected = [
            (
                "For running.",
                "--listen-here",
                "LISTEN",
                "`0.0.0.0:1`",
                "Where to listen.",
            ),
            ("For running.", "--size", "", "built in", "Computed."),
        ];
        let own = |t: (&str, &str, &str, &str, &str)| {
            (
                t.0.to_owned(),
                t.1.to_owned(),
                t.2.to_owned(),
                t.3.to_owned(),
                t.4.to_owned(),
            )
        };
        assert_eq!(found, expected.map(own));
    }

    #[test]
    fn metrics_are_read_with_their_kind_labels_and_help() {
        let source = r#"
            a: registry.counters(
                "fireflyer_a_total",
                "A's so far.",
                &["kind", "outcome"],
            )?,
            b: registry.gauge("fireflyer_b", "B's now.")?,
            c: registry.other("fireflyer_c", "No metric.")?,
        "#;
        let found: Vec<_> = metrics(source)
            .into_iter()
            .map(|m| (m.name, m.kind, m.labels, m.help))
            .collect();
        let own = |n: &str, k, l: &str, h: &str| (n.to_owned(), k, l.to_owned(), h.to_owned());
        assert_eq!(
            found,
            [
                own(
                    "fireflyer_a_total",
                    "counter",
                    "kind, outcome",
                    "A's so far."
                ),
                own("fireflyer_b", "gauge", "", "B's now."),
            ]
        );
    }
}
