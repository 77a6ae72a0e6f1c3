//! `bench rank`: one process of a gang that somebody else conducts, over a unix socket and a line at a time. The
//! conductor is the barrier: a rank that waits for its next line sleeps. Rivals speak the same lines.
//!
//! `case BYTES TENSORS DTYPE MODE` prepares and runs once, checked: `segment`, `copy`, or a numerics mode; `go N` runs N times and prints nanoseconds: all,
//! then each; `late MS` calls after that time and prints what the call took and the processor time it used;
//! `end` frees; `quit` leaves.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use contract::run_dir;
use hfreduce_client::client::Client;
use hfreduce_client::{DType, Numerics};
use rustix::time::{ClockId, clock_gettime};

use super::PATIENCE;
use super::load::{Load, Mode};
use crate::args::BenchRank;

/// Runs the command.
pub(super) fn run(args: &BenchRank) -> anyhow::Result<()> {
    let socket = args.run_dir.join(run_dir::SOCKET);
    let client = Client::attach(&socket, args.local_rank, PATIENCE)?;
    let stream = UnixStream::connect(&args.conductor)
        .with_context(|| format!("failed to reach {}", args.conductor.display()))?;
    let mut answers = stream.try_clone().context("failed to share the socket")?;
    let rank = client.standing().rank;
    writeln!(answers, "rank {rank} {}", std::process::id())?;
    let mut load = None;
    for line in BufReader::new(stream).lines() {
        let line = line.context("failed to read from the conductor")?;
        if line == "quit" {
            break;
        }
        let answer = run_line(&client, &mut load, &line);
        // The conductor reports what went wrong.
        let answer = answer.unwrap_or_else(|error| format!("failed {error:#}"));
        writeln!(answers, "{answer}").context("failed to answer the conductor")?;
    }
    Ok(())
}

fn run_line<'a>(
    client: &'a Client,
    load: &mut Option<Load<'a>>,
    line: &str,
) -> anyhow::Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match (&words[..], load.as_mut()) {
        (["case", bytes, tensors, dtype, mode], _) => {
            // Memory of the last case first.
            *load = None;
            let size = (tensors.parse()?, bytes.parse()?);
            let dtype = DType::ALL.iter().find(|known| known.name() == *dtype);
            let dtype = *dtype.context("there is no such type")?;
            let numerics = Numerics::ALL.iter().find(|known| known.name() == *mode);
            let numerics = numerics.copied().unwrap_or_default();
            let mode = match *mode {
                "copy" => Mode::Copy,
                _ => Mode::Segment,
            };
            let new = load.insert(Load::new(client, size, (dtype, numerics), mode)?);
            new.check()?;
            Ok("ok".to_owned())
        }
        (["go", times], Some(load)) => {
            let mut ends = vec![Instant::now()];
            for _ in 0..times.parse()? {
                load.run()?;
                ends.push(Instant::now());
            }
            let each = ends.windows(2).map(|pair| match pair {
                [begin, end] => *end - *begin,
                _ => Duration::ZERO,
            });
            let each: Vec<u128> = each.map(|time| time.as_nanos()).collect();
            let mut answer = each.iter().sum::<u128>().to_string();
            for time in each {
                answer.push_str(&format!(" {time}"));
            }
            Ok(answer)
        }
        (["late", milliseconds], Some(load)) => {
            thread::sleep(Duration::from_millis(milliseconds.parse()?));
            let (start, used) = (Instant::now(), processor_time());
            load.run()?;
            let used = processor_time().saturating_sub(used);
            Ok(format!(
                "{} {}",
                start.elapsed().as_nanos(),
                used.as_nanos()
            ))
        }
        (["end"], _) => {
            *load = None;
            Ok("ok".to_owned())
        }
        _ => bail!("there is nothing to do for {line:?}"),
    }
}

/// What this process has used so far, all threads together.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
