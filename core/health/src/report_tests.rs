//! Tests of `report`: any report fits, any bytes are an answer, and nothing bad is lost.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn result(check: Check, device: &str, outcome: Outcome) -> CheckResult {
    CheckResult {
        check,
        device: device.to_owned(),
        outcome,
    }
}

fn report(results: Vec<CheckResult>) -> Report {
    Report {
        validation: "5f3a".to_owned(),
        boot: "boot".to_owned(),
        fingerprint: Fingerprint::default(),
        results,
    }
}

fn measured(value: f64) -> Outcome {
    Outcome::Measured { value, runs: 1 }
}

fn wrong(detail: &str) -> Outcome {
    Outcome::Wrong {
        detail: detail.to_owned(),
    }
}

fn read_back(report: &Report) -> Report {
    Report::parse(&report.encode()).unwrap()
}

#[test]
fn a_report_of_the_largest_node_fits() {
    let mut full = report(Vec::new());
    for check in Check::ALL {
        full.results.push(result(check, "", measured(123.4567)));
    }
    for numa in 0..8 {
        let device = format!("numa {numa}");
        let bandwidth = Check::MemoryBandwidth;
        full.results
            .push(result(bandwidth, &device, measured(41.2345)));
        full.results
            .push(result(Check::MemoryPattern, &device, measured(480.25)));
    }
    full.fingerprint.cpu = "AMD EPYC 7502 32-Core Processor".to_owned();
    full.fingerprint.kernel = "5.15.0-1034-generic-with-a-long-name".to_owned();
    assert_eq!(read_back(&full), full);
}

#[test]
fn what_does_not_fit_becomes_an_error_and_wrong_answers_stay() {
    let mut long = report(vec![result(
        Check::CpuStress,
        "core 7",
        wrong("2 is not 3"),
    )]);
    for gpu in 0..40 {
        let device = format!("gpu {gpu}");
        let detail = "\u{1}".repeat(500);
        long.results
            .push(result(Check::Gpu, &device, Outcome::Skipped { detail }));
        long.results
            .push(result(Check::Offer, &device, measured(1.0)));
    }
    let read = read_back(&long);
    assert_eq!(read.results[0], long.results[0]);
    assert!(
        read.results
            .contains(&result(Check::Gpu, "", Outcome::cut()))
    );
    assert!(read.results.len() > 20, "{} are left", read.results.len());
}

#[test]
fn the_longest_wrong_answers_name_each_check() {
    let text = "\u{1}".repeat(1000);
    let mut long = report(Vec::new());
    for check in Check::ALL.into_iter().cycle().take(200) {
        long.results.push(result(check, &text, wrong(&text)));
        long.results.push(result(check, "", Outcome::cut()));
    }
    long.fingerprint = Fingerprint {
        kernel: text.clone(),
        cpu: text.clone(),
        driver: text.clone(),
        firmware: text.clone(),
        validator: text.clone(),
    };
    long.validation = text;
    let bytes = long.encode();
    assert!(bytes.len() <= REPORT_LIMIT_BYTES);
    let read: Report = serde_json::from_slice(&bytes).unwrap();
    for check in Check::ALL {
        let mut of_check = read.results.iter().filter(|one| one.check == check);
        assert!(
            of_check
                .any(|one| matches!(one.outcome, Outcome::Wrong { .. }) && !one.device.is_empty())
        );
    }
}

#[test]
fn what_no_validator_writes_is_refused() {
    let refused = |results: &str| {
        let text = format!(r#"{{"validation":"u","fingerprint":{{}},"results":[{results}]}}"#);
        Report::parse(text.as_bytes())
            .err()
            .map(|why| why.to_string())
    };
    let disk = |rest: &str| format!(r#"{{"check":"Disk","outcome":{rest}}}"#);
    let fine = disk(r#"{"measured":{"value":1.5,"runs":1}}"#);
    assert_eq!(refused(&fine), None);
    let around = r#"{"validation":"u","fingerprint":{},"results":[]}"#.len();
    let blanks = " ".repeat(REPORT_LIMIT_BYTES - around);
    assert_eq!(refused(&blanks), None);
    for (results, why) in [
        (format!("{fine},{fine}"), "twice"),
        (disk(r#"{"measured":{"value":-1.5,"runs":1}}"#), "-1.5"),
        (disk(r#"{"measured":{"value":1.5,"runs":0}}"#), "0 runs"),
        (disk(r#"{"measured":{"value":1e999,"runs":1}}"#), "parse"),
        (disk(r#"{"measured":{"value":null,"runs":1}}"#), "parse"),
        (vec![fine.as_str(); 33].join(","), "33 results"),
        (blanks + " ", "3073 bytes, at most 3072"),
        (fine[..20].to_owned(), "parse"),
    ] {
        let message = refused(&results).unwrap();
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn a_text_is_cut_after_160_bytes_between_characters() {
    let wide = "x".to_owned() + &"\u{e9}".repeat(80);
    for (text, kept) in [("x".repeat(160), 160), ("x".repeat(161), 160), (wide, 159)] {
        let read = read_back(&report(vec![result(Check::Disk, "", wrong(&text))]));
        assert_eq!(read.results[0].outcome, wrong(&text[..kept]));
    }
}

#[test]
fn a_value_that_is_none_is_an_error_of_its_check() {
    for value in [f64::NAN, f64::INFINITY, -1.0, 1e16] {
        let read = read_back(&report(vec![result(Check::Disk, "", measured(value))]));
        assert!(matches!(read.results[0].outcome, Outcome::Error { .. }));
    }
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let text = || "\\PC{0,40}|[\\x00-\\x7f]{0,200}";
    prop_oneof![
        (any::<f64>(), any::<u32>()).prop_map(|(value, runs)| Outcome::Measured { value, runs }),
        text().prop_map(|detail| Outcome::Wrong { detail }),
        text().prop_map(|detail| Outcome::Error { detail }),
        text().prop_map(|detail| Outcome::Skipped { detail }),
    ]
}

fn reports() -> impl Strategy<Value = Report> {
    let check = prop::sample::select(Check::ALL.to_vec());
    let results = vec((check, "[a-z]{0,3}|\\PC{0,300}", outcomes()), 0..45);
    ("\\PC{0,200}", results).prop_map(|(text, results)| {
        let results = results.into_iter();
        let results = results.map(|(check, device, outcome)| result(check, &device, outcome));
        Report {
            validation: text.clone(),
            boot: text.clone(),
            fingerprint: Fingerprint {
                cpu: text,
                ..Fingerprint::default()
            },
            results: results.collect(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_report_fits_and_no_check_is_forgotten(report in reports()) {
        let bytes = report.encode();
        prop_assert!(bytes.len() <= REPORT_LIMIT_BYTES);
        let read: Report = serde_json::from_slice(&bytes).unwrap();
        let checks = |report: &Report| -> BTreeSet<(Check, bool)> {
            let results = report.results.iter();
            results.map(|one| (one.check, matches!(one.outcome, Outcome::Wrong { .. }))).collect()
        };
        for (check, is_wrong) in checks(&report) {
            prop_assert!(read.results.iter().any(|one| one.check == check));
            prop_assert!(!is_wrong || checks(&read).contains(&(check, true)));
        }
        let again = Report::parse(&bytes);
        prop_assert!(matches!(again, Ok(_) | Err(ReportError::Twice { .. })), "{again:?}");
    }
}

proptest! {
    #[test]
    fn what_fits_reads_back_the_same(values in vec((any::<u32>(), 1u32..9), 0..20)) {
        let devices = values.iter().enumerate().map(|(at, &(milli, runs))| {
            // Few digits: serde_json reads those back exactly.
            let value = f64::from(milli) / 1000.0;
            result(Check::Gpu, &at.to_string(), Outcome::Measured { value, runs })
        });
        let report = report(devices.collect());
        prop_assert_eq!(read_back(&report), report);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..4000)) {
        let _ = Report::parse(&bytes);
    }
}
