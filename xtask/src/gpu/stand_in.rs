//! The archive without a GPU: unpacked in the trainer's root, whose PyTorch has no CUDA, by a user that owns nothing. What can run
//! on the stand-in for the driver has to pass, and the code of the others is tried on the CPU.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ::cluster::{command, prerequisites};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::images::trainer;
use crate::{packages, python};

/// What runs on the stand-in.
const ON_STAND_IN: [&str; 3] = ["reg", "ptx", "ipc"];
/// What is tried on the CPU.
const REHEARSED: [&str; 4] = ["uaf", "order", "torchpath", "death"];
/// All of them, but for the soak.
const CHECKS: usize = 12;

/// Mounts what the archive's command needs, runs it and copies its report. Arguments: the unpacked archive, folder of the
/// stand-in, where the report goes, then the command's.
const ENTER: &str = r#"
archive=$1 drivers=$2 out=$3; shift 3
for folder in opt/gpu opt/drivers; do mkdir -p "$root/$folder"; done
mount --bind "$archive" "$root/opt/gpu"; mount -o remount,bind,ro "$root/opt/gpu"
mount --bind "$drivers" "$root/opt/drivers"
status=0
chroot --userspec=65532:65532 "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp USER=nobody LANG=C.UTF-8 \
  /opt/gpu/run --json /tmp/report.json "$@" || status=$?
cp "$root/tmp/report.json" "$out"
exit $status
"#;

/// Runs the archive twice, and holds it to what it has to show.
pub(super) fn check(folder: &Path, archive: &Path) -> Result<()> {
    packages::install(&prerequisites::missing_for_trainer())?;
    let root = python::unpacked(&trainer::base()?)?;
    let drivers = python::drivers()?;
    let unpacked = folder.join("check");
    python::remove_partial(&unpacked)?;
    fs::create_dir(&unpacked).context("failed to make a folder for the archive")?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--strip-components=1", "--file"]);
    command::run(tar.arg(archive).arg("--directory").arg(&unpacked))?;
    let run = |arguments: &[&str]| -> Result<Value> {
        let out = folder.join("report.json");
        let mut enter = python::inside(&root, ENTER);
        enter.args([&unpacked, &drivers, &out]).args(arguments);
        let status = enter.stdin(Stdio::null()).status();
        let status = status.context("failed to start the checks")?;
        ensure!(
            status.success(),
            "the checks ended with {status}, see above"
        );
        let text = fs::read_to_string(&out).context("failed to read the report")?;
        serde_json::from_str(&text).context("failed to understand the report")
    };
    let driver = "/opt/drivers/libfake_cuda.so";
    expect(&run(&["--driver", driver])?, |name| match name {
        name if ON_STAND_IN.contains(&name) => ("PASS", ""),
        "rate" => ("NOT RUN", "rates: a stand-in has none"),
        _ => ("NOT RUN", "needs PyTorch with CUDA"),
    })?;
    expect(&run(&["--rehearse"])?, |name| {
        if REHEARSED.contains(&name) {
            ("NOT RUN", "rehearsed on the CPU")
        } else {
            ("NOT RUN", "cannot be rehearsed")
        }
    })?;
    python::remove_partial(&unpacked)
}

/// Holds each check of a report to its outcome, and to how its reason begins.
fn expect(report: &Value, outcome: impl Fn(&str) -> (&'static str, &'static str)) -> Result<()> {
    let checks = report["checks"]
        .as_array()
        .context("a report without checks")?;
    ensure!(
        checks.len() == CHECKS,
        "{} checks ran, not {CHECKS}",
        checks.len()
    );
    for check in checks {
        let word = |field: &str| check[field].as_str().unwrap_or_default();
        let (expected, reason) = outcome(word("name"));
        if word("outcome") != expected || !word("reason").starts_with(reason) {
            bail!(
                "{} is {}: {}; {expected} was expected: {reason}",
                word("name"),
                word("outcome"),
                word("reason")
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{CHECKS, expect};

    fn report(count: usize, outcome: &str) -> Value {
        let check = json!({"name": "reg", "outcome": outcome, "reason": "4 claims hold"});
        json!({"checks": vec![check; count]})
    }

    #[test]
    fn a_report_with_another_outcome_or_too_few_checks_is_refused() {
        let passes = |_: &str| ("PASS", "");
        expect(&report(CHECKS, "PASS"), passes).unwrap();
        let failed = expect(&report(CHECKS, "FAIL"), passes).unwrap_err();
        assert!(failed.to_string().contains("reg is FAIL"), "{failed}");
        assert!(expect(&report(CHECKS - 1, "PASS"), passes).is_err());
        assert!(expect(&json!({}), passes).is_err());
        let another_reason = |_: &str| ("PASS", "rehearsed");
        assert!(expect(&report(CHECKS, "PASS"), another_reason).is_err());
    }
}
