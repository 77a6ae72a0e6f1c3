//! What training steps expose and what stable results cost: when there is a ratio, and whether a bar holds.

use super::*;
use crate::hfreduce::case::{STABLE_LOADS, STABLE_SHAPE, TCP_STABLE};
use crate::hfreduce::gang::Figures;
use cluster::processors::Seconds;

fn figures(milliseconds: u64) -> Figures {
    let time = Duration::from_millis(milliseconds);
    let none = Seconds::default();
    Figures {
        median: time,
        best: time,
        p99: time,
        rounds: 3,
        ranks: none,
        sidecars: none,
        others: 0.0,
        quiet: true,
    }
}

fn bar(alone: u64, gloo: u64, ours: u64) -> Bar {
    let mut results = Results::default();
    let case = case(STEP_SHAPE, LAYERS);
    for (exchange, time) in [
        (Exchange::Alone, alone),
        (Exchange::Gloo, gloo),
        (Exchange::Arena, ours),
    ] {
        results.add(case, step(exchange), figures(time));
    }
    exposed(&results, Exchange::Arena)
}

#[test]
fn what_is_exposed_is_what_a_step_takes_longer_than_alone() {
    let held = bar(1000, 1900, 1200);
    assert_eq!(held.holds(), Some(true), "{held:?}");
    assert_eq!(held.seen(), "0.22 x");
    assert_eq!(bar(1000, 1900, 1500).holds(), Some(false));
    // Faster than alone is nothing exposed.
    assert_eq!(bar(1000, 1900, 900).seen(), "0.00 x");
}

#[test]
fn a_second_thread_is_held_against_what_it_gains_and_costs_memcpy() {
    let mut results = Results::default();
    for (contender, milliseconds, used) in [(POOLS[0], 30, 0.03), (POOLS[1], 20, 0.042)] {
        let figures = Figures {
            sidecars: Seconds {
                user: used,
                system: 0.0,
            },
            ..figures(milliseconds)
        };
        results.add(POOL_CASE, contender, figures);
    }
    let [gains, costs] = second_thread(&results);
    for bar in [gains, costs] {
        assert!(bar.value.unwrap_err().contains("memcpy"));
    }
    for (threads, value) in [(1, 10.0), (2, 16.0)] {
        let sample = Sample {
            value,
            others: 0.0,
            quiet: true,
        };
        results.add_limit(Limit::Memcpy(threads), sample);
    }
    let [gains, costs] = second_thread(&results);
    assert_eq!(
        (gains.holds(), gains.seen()),
        (Some(true), "0.94 x".to_owned())
    );
    assert_eq!(
        (costs.holds(), costs.seen()),
        (Some(false), "1.12 x".to_owned())
    );
}

#[test]
fn a_bar_against_a_rival_shows_private_results_beside_shared_ones() {
    let mut results = Results::default();
    let large = case(shape(2, 4), mib(186));
    for (contender, milliseconds) in [(TCP, 100), (TCP_COPIES, 250), (GLOO, 500)] {
        results.add(large, contender, figures(milliseconds));
    }
    let bars = all(&results);
    let bar = bars.iter().find(|bar| bar.holds().is_some()).unwrap();
    assert_eq!(bar.seen(), "5.00 x");
    assert_eq!(bar.sides, "100 ms : 500 ms; with copies 2.00 x, 250 ms");
}

#[test]
fn the_floor_is_the_processor_time_of_the_leanest_program() {
    let mut results = Results::default();
    let large = case(shape(2, 1), mib(1000));
    let gigabytes = large.load.total() as f64 / 1e9;
    let mut add = |contender, each: f64| {
        let sidecars = Seconds {
            user: each * gigabytes,
            system: 0.0,
        };
        let figures = Figures {
            sidecars,
            ..figures(100)
        };
        results.add(large, contender, figures);
    };
    add(TCP, 1.0);
    add(TCP_UNCHECKED, 0.8);
    let bar = |results: &Results| of_floor(results, large.shape, large.load);
    assert!(bar(&results).value.unwrap_err().contains("lean"));
    for (kib, value) in limits::LEAN_PIECES.into_iter().zip([0.9, 0.6]) {
        let sample = Sample {
            value,
            others: 0.0,
            quiet: true,
        };
        results.add_limit(Limit::Lean(kib), sample);
    }
    let bar = bar(&results);
    assert_eq!(
        (bar.holds(), bar.seen()),
        (Some(false), "60.0 %".to_owned())
    );
    let sides = "0.60 : 1.00 s/GB; hfreduce tcp unchecked 75 %, 0.80 s/GB";
    assert_eq!(bar.sides, sides);
}

#[test]
fn what_is_measured_and_not_judged_is_neither_held_nor_missed() {
    let mut results = Results::default();
    let case = case(STEP_SHAPE, LAYERS);
    for (exchange, time) in [
        (Exchange::Alone, 1000),
        (Exchange::Gloo, 2000),
        (Exchange::Backend, 1500),
    ] {
        results.add(case, step(exchange), figures(time));
    }
    let bar = exposed(&results, Exchange::Backend);
    assert_eq!((bar.seen(), bar.holds()), ("0.50 x".to_owned(), None));
    assert!(bar.unjudged.unwrap().contains("makes DDP's buckets itself"));
}

#[test]
fn where_gloo_exposes_next_to_nothing_there_is_no_ratio() {
    let none = bar(1000, 1050, 1010);
    assert_eq!(none.holds(), None);
    assert!(none.value.unwrap_err().contains("5 % to a step"));
    assert_eq!(bar(1000, 900, 1010).holds(), None);
}

#[test]
fn what_stable_results_cost_is_their_time_against_the_same_without() {
    let mut results = Results::default();
    let small = case(STABLE_SHAPE, kib(4));
    results.add(small, TCP, figures(10));
    assert!(costs(&results).iter().all(|cost| cost.value.is_err()));
    results.add(small, TCP_STABLE, figures(15));
    let costs = costs(&results);
    let (with, without): (Vec<_>, Vec<_>) = costs.iter().partition(|cost| cost.value.is_ok());
    assert_eq!(without.len(), STABLE_LOADS.len() - 1);
    assert_eq!(with[0].value, Ok(1.5));
    let about = "2 x 1, 4 KiB, f32: hfreduce shrink tcp against hfreduce tcp";
    assert_eq!(with[0].about, about);
}
