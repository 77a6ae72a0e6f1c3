//! What people read at the end: limits, results with their rates, bars, and what every line means.

use serde_json::{Value, json};

use crate::bar;
use crate::hfreduce::bars::{self, Short};
use crate::hfreduce::limits;
use crate::hfreduce::results::{Results, is_noisy};

/// What the columns mean.
const LEGEND: &str = "
A time is the slowest rank's, from a barrier that sleeps to the end of its own call; 50 calls in a row up to 64 KiB, 10 up
to 1 MiB. Medians of barriers, then of rounds (of the quiet ones if any). alg = bytes / time, bus = alg * 2(ws-1)/ws with ws ranks. `+ copies`: private
tensors are copied into shared buffers and the results out; without, both lie in shared memory. cpu: processor time of
a call, of all ranks and of all sidecars; s/GB: the same by the load's bytes. A node's sidecar has its share of this machine's processors
as threads that compute, or its own with `--cores`; `pool of`: so many. unchecked: without checksums of payload, which are on between machines. ! = noisy: the machine did not become quiet, or others used more than 8 % of it.
shrink: in a job that goes on after losses. ddp: a training step, with the exchange of its gradients; its rates are the layers' bytes by the step's time. Exposed: less a step alone.
Lean all-reduce: the sum of 2 x 1 over tcp in plain C, two threads a node, without checksums; processor time of both nodes by the load's bytes.
The better of its pieces is the floor. `Nodes` share this machine's cores and memory: ratios hold, rates do not travel.";

/// Prints everything.
pub(crate) fn print(results: &Results) {
    println!("\nlimits");
    for limit in limits::ALL {
        if let Some(sample) = results.limit(limit) {
            let noisy = if sample.is_noisy() { '!' } else { ' ' };
            println!(
                "  {:<34} {:>9.2} {} {noisy}",
                limit.to_string(),
                sample.value,
                limit.unit()
            );
        }
    }
    println!(
        "\nresults\n  {:<24} {:<24} {:>10} {:>10} {:>9} {:>9} {:>10} {:>10} {:>10} {:>8}",
        "case",
        "who",
        "median",
        "p99",
        "alg GB/s",
        "bus GB/s",
        "cpu ranks",
        "sidecars",
        "s/GB ranks",
        "sidecars"
    );
    let mut last = None;
    for (case, contender, figures) in results.all() {
        let name = if last == Some(case) {
            String::new()
        } else {
            case.to_string()
        };
        last = Some(case);
        let gigabytes = case.load.total() as f64 / 1e9;
        let rate = gigabytes / figures.median.as_secs_f64();
        let world = case.shape.world() as f64;
        let cpu = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
        println!(
            "  {name:<24} {:<24} {:>10} {:>10} {rate:>9.3} {:>9.3} {:>10} {:>10} {:>10.3} {:>8.3} {}",
            contender.to_string(),
            Short(figures.median).to_string(),
            Short(figures.p99).to_string(),
            rate * 2.0 * (world - 1.0) / world,
            cpu(figures.ranks.total()),
            cpu(figures.sidecars.total()),
            figures.ranks.total() / gigabytes,
            figures.sidecars.total() / gigabytes,
            if is_noisy(&figures) { "!" } else { "" },
        );
    }
    let mut printed = Vec::new();
    for (_, contender, why) in results.missing() {
        let line = format!("  not run: {contender}: {why}");
        if !printed.contains(&line) {
            println!("{line}");
            printed.push(line);
        }
    }
    bar::print(&bars::all(results));
    println!(
        "\ncosts of handing results over when no loss can take them back\n  {:<72} {:>10}  sides",
        "what", "seen"
    );
    for cost in bars::costs(results) {
        let noisy = if cost.noisy { " !" } else { "" };
        match cost.value {
            Ok(ratio) => {
                let (about, sides) = (cost.about, cost.sides);
                println!("  {about:<72} {ratio:>8.2} x  {sides}{noisy}");
            }
            Err(why) => println!("  {:<72} {:>10}  {why}", cost.about, "not run"),
        }
    }
    println!("{LEGEND}");
}

/// The costs, for the file.
pub(crate) fn costs_json(results: &Results) -> Value {
    let costs = bars::costs(results).into_iter().map(|cost| {
        json!({
            "about": cost.about,
            "value": cost.value.as_ref().ok(),
            "noisy": cost.noisy,
            "notRun": cost.value.as_ref().err(),
        })
    });
    costs.collect()
}
