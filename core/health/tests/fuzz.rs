//! Reports of a validator, damaged in a few places: nothing panics, and what is accepted means what it says.
//! `cargo xtask fuzz reports --minutes M` goes on for longer.

use health::limits::{MAX_RESULTS, REPORT_LIMIT_BYTES};
use health::{Check, CheckResult, Fingerprint, Fleet, Floors, Outcome, Report, Verdict, judge};
use sim::{Rng, damage, explore};

fn report(rng: &mut Rng) -> Report {
    let results = (0..rng.below(40)).map(|at| {
        let detail = "é\n".repeat(rng.below(200));
        CheckResult {
            check: *rng.pick(&Check::ALL),
            device: format!("device {at}"),
            outcome: match rng.below(4) {
                0 => Outcome::Wrong { detail },
                1 => Outcome::Error { detail },
                2 => Outcome::Skipped { detail },
                _ => Outcome::Measured {
                    value: f64::from_bits(damage::number(rng)),
                    runs: damage::number(rng) as u32,
                },
            },
        }
    });
    Report {
        validation: "uid".to_owned(),
        boot: "boot".to_owned(),
        results: results.collect(),
        fingerprint: Fingerprint::default(),
    }
}

#[test]
fn reports() {
    explore(2_000, &[], |rng| {
        let (mut bytes, other) = (report(rng).encode(), report(rng).encode());
        assert!(bytes.len() <= REPORT_LIMIT_BYTES && Report::parse(&bytes).is_ok());
        damage::anyhow(rng, &mut bytes, &other);
        let Ok(read) = Report::parse(&bytes) else {
            return;
        };
        assert!(read.results.len() <= MAX_RESULTS);
        let judgement = judge(
            &read,
            &Check::ALL,
            &Floors::default(),
            &Fleet::default(),
            None,
        );
        for (result, judged) in read.results.iter().zip(&judgement.results) {
            let is_wrong = matches!(result.outcome, Outcome::Wrong { .. });
            assert_eq!(is_wrong, judged.verdict == Verdict::Fail);
        }
        // What was accepted can be written and is accepted again.
        Report::parse(&read.encode()).unwrap();
    });
}
