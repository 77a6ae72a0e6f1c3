//! Tests of the check with both sides in this process. `tests/network.rs` has real ones, and what
//! comes between.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::thread;

use health::Outcome;

use super::super::results;
use super::super::tests::{small, values, wrongs};
use super::dial::connect;
use super::lane::on_each;
use super::listen::{Port, together};
use super::*;
use crate::checks::BitFlip;

const LIMIT: Duration = Duration::from_secs(60);
const FLIP: BitFlip = BitFlip {
    at: 0x20_1003,
    bit: 5,
};

fn port(uid: &str) -> (Port, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (Port::open(listener, uid).unwrap(), address)
}

fn dials(address: SocketAddr) -> CheckContext<'static> {
    CheckContext {
        budget: Duration::from_secs(2),
        pair: Some(Pair {
            uid: "the-uid",
            role: Role::Dial(address),
            patience: Duration::from_secs(1),
            limit: LIMIT,
        }),
        ..small(Path::new("/"))
    }
}

/// Dials a side that listens, and returns what that reports.
fn with_partner(fault: Option<BitFlip>, dial: impl FnOnce(&CheckContext<'_>)) -> Vec<CheckResult> {
    let (port, address) = port("the-uid");
    // It waits a quarter of this for another session.
    let budget = Duration::from_secs(8);
    let context = CheckContext {
        fault,
        budget,
        ..dials(address)
    };
    let port = &port;
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let end = Instant::now() + LIMIT;
            port.serve(&context, end, end).unwrap()
        });
        dial(&dials(address));
        together(serving.join().unwrap())
    })
}

fn of<'a>(results: &'a [CheckResult], device: &str) -> &'a Outcome {
    let mut results = results.iter();
    &results.find(|one| one.device == device).unwrap().outcome
}

#[test]
fn both_sides_report_both_directions_as_often_as_they_are_measured() {
    let mut dialled = Vec::new();
    let listened = with_partner(None, |context| {
        for _ in 0..2 {
            let values = values(Check::Network, context);
            let devices: Vec<_> = values.iter().map(|(device, _)| device.as_str()).collect();
            assert_eq!(devices, ["send", "receive"]);
            assert!(values.iter().all(|(_, rate)| *rate > 0.001), "{values:?}");
            dialled.push([values[0].1, values[1].1]);
        }
    });
    for (device, which) in [("receive", 0), ("send", 1)] {
        let expected = f64::midpoint(dialled[0][which], dialled[1][which]);
        let Outcome::Measured { value, runs: 2 } = of(&listened, device) else {
            panic!("{listened:?}");
        };
        assert!((value - expected).abs() < 1e-5, "{listened:?} {dialled:?}");
    }
}

#[test]
fn a_flipped_bit_is_found_in_its_direction_with_its_place() {
    let place = "connection 0, offset 0x201003: sent ";
    let mut dialled = Vec::new();
    let listened = with_partner(Some(FLIP), |context| {
        let context = CheckContext {
            fault: Some(FLIP),
            ..*context
        };
        dialled = wrongs(Check::Network, &context);
    });
    let directions: Vec<_> = dialled.iter().map(|(device, _)| device.as_str()).collect();
    assert_eq!(directions, ["send", "receive"]);
    assert!(dialled.iter().all(|(_, detail)| detail.starts_with(place)));
    for device in directions {
        let outcome = of(&listened, device);
        assert!(
            matches!(outcome, Outcome::Wrong { detail } if detail.starts_with(place)),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_wrong_byte_is_wrong_however_often_the_others_were_right() {
    let right = || measured(Check::Network, "send", 1.0);
    let bad = wrong(Check::Network, "send", "1 is not 2".to_owned());
    let results = together(vec![vec![right()], vec![bad.clone()], vec![right()]]);
    assert_eq!(results, [bad]);
}

/// The outcome of a check that has one result.
fn only(context: &CheckContext<'_>) -> Outcome {
    let results = results(Check::Network, context);
    let [CheckResult { outcome, .. }] = &results[..] else {
        panic!("{results:?}");
    };
    outcome.clone()
}

#[test]
fn who_is_not_there_or_another_runs_partner_is_named_with_what_to_do() {
    let nobody = only(&dials(([127, 0, 0, 1], 1).into()));
    let Outcome::Skipped { detail } = nobody else {
        panic!("{nobody:?}");
    };
    assert_eq!(
        detail,
        "the run on the partner node does not wait at 127.0.0.1:1: was it there before this one?"
    );
    let (other, address) = port("another-uid");
    let other = &other;
    thread::scope(|scope| {
        let context = dials(address);
        let until = Instant::now() + Duration::from_secs(2);
        let serving = scope.spawn(move || other.serve(&context, until, until).unwrap());
        let another = only(&context);
        let says = "but not for this run";
        assert!(
            matches!(&another, Outcome::Error { detail } if detail.contains(says)),
            "{another:?}"
        );
        assert_eq!(serving.join().unwrap(), Vec::<Vec<CheckResult>>::new());
    });
}

#[test]
fn a_partner_that_says_nothing_is_given_up() {
    let (port, address) = port("the-uid");
    let end = Instant::now() + LIMIT;
    // It waits for this side to begin, and is not waited for.
    let _serving = thread::spawn(move || port.serve(&dials(address), end, end));
    let links = connect(address, "the-uid", end).unwrap();
    let heard = on_each(links, end, None, |lane| {
        lane.quiet = Duration::from_millis(10);
        lane.message()
    });
    let error = heard.unwrap_err().to_string();
    assert_eq!(error, "the other side says and takes nothing for 0.0 s");
}
