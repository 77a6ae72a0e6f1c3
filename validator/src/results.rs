//! What a child's output and ending say about its check, and what repeated measurements say
//! together. Pure. What a value means for the node is not decided here.

use std::collections::BTreeMap;

use contract::validation::Screen;
use health::{Check, CheckResult, Outcome, median};

use crate::limits::{MAX_DEVICES, OUTPUT_BYTES};
use crate::process::{Ending, Said};

/// How often a value below its screen is measured again.
pub(crate) const REPEATS: u32 = 3;

/// A result about the node as a whole.
pub(crate) fn whole(check: Check, outcome: Outcome) -> CheckResult {
    CheckResult {
        check,
        device: String::new(),
        outcome,
    }
}

/// The result of a check that failed itself.
pub(crate) fn failed(check: Check, detail: impl Into<String>) -> CheckResult {
    let detail = detail.into();
    whole(check, Outcome::Error { detail })
}

/// The results of a check from what its process said.
pub(crate) fn settle(check: Check, said: &Said) -> Vec<CheckResult> {
    let (mut results, problem) = read(check, &said.output);
    let Some(detail) = trouble(said.ending).or(problem) else {
        return results;
    };
    // Some of a check's values say little; a wrong answer remains one.
    results.retain(|result| matches!(result.outcome, Outcome::Wrong { .. }));
    if !results.iter().any(|result| result.device.is_empty()) {
        results.push(failed(check, detail));
    }
    results
}

fn trouble(ending: Ending) -> Option<String> {
    match ending {
        Ending::Code(0) => None,
        Ending::Code(code) => Some(format!("ended with exit code {code}, see the pod's log")),
        Ending::Signal(9) => Some("was killed by signal 9, as when memory runs out".to_owned()),
        Ending::Signal(signal) => Some(format!("crashed: ended by signal {signal}")),
        Ending::Late(limit) => Some(format!("did not end within {:.1} s", limit.as_secs_f64())),
        Ending::Stuck(limit) => Some(format!(
            "did not end within {:.1} s, nor when it was killed: it hangs in the kernel",
            limit.as_secs_f64()
        )),
        Ending::Talkative => Some(format!("said more than {OUTPUT_BYTES} bytes")),
        Ending::Interrupted => Some("interrupted".to_owned()),
    }
}

/// The results that can be read, and what is wrong with the others.
fn read(check: Check, output: &[u8]) -> (Vec<CheckResult>, Option<String>) {
    let mut results: Vec<CheckResult> = Vec::new();
    let lines = output.split(|&byte| byte == b'\n');
    for line in lines.filter(|line| !line.is_empty()) {
        let Ok(result) = serde_json::from_slice::<CheckResult>(line) else {
            return (results, Some("reported what cannot be read".to_owned()));
        };
        let twice = results.iter().any(|other| other.device == result.device);
        let impossible = matches!(&result.outcome, Outcome::Measured { value, .. }
            if !value.is_finite() || *value < 0.0);
        if result.check != check || twice || impossible {
            let what = "reported about another check, twice or the impossible";
            return (results, Some(what.to_owned()));
        }
        results.push(result);
        if results.len() > MAX_DEVICES {
            let what = format!("reported more than {MAX_DEVICES} devices");
            return (results, Some(what));
        }
    }
    let nothing = results.is_empty().then(|| "reported nothing".to_owned());
    (results, nothing)
}

/// Measures a check again if one of its values is below its screen: the median counts then.
/// `again` gives no results when there is no time.
pub(crate) fn screened(
    mut results: Vec<CheckResult>,
    screens: &[Screen],
    mut again: impl FnMut() -> Option<Vec<CheckResult>>,
) -> Vec<CheckResult> {
    // The empty device stands for all that have none of their own.
    let screen = |device: &str| {
        let of = |device| screens.iter().find(|screen| screen.device == device);
        of(device).or_else(|| of("")).map(|screen| screen.value)
    };
    // By place: which core is a node's slowest may differ from time to time.
    let place = |result: &CheckResult| result.check.place(&result.device).to_owned();
    let mut values: BTreeMap<String, Vec<f64>> = results
        .iter()
        .filter_map(|result| Some((result, measured(result)?)))
        .filter(|(result, value)| screen(&result.device).is_some_and(|screen| *value < screen))
        .map(|(result, value)| (place(result), vec![value]))
        .collect();
    if values.is_empty() {
        return results;
    }
    for _ in 0..REPEATS {
        let Some(more) = again() else { break };
        for result in more {
            match (measured(&result), values.get_mut(&place(&result))) {
                (Some(value), Some(of_place)) => of_place.push(value),
                // Once is enough, whatever the other times said.
                (None, _) if matches!(result.outcome, Outcome::Wrong { .. }) => {
                    results.retain(|other| place(other) != place(&result));
                    results.push(result);
                }
                (Some(_), None) | (None, _) => {}
            }
        }
    }
    for result in &mut results {
        let of_place = values.get(&place(result));
        if let (Some(_), Some(of_place)) = (measured(result), of_place) {
            let runs = u32::try_from(of_place.len()).unwrap_or(u32::MAX);
            let value = median(of_place);
            result.outcome = Outcome::Measured { value, runs };
        }
    }
    results
}

fn measured(result: &CheckResult) -> Option<f64> {
    match result.outcome {
        Outcome::Measured { value, .. } => Some(value),
        Outcome::Wrong { .. } | Outcome::Error { .. } | Outcome::Skipped { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check::CpuStress;

    fn of(device: &str, outcome: Outcome) -> CheckResult {
        CheckResult {
            device: device.to_owned(),
            ..whole(CHECK, outcome)
        }
    }

    fn value(device: &str, value: f64) -> CheckResult {
        of(device, Outcome::Measured { value, runs: 1 })
    }

    fn wrong(device: &str) -> CheckResult {
        let detail = "1 is not 2".to_owned();
        of(device, Outcome::Wrong { detail })
    }

    fn settled(results: &[CheckResult], rest: &str, ending: Ending) -> Vec<CheckResult> {
        let lines = results
            .iter()
            .map(|one| serde_json::to_string(one).unwrap());
        let output = lines.map(|line| line + "\n").collect::<String>() + rest;
        let output = output.into_bytes();
        settle(CHECK, &Said { output, ending })
    }

    #[test]
    fn what_a_good_end_said_is_taken_as_it_is() {
        let said = [value("core 0", 1.5), value("core 1", 2.5)];
        assert_eq!(settled(&said, "", Ending::Code(0)), said);
    }

    #[test]
    fn after_a_bad_end_or_line_only_wrong_answers_remain_beside_the_error() {
        let late = Ending::Late(std::time::Duration::from_millis(1500));
        for (rest, ending, detail) in [
            (
                "",
                Ending::Code(101),
                "ended with exit code 101, see the pod's log",
            ),
            ("{\"che", Ending::Signal(11), "crashed: ended by signal 11"),
            ("", late, "did not end within 1.5 s"),
            ("hello", Ending::Code(0), "reported what cannot be read"),
            ("", Ending::Interrupted, "interrupted"),
        ] {
            let said = [value("core 0", 1.5), wrong("core 1")];
            let error = failed(CHECK, detail);
            assert_eq!(settled(&said, rest, ending), [wrong("core 1"), error]);
        }
        assert_eq!(settled(&[wrong("")], "", Ending::Signal(6)), [wrong("")]);
    }

    #[test]
    fn nothing_doubled_or_impossible_is_an_error() {
        let other = CheckResult {
            check: Check::Disk,
            ..value("", 1.0)
        };
        let many: Vec<_> = (0..17).map(|one| value(&one.to_string(), 1.0)).collect();
        assert_eq!(settled(&many[..16], "", Ending::Code(0)), many[..16]);
        for said in [
            vec![],
            vec![value("", 1.0), value("", 2.0)],
            vec![value("", -1.0)],
            vec![value("", f64::NAN)],
            vec![other],
            many,
        ] {
            let settled = settled(&said, "", Ending::Code(0));
            assert!(matches!(
                settled[..],
                [CheckResult {
                    outcome: Outcome::Error { .. },
                    ..
                }]
            ));
        }
    }

    const SCREENS: [(&str, f64); 2] = [("", 2.0), ("read", 0.5)];

    fn repeated(
        first: &[CheckResult],
        again: impl FnMut() -> Option<Vec<CheckResult>>,
    ) -> Vec<CheckResult> {
        let screens = SCREENS.map(|(device, value)| screen(device, value));
        screened(first.to_vec(), &screens, again)
    }

    fn screen(device: &str, value: f64) -> Screen {
        let device = device.to_owned();
        Screen { device, value }
    }

    fn disk(device: &str, value: f64, runs: u32) -> CheckResult {
        CheckResult {
            check: Check::Disk,
            ..of(device, Outcome::Measured { value, runs })
        }
    }

    #[test]
    fn a_value_below_its_screen_is_the_median_of_four() {
        let first = [disk("write", 1.0, 1), disk("read", 0.5, 1)];
        let mut left = vec![4.0, 3.0, 9.0];
        let results = repeated(&first, || {
            Some(vec![disk("write", left.pop()?, 1), disk("read", 0.1, 1)])
        });
        assert_eq!(results, [disk("write", 3.5, 4), disk("read", 0.5, 1)]);
    }

    #[test]
    fn another_core_that_is_slowest_next_time_counts_for_the_same_place() {
        let first = [value("core 3", 1.0)];
        let results = repeated(&first, || Some(vec![value("core 7", 9.0)]));
        let outcome = Outcome::Measured {
            value: 9.0,
            runs: 4,
        };
        assert_eq!(results, [of("core 3", outcome)]);
    }

    #[test]
    fn a_value_above_its_screen_is_not_measured_again() {
        let first = [disk("write", 2.0, 1), disk("read", 0.5, 1)];
        assert_eq!(repeated(&first, || panic!("again")), first);
    }

    #[test]
    fn a_wrong_answer_of_one_repeat_counts() {
        let mut repeats = vec![vec![value("core 1", 3.0)], vec![wrong("core 3")]];
        let results = repeated(&[value("core 1", 1.0)], || repeats.pop());
        assert_eq!(results, [wrong("core 3")]);
    }
}
