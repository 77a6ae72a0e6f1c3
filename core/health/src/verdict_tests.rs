//! Tests of `verdict`: which line decides, and who is never blamed.

use super::*;
use crate::fleet::Fleet;
use crate::links::{LinkResult, Links};

const GB: Check = Check::MemoryBandwidth;

fn report(results: &[(Check, &str, Outcome)]) -> Report {
    let results = results.iter().cloned();
    let results = results.map(|(check, device, outcome)| CheckResult {
        check,
        device: device.to_owned(),
        outcome,
    });
    Report {
        validation: "5f3a".to_owned(),
        boot: "boot".to_owned(),
        fingerprint: Fingerprint::default(),
        results: results.collect(),
    }
}

fn measured(value: f64, runs: u32) -> Outcome {
    Outcome::Measured { value, runs }
}

fn floors(check: Check, device: &str, floor: f64) -> Floors {
    let mut floors = Floors::default();
    floors.set(check, device, floor);
    floors
}

/// A fleet whose nodes measured these.
fn fleet(check: Check, device: &str, values: &[f64]) -> Fleet {
    let mut fleet = Fleet::default();
    for (node, &value) in values.iter().enumerate() {
        let at = node as i64;
        let values = [(check, device, value)];
        fleet.push(&node.to_string(), at, &Fingerprint::default(), values);
    }
    fleet
}

/// Judges one result.
#[track_caller]
fn check(
    (check, device, outcome): (Check, &str, Outcome),
    floors: &Floors,
    fleet: &Fleet,
    verdict: Verdict,
    says: &str,
) -> Judged {
    let judgement = judge(
        &report(&[(check, device, outcome)]),
        &[check],
        floors,
        fleet,
        None,
    );
    let judged = judgement.results[0].clone();
    assert_eq!(
        (judged.verdict, judgement.verdict),
        (verdict, verdict),
        "{judged:?}"
    );
    assert!(judged.message.contains(says), "{}", judged.message);
    let advises = judged.message.ends_with(check.remedy());
    assert_eq!(advises, matches!(verdict, Verdict::Warn | Verdict::Fail));
    judged
}

#[test]
fn a_lost_gpu_fails_the_offer_and_says_what_to_do() {
    let floors = floors(Check::Offer, "nvidia.com/gpu", 8.0);
    let offer = |count| (Check::Offer, "nvidia.com/gpu", measured(count, 1));
    let judged = check(
        offer(7.0),
        &floors,
        &Fleet::default(),
        Verdict::Fail,
        "7 is below the class's floor of 8; look at the node's agent",
    );
    assert_eq!(
        (judged.value, judged.floor, judged.median),
        (Some(7.0), Some(8.0), None)
    );
    let passed = check(offer(8.0), &floors, &Fleet::default(), Verdict::Pass, "");
    assert_eq!(passed.message, "");
}

#[test]
fn a_node_slower_than_its_peers_fails_above_the_floor() {
    let (floors, peers) = (floors(GB, "", 280.0), fleet(GB, "numa 0", &[320.0; 12]));
    let slow = |runs| (GB, "numa 0", measured(300.8, runs));
    let judged = check(
        slow(4),
        &floors,
        &peers,
        Verdict::Fail,
        "300.8 GB/s is 6.0 % below the median of 12 nodes alike, 320 GB/s",
    );
    assert_eq!((judged.floor, judged.median), (Some(280.0), Some(320.0)));
    // Nothing but the floor counts with seven others, nor is one look enough to fail.
    let few = fleet(GB, "numa 0", &[320.0; 7]);
    check(slow(4), &floors, &few, Verdict::Pass, "");
    check(slow(1), &floors, &peers, Verdict::Warn, "1 of 4 times");
}

#[test]
fn a_slow_driver_fails_nobody() {
    let floors = floors(Check::Gpu, "", 24.0);
    let mut values = vec![26.0; 14];
    let slow = || (Check::Gpu, "gpu 1", measured(20.0, 4));
    check(
        slow(),
        &floors,
        &fleet(Check::Gpu, "gpu 1", &values),
        Verdict::Fail,
        "floor",
    );
    values.extend([20.0; 5]);
    let says = "as are 6 of the class's last 20 results";
    check(
        slow(),
        &floors,
        &fleet(Check::Gpu, "gpu 1", &values),
        Verdict::Warn,
        says,
    );
    // So it is where the floor is below and a part of the nodes alike fell behind.
    let peers = fleet(Check::Gpu, "gpu 1", &values);
    check(slow(), &Floors::default(), &peers, Verdict::Warn, says);
}

#[test]
fn a_wrong_answer_always_fails_and_names_the_device() {
    let detail = "2 is not 3".to_owned();
    let wrong = (Check::CpuStress, "core 7", Outcome::Wrong { detail });
    let peers = fleet(Check::CpuStress, "core 7", &[1.0; 20]);
    check(
        wrong,
        &Floors::default(),
        &peers,
        Verdict::Fail,
        "wrong answer of core 7: 2 is not 3",
    );
}

#[test]
fn a_check_that_fails_or_cannot_run_fails_no_node() {
    let detail = "hung for 60 s".to_owned();
    let (floors, fleet) = (
        floors(Check::Disk, "", 1.0),
        fleet(Check::Disk, "", &[2.0; 20]),
    );
    let error = (Check::Disk, "", Outcome::Error { detail });
    check(error, &floors, &fleet, Verdict::Error, "hung for 60 s");
    let detail = "no driver".to_owned();
    let skipped = (Check::Gpu, "", Outcome::Skipped { detail });
    check(skipped, &floors, &fleet, Verdict::Skipped, "no driver");
}

#[test]
fn what_was_asked_and_is_missing_is_an_error() {
    let mut floors = floors(Check::Offer, "nvidia.com/gpu", 8.0);
    floors.set(Check::Offer, "rdma/hca", 1.0);
    floors.set(GB, "", 280.0);
    let offer = (Check::Offer, "rdma/hca", measured(1.0, 1));
    let report = report(&[offer, (GB, "numa 0", measured(300.0, 1))]);
    let asked = [Check::Offer, GB, Check::Disk];
    let judgement = judge(&report, &asked, &floors, &Fleet::default(), None);
    let missing: Vec<_> = judgement.results[2..]
        .iter()
        .map(|one| (one.check, one.device.as_str(), one.verdict))
        .collect();
    let error = Verdict::Error;
    assert_eq!(
        missing,
        [
            (Check::Offer, "nvidia.com/gpu", error),
            (Check::Disk, "", error)
        ]
    );
    assert_eq!(judgement.verdict, error);
}

#[test]
fn the_worst_result_is_the_runs_verdict() {
    use Verdict::{Error, Fail, Pass, Skipped, Warn};
    let order = [Skipped, Pass, Warn, Error, Fail];
    assert!(order.is_sorted());
    assert_eq!(
        order.map(Verdict::as_str).join(" "),
        "Skipped Pass Warn Error Fail"
    );
    let nothing = judge(
        &report(&[]),
        &[],
        &Floors::default(),
        &Fleet::default(),
        None,
    );
    assert_eq!(nothing.verdict, Skipped);
}

#[test]
fn a_screen_is_the_higher_of_floor_and_peers() {
    let mut floors = floors(GB, "", 280.0);
    floors.set(GB, "numa 1", 319.0);
    floors.set(Check::Offer, "", 8.0);
    let mut peers = fleet(GB, "numa 0", &[320.0; 12]);
    for node in 0..12 {
        let values = [(GB, "numa 1", 320.0)];
        peers.push(&node.to_string(), node, &Fingerprint::default(), values);
    }
    let asked = [GB, Check::Disk, Check::Offer];
    let other = Fingerprint {
        kernel: "7.0".to_owned(),
        ..Fingerprint::default()
    };
    let of = |fingerprint| -> Vec<_> {
        let screens = screens(&asked, &floors, &peers, fingerprint);
        let screens = screens.into_iter();
        screens
            .map(|((_, device), value)| (device, value.round()))
            .collect()
    };
    let expected = [("", 280.0), ("numa 0", 311.0), ("numa 1", 319.0)];
    assert_eq!(
        of(None),
        expected.map(|(device, value)| (device.to_owned(), value))
    );
    let floors_only = [("", 280.0), ("numa 0", 280.0), ("numa 1", 319.0)];
    assert_eq!(
        of(Some(&other)),
        floors_only.map(|(device, value)| (device.to_owned(), value))
    );
}

#[test]
fn what_two_nodes_share_fails_only_the_one_that_others_show_to_be_the_cause() {
    let floors = floors(Check::Network, "", 10.0);
    let mut links = Links::default();
    let mut push = |node: &str, at, partner: &str, is_good| {
        let partner = partner.to_owned();
        links.push(node, at, &LinkResult { partner, is_good });
    };
    push("c", 1, "e", true);
    push("a", 2, "b", false);
    push("b", 3, "d", true);
    let judged = |node, partner, outcome: Outcome| {
        let report = report(&[(Check::Network, "send", outcome)]);
        let pair = Pair {
            node,
            partner,
            links: &links,
        };
        let asked = [Check::Network];
        let judgement = judge(&report, &asked, &floors, &Fleet::default(), Some(&pair));
        let judged = judgement.results[0].clone();
        (judged.verdict, judged.message)
    };
    let bad = [
        measured(5.0, 4),
        Outcome::Wrong {
            detail: "1 is not 2".to_owned(),
        },
    ];
    for bad in bad {
        let (verdict, message) = judged("a", "c", bad.clone());
        assert_eq!(verdict, Verdict::Fail, "{message}");
        assert!(
            message.contains("with c and b, which are as good"),
            "{message}"
        );
        for (node, partner) in [("c", "a"), ("a", "f")] {
            let (verdict, message) = judged(node, partner, bad.clone());
            assert_eq!(verdict, Verdict::Warn, "{message}");
            let says = format!("with {partner}, and either node may be the cause");
            assert!(message.contains(&says), "{message}");
        }
    }
    assert_eq!(judged("a", "c", measured(11.0, 1)).0, Verdict::Pass);
}
