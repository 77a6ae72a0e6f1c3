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
    assert_eq!(bar(1000, 1900, 1400).holds(), Some(false));
    // Faster than alone is nothing exposed.
    assert_eq!(bar(1000, 1900, 900).seen(), "0.00 x");
}

#[test]
fn a_second_thread_is_held_against_what_it_gains_memcpy() {
    let mut results = Results::default();
    for (contender, milliseconds, used) in [(POOLS[0], 30, 0.03), (POOLS[1], 20, 0.036)] {
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
    assert!(gains.value.unwrap_err().contains("memcpy"));
    assert_eq!(
        (costs.holds(), costs.seen()),
        (Some(false), "1.20 x".to_owned())
    );
    for (threads, value) in [(1, 10.0), (2, 16.0)] {
        let sample = Sample {
            value,
            others: 0.0,
            quiet: true,
        };
        results.add_limit(Limit::Memcpy(threads), sample);
    }
    let [gains, _] = second_thread(&results);
    assert_eq!(
        (gains.holds(), gains.seen()),
        (Some(true), "0.94 x".to_owned())
    );
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
