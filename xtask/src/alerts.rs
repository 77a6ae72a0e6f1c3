//! The alerts: reads the chart's table of them and writes the one in `docs/operations.md`. What an alert looks like in a
//! cluster is the chart's template.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use crate::r#gen::root;

/// The only list of alerts; the chart's template reads it, too.
const TABLE: &str = "helm/fireflyer/alerts.yaml";
const PAGE: &str = "docs/operations.md";
/// What is between these lines of the page is made of the table.
const BEGIN: &str =
    "<!-- Made by `cargo xtask gen` from helm/fireflyer/alerts.yaml. Do not edit. -->\n";
const END: &str = "<!-- End of what is made. -->\n";

/// A row of the table.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    expr: String,
    /// How long the expression has to hold; empty means not at all.
    duration: String,
    severity: String,
    summary: String,
    action: String,
    /// Below `docs/`, with a heading.
    page: String,
}

/// Writes the alerts into the page, or with `check` compares them.
pub(crate) fn page(check: bool) -> Result<()> {
    let read = |file: &str| {
        fs::read_to_string(root().join(file)).with_context(|| format!("failed to read {file}"))
    };
    let old = read(PAGE)?;
    let rest = old.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = rest.with_context(|| format!("failed to find {BEGIN:?} in {PAGE}"))?;
    let table = markdown(&alerts(&read(TABLE)?)?);
    let new = format!("{before}{BEGIN}{table}{END}{after}");
    if new == old {
        return Ok(());
    }
    if check {
        bail!("the alerts in {PAGE} are stale: run `cargo xtask gen`");
    }
    fs::write(root().join(PAGE), new).with_context(|| format!("failed to write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

fn markdown(alerts: &[Alert]) -> String {
    let mut text =
        "\n| Alert | Expression | For | Means | Do |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for alert in alerts {
        let Alert {
            name,
            expr,
            duration,
            severity,
            summary,
            action,
            page,
        } = alert;
        let _ = writeln!(
            text,
            "| `{name}` ({severity}) | `{expr}` | {duration} | {summary} | {action} [More]({page}) |"
        );
    }
    text + "\n"
}

/// Reads the table. It takes so little of YAML that it needs no parser, and refuses what YAML would read otherwise.
fn alerts(text: &str) -> Result<Vec<Alert>> {
    let mut alerts: Vec<Alert> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = || format!("{TABLE}:{}", index + 1);
        let field = if let Some(field) = line.strip_prefix("- ") {
            alerts.push(Alert::default());
            field
        } else {
            line.strip_prefix("  ").with_context(at)?
        };
        let (key, value) = field.split_once(": ").with_context(at)?;
        let alert = alerts.last_mut().with_context(at)?;
        let field = match key {
            "name" => &mut alert.name,
            "expr" => &mut alert.expr,
            "for" => &mut alert.duration,
            "severity" => &mut alert.severity,
            "summary" => &mut alert.summary,
            "action" => &mut alert.action,
            "page" => &mut alert.page,
            other => bail!("{}: there is no field {other}", at()),
        };
        ensure!(field.is_empty(), "{}: {key} is there twice", at());
        *field = value_of(value).with_context(at)?.to_owned();
    }
    for alert in &alerts {
        let Alert {
            name,
            expr,
            duration: _,
            severity,
            summary,
            action,
            page,
        } = alert;
        let lacks = [name, expr, severity, summary, action, page]
            .into_iter()
            .any(String::is_empty);
        ensure!(!lacks, "{TABLE}: a field is missing: {alert:?}");
    }
    Ok(alerts)
}

/// A value in single quotes, or one that is the same with and without quotes.
fn value_of(value: &str) -> Result<&str> {
    let quoted = value
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''));
    let is_plain = value.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !value.contains(": ")
        && !value.contains(" #")
        && !value.ends_with([':', ' ']);
    let text = quoted.unwrap_or(value);
    ensure!(
        (quoted.is_some() || is_plain) && !text.contains(['\'', '|']),
        "put single quotes around the value; it may hold neither them nor |"
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use super::{Alert, TABLE, alerts, markdown};
    use crate::r#gen::root;

    fn read(file: &str) -> String {
        fs::read_to_string(root().join(file)).unwrap()
    }

    fn ours() -> Vec<Alert> {
        let alerts = alerts(&read(TABLE)).unwrap();
        assert!(alerts.len() >= 10, "{} alerts", alerts.len());
        alerts
    }

    /// Names and labels of the metrics in the page of flags and metrics.
    fn metrics() -> BTreeMap<String, Vec<String>> {
        let page = read("docs/reference.md");
        let rows = page.lines().filter_map(|line| {
            let columns: Vec<&str> = line.strip_prefix("| `")?.split(" | ").collect();
            let [name, kind, labels, _] = columns[..] else {
                return None;
            };
            let labels = labels.split(", ").map(|label| label.trim().to_owned());
            let row = (name.trim_end_matches('`').to_owned(), labels.collect());
            ["counter", "gauge"].contains(&kind).then_some(row)
        });
        rows.collect()
    }

    /// What is wrong with the metrics of an expression and their labels.
    fn faults(expr: &str, metrics: &BTreeMap<String, Vec<String>>) -> Vec<String> {
        let mut faults = Vec::new();
        let mut known = Vec::new();
        let mut used: Vec<&str> = Vec::new();
        for (at, _) in expr.match_indices("fireflyer_") {
            let rest = &expr[at..];
            let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
            match metrics.get(name) {
                Some(labels) => known.extend(labels),
                None => faults.push(format!("no metric {name}")),
            }
            let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let matchers = matchers.into_iter().flat_map(|(text, _)| text.split(','));
            used.extend(matchers.filter_map(|matcher| matcher.split(['=', '!']).next()));
        }
        if expr.matches("fireflyer_").count() == 0 {
            faults.push("no metric of ours".to_owned());
        }
        let groups = expr.split("by (").skip(1);
        used.extend(groups.flat_map(|rest| rest.split(')').next().unwrap_or_default().split(", ")));
        let unknown = used
            .iter()
            .filter(|label| !known.iter().any(|of| of == *label));
        faults.extend(unknown.map(|label| format!("no label {label}")));
        faults
    }

    #[test]
    fn alerts_look_at_metrics_and_labels_that_exist() {
        let metrics = metrics();
        for alert in ours() {
            let faults = faults(&alert.expr, &metrics);
            assert!(faults.is_empty(), "{}: {}", alert.name, faults.join(", "));
        }
    }

    #[test]
    fn a_metric_or_label_that_does_not_exist_is_named() {
        let metrics = metrics();
        let of = |expr| faults(expr, &metrics);
        assert_eq!(of("fireflyer_leaders > 0"), ["no metric fireflyer_leaders"]);
        assert_eq!(of("fireflyer_jobs{state=\"x\"} > 0"), ["no label state"]);
        assert_eq!(of("sum by (zone) (fireflyer_nodes)"), ["no label zone"]);
        assert_eq!(of("vector(1)"), ["no metric of ours"]);
    }

    #[test]
    fn names_are_unique_and_severities_known() {
        let mut names = BTreeSet::new();
        for alert in ours() {
            assert!(
                ["critical", "warning"].contains(&&*alert.severity),
                "{alert:?}"
            );
            assert!(alert.name.starts_with("Fireflyer"), "{alert:?}");
            assert!(
                alert.summary.ends_with('.') && alert.action.ends_with('.'),
                "{alert:?}"
            );
            assert!(
                names.insert(alert.name.clone()),
                "{} is there twice",
                alert.name
            );
        }
    }

    #[test]
    fn each_alert_leads_to_a_heading_that_exists() {
        for alert in ours() {
            let (file, heading) = alert.page.split_once('#').expect("a heading");
            let page = read(&format!("docs/{file}"));
            let mut headings = page.lines().filter_map(|line| line.strip_prefix("## "));
            let anchor = |title: &str| {
                let letters = title.to_lowercase().replace(' ', "-");
                letters.replace(
                    |letter: char| !letter.is_alphanumeric() && letter != '-',
                    "",
                )
            };
            assert!(
                headings.any(|title| anchor(title) == heading),
                "{}",
                alert.page
            );
        }
    }

    #[test]
    fn a_row_of_the_table_is_a_row_of_the_page() {
        let row = "# why\n\n- name: A\n  expr: 'x > 1'\n  for: 1m\n  severity: warning\n  summary: S.\n  action: Do.\n  page: p.md#h\n";
        let text = markdown(&alerts(row).unwrap());
        let last = "| `A` (warning) | `x > 1` | 1m | S. | Do. [More](p.md#h) |\n\n";
        assert!(text.ends_with(last), "{text}");
    }

    #[test]
    fn what_yaml_would_read_otherwise_is_refused() {
        let refused = |text: &str| alerts(text).unwrap_err().to_string();
        let row = "- name: A\n  expr: x\n  severity: s\n  summary: S\n  action: D\n";
        assert!(refused(row).contains("a field is missing"));
        assert!(refused("- title: A\n").contains("there is no field title"));
        assert!(refused("- name: A\n  name: B\n").contains("twice"));
        for value in ["a: b", "a # b", "`a`", "{a}", "'it's'", "a | b", "a:"] {
            let said = refused(&format!("- name: A\n  expr: {value}\n"));
            assert!(said.ends_with("alerts.yaml:2"), "{value}: {said}");
        }
    }
}
