//! Prints how fast the kernels combine eight buffers, as a share of the memory traffic that copying reaches in the
//! same run: `cargo run --release -p collective --example kernels`.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench prints and has a clock"
)]

use std::hint::black_box;
use std::time::Instant;

use collective::kernels::{Isa, Kernels};
use collective::{DType, Divide, ReduceOp};

const BYTES: usize = 64 << 20;
const CHUNK: usize = 512 << 10;
const SOURCES: usize = 8;
const ROUNDS: usize = 5;

/// Seconds of the fastest of some rounds.
fn fastest(mut round: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(time).fold(f64::INFINITY, f64::min)
}

fn main() {
    // 1.5 in f32, and a plain number in every other type.
    let pattern = 1.5f32.to_ne_bytes();
    let sources: Vec<Vec<u8>> = (0..SOURCES).map(|_| pattern.repeat(BYTES / 4)).collect();
    let mut destination = vec![0; BYTES];
    let copy = fastest(|| destination.copy_from_slice(black_box(&sources[0])));
    let copy_rate = 2.0 * BYTES as f64 / copy / 1e9;
    println!(
        "one thread, {SOURCES} buffers of {} MiB in chunks of {} KiB",
        BYTES >> 20,
        CHUNK >> 10
    );
    println!("copy   {copy_rate:6.1} GB/s of traffic");
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::of) {
        for dtype in DType::ALL {
            let seconds = fastest(|| {
                for start in (0..BYTES).step_by(CHUNK) {
                    let chunks: [&[u8]; SOURCES] =
                        std::array::from_fn(|i| &sources[i][start..start + CHUNK]);
                    let target = &mut destination[start..start + CHUNK];
                    kernels.reduce(
                        dtype,
                        ReduceOp::Sum,
                        target,
                        black_box(&chunks),
                        Divide::NOT,
                    );
                }
            });
            let rate = (SOURCES + 1) as f64 * BYTES as f64 / seconds / 1e9;
            let share = 100.0 * rate / copy_rate;
            let (isa, name) = (format!("{:?}", kernels.isa()), dtype.name());
            println!("{isa:6} {name:5} {rate:6.1} GB/s of traffic, {share:3.0}% of copy");
        }
    }
}
