//! The bench of the kernels: how fast each instruction set combines buffers of each type, as a share of the memory
//! traffic (reads and writes) that libc's memcpy reaches in the same rounds. Buffers are far larger than any cache,
//! chunks as long as the engine's; rounds are interleaved and figures medians.
//!
//! `cargo run --release -p collective --example kernels -- [--json FILE] [--rounds N] [--threads N] [--sources N]
//! [--mib N] [--isa NAME] [--type NAME] [--op sum|avg|premul_sum|max|min|band|bor|bxor] [--store cached|streaming]`

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench prints, writes a file, and has arguments, a clock and threads"
)]

use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use collective::kernels::{Isa, Kernels, Store};
use collective::{DType, ReduceOp, Scale};

/// What one step of the engine combines.
const CHUNK: usize = 512 << 10;
/// The buffer of the paper's figures.
const MIB: usize = 186;

struct Options {
    json: Option<String>,
    rounds: usize,
    threads: usize,
    sources: usize,
    mib: usize,
    isa: Option<String>,
    dtype: Option<String>,
    op: String,
    stores: Vec<Store>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let cpu = cpu_model();
    println!(
        "{cpu}\n{} sources of {} MiB in chunks of {} KiB, {} threads, {} rounds, {}",
        options.sources,
        options.mib,
        CHUNK >> 10,
        options.threads,
        options.rounds,
        options.op
    );
    let cases = cases(&options);
    let mut memory = Memory::new(&options);
    let mut copies = Vec::new();
    let mut seconds = vec![Vec::new(); cases.len()];
    for _ in 0..options.rounds {
        copies.push(memory.copy());
        for (case, seconds) in cases.iter().zip(&mut seconds) {
            seconds.push(memory.reduce(case));
        }
    }
    let bytes = (options.mib << 20) as f64;
    let buffers = (options.sources + 1) as f64;
    let copy_rate = 2.0 * bytes / median(&mut copies) / 1e9;
    println!("memcpy                        {copy_rate:6.1} GB/s of traffic");
    let mut rows = String::new();
    for (case, seconds) in cases.iter().zip(&mut seconds) {
        let rate = buffers * bytes / median(seconds) / 1e9;
        let share = 100.0 * rate / copy_rate;
        let (isa, dtype) = (case.kernels.isa().name(), case.dtype.name());
        let store = store_name(case.store);
        println!(
            "{isa:6} {dtype:5} {store:10} {rate:12.1} GB/s of traffic, {share:4.0} % of memcpy"
        );
        let comma = if rows.is_empty() { "" } else { ",\n" };
        write!(
            rows,
            "{comma}    {{\"isa\": \"{isa}\", \"type\": \"{dtype}\", \"store\": \"{store}\", \
             \"gb_per_s\": {rate:.2}, \"percent_of_memcpy\": {share:.1}}}"
        )?;
    }
    if let Some(path) = options.json {
        let cpu = cpu.replace(['"', '\\'], "");
        let text = format!(
            "{{\n  \"cpu\": \"{cpu}\",\n  \"operator\": \"{}\",\n  \"sources\": {},\n  \
             \"mib\": {},\n  \"threads\": {},\n  \"rounds\": {},\n  \"memcpy_gb_per_s\": {copy_rate:.2},\n  \
             \"kernels\": [\n{rows}\n  ]\n}}\n",
            options.op, options.sources, options.mib, options.threads, options.rounds
        );
        std::fs::write(&path, text).map_err(|error| format!("failed to write {path}: {error}"))?;
    }
    Ok(())
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        json: None,
        rounds: 9,
        threads: 2,
        sources: 8,
        mib: MIB,
        isa: None,
        dtype: None,
        op: ReduceOp::Sum.name().to_owned(),
        stores: vec![Store::Cached, Store::Streaming],
    };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("failed to read {flag}: it needs a value"))?;
        let number = || match value.parse() {
            Ok(0) | Err(_) => Err(format!("failed to read {flag} {value}: it is no count")),
            Ok(number) => Ok(number),
        };
        match flag.as_str() {
            "--json" => options.json = Some(value),
            "--rounds" => options.rounds = number()?,
            "--threads" => options.threads = number()?,
            "--sources" => options.sources = number()?,
            "--mib" => options.mib = number()?,
            "--isa" => options.isa = Some(value),
            "--type" => options.dtype = Some(value),
            "--op" => options.op = value,
            "--store" => options.stores.retain(|&store| store_name(store) == value),
            _ => return Err(format!("failed to read {flag}: there is no such flag").into()),
        }
    }
    Ok(options)
}

/// One thing that is measured.
struct Case {
    kernels: Kernels,
    dtype: DType,
    op: ReduceOp,
    scale: Scale,
    store: Store,
}

/// Those that the options ask for. The scalar reference only by its name: it takes long.
fn cases(options: &Options) -> Vec<Case> {
    let is_wanted = |wanted: &Option<String>, name| wanted.as_deref().is_none_or(|it| it == name);
    let mut cases = Vec::new();
    for isa in Isa::ALL {
        let named = options.isa.is_some() || isa != Isa::Scalar;
        if !named || !is_wanted(&options.isa, isa.name()) {
            continue;
        }
        let Some(kernels) = Kernels::of(isa) else {
            continue;
        };
        let ops = ReduceOp::ALL
            .into_iter()
            .filter(|op| op.name() == options.op);
        for (op, dtype) in ops.flat_map(|op| DType::ALL.map(|dtype| (op, dtype))) {
            let first = options.sources;
            let scale = match op {
                ReduceOp::Avg => Scale::Divide { first, by: 24 },
                ReduceOp::PremulSum(by) => Scale::Multiply { first, by },
                ReduceOp::Sum
                | ReduceOp::Max
                | ReduceOp::Min
                | ReduceOp::And
                | ReduceOp::Or
                | ReduceOp::Xor => Scale::Not,
            };
            let exists = if dtype.is_float() {
                !op.is_bitwise()
            } else {
                scale == Scale::Not
            };
            if exists && is_wanted(&options.dtype, dtype.name()) {
                cases.extend(options.stores.iter().map(|&store| Case {
                    kernels,
                    dtype,
                    op,
                    scale,
                    store,
                }));
            }
        }
    }
    cases
}

/// The buffers, and the threads that share them.
struct Memory {
    sources: Vec<Vec<u8>>,
    destination: Vec<u8>,
    threads: usize,
}

impl Memory {
    /// Numbers of either sign that are normal in every type.
    fn new(options: &Options) -> Self {
        let mut state = 1u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state & 0xbfbf_bfbf_bfbf_bfbf | 0x2020_2020_2020_2020).to_ne_bytes()
        };
        let bytes = options.mib << 20;
        let sources = (0..options.sources)
            .map(|_| (0..bytes / 8).flat_map(|_| noise()).collect())
            .collect();
        Self {
            sources,
            destination: vec![1; bytes],
            threads: options.threads,
        }
    }

    /// Seconds that libc's memcpy takes for one source, all in one call for each thread.
    fn copy(&mut self) -> f64 {
        let source = &self.sources[0];
        time(self.threads, &mut self.destination, |at, part| {
            let from = &source[at..at + part.len()];
            black_box(part).copy_from_slice(black_box(from));
        })
    }

    /// Seconds that combining all sources takes.
    fn reduce(&mut self, case: &Case) -> f64 {
        let sources = &self.sources;
        time(self.threads, &mut self.destination, |mut at, part| {
            let mut slices: Vec<&[u8]> = Vec::with_capacity(sources.len());
            for into in part.chunks_mut(CHUNK) {
                slices.clear();
                slices.extend(sources.iter().map(|it| &it[at..at + into.len()]));
                at += into.len();
                let Case {
                    kernels,
                    dtype,
                    op,
                    scale,
                    store,
                } = case;
                kernels.reduce(*dtype, *op, black_box(into), &slices, *scale, *store);
            }
        })
    }
}

/// Seconds of the slowest of some threads, which begin together and share a buffer.
fn time(threads: usize, buffer: &mut [u8], work: impl Fn(usize, &mut [u8]) + Sync) -> f64 {
    let share = buffer.len().div_ceil(threads).next_multiple_of(64);
    let together = Barrier::new(buffer.len().div_ceil(share));
    let (together, work) = (&together, &work);
    let one = |index: usize, part: &mut [u8]| {
        together.wait();
        let start = Instant::now();
        work(index * share, part);
        start.elapsed().as_secs_f64()
    };
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> = buffer
            .chunks_mut(share)
            .enumerate()
            .map(|(index, part)| scope.spawn(move || one(index, part)))
            .collect();
        let seconds = threads.into_iter().filter_map(|thread| thread.join().ok());
        seconds.fold(0.0, f64::max)
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn store_name(store: Store) -> &'static str {
    match store {
        Store::Cached => "cached",
        Store::Streaming => "streaming",
    }
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|line| line.starts_with("model name"));
    let name = model.and_then(|line| line.split_once(": "));
    name.map_or("unknown processor", |(_, name)| name)
        .to_owned()
}
