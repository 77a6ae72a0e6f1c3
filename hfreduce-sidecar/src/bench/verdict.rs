//! What a validation says: the figures of each part of the machine, what is wanted of them, and the verdict with the
//! words for whoever has to act on it. Its JSON is an interface: fields are added, not changed, while `version` is 2.

use std::fmt;
use std::process::ExitCode;

use serde::Serialize;

use super::load::Wrong;

/// Of the JSON.
const VERSION: u32 = 2;

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Verdict {
    /// Every element was right, and fast enough.
    Pass,
    /// The machine is at fault.
    Fail,
    /// Nothing is known of the machine.
    Error,
}

/// Why it did not pass; the worst counts for the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Cause {
    /// It could not be run to its end.
    NotRun,
    /// Right, and slower than a floor.
    Slow,
    /// A sum was wrong.
    Wrong,
}

impl Cause {
    const fn verdict(self) -> Verdict {
        match self {
            Self::NotRun => Verdict::Error,
            Self::Slow | Self::Wrong => Verdict::Fail,
        }
    }
}

/// What is called.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Work {
    pub(super) processes: u32,
    pub(super) tensors: usize,
    pub(super) bytes_per_tensor: usize,
    pub(super) rounds: usize,
}

impl Work {
    const fn bytes(self) -> usize {
        self.tensors * self.bytes_per_tensor
    }
}

/// The least that is wanted; what is not there is not asked for.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Floors {
    /// Algorithm bandwidth in GB/s.
    pub(super) at_least: Option<f64>,
    /// Traffic of the sum, of what memcpy's was.
    pub(super) of_memcpy: Option<f64>,
}

/// Where it ran: on all processors that it may use, or on those of one NUMA node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Place {
    pub(super) numa_node: Option<u32>,
    pub(super) processors: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.numa_node {
            Some(node) => write!(f, "NUMA node {node}, processors {}", self.processors),
            None => write!(f, "processors {}", self.processors),
        }
    }
}

/// Times in seconds, rates in GB/s: 10^9 bytes a second.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figures {
    pub(super) median_seconds: f64,
    pub(super) best_seconds: f64,
    pub(super) worst_seconds: f64,
    /// The first figure of the paper's validation: bytes of the tensors by the time.
    pub(super) algorithm: f64,
    /// The second one: algorithm * 2(ws-1)/ws.
    pub(super) bus: f64,
    /// How many threads of memcpy there were: one for each processor, up to as many as a sidecar computes with by default.
    pub(super) memcpy_threads: usize,
    /// What they read and wrote together.
    pub(super) memcpy: f64,
    /// What the sum has to read and write at the least, of that.
    pub(super) of_memcpy: f64,
}

impl Figures {
    /// From times, shortest first, and the threads of memcpy with their bytes a second; none without times.
    pub(super) fn new(
        work: Work,
        seconds: &[f64],
        (threads, memcpy): (usize, f64),
    ) -> Option<Self> {
        let median = *seconds.get(seconds.len() / 2)?;
        let world = f64::from(work.processes);
        let algorithm = work.bytes() as f64 / median / 1e9;
        let memcpy = memcpy / 1e9;
        Some(Self {
            median_seconds: median,
            best_seconds: *seconds.first()?,
            worst_seconds: *seconds.last()?,
            algorithm,
            bus: algorithm * 2.0 * (world - 1.0) / world,
            memcpy_threads: threads,
            memcpy,
            // Each process's tensor is read, and one result written.
            of_memcpy: algorithm * (world + 1.0) / memcpy,
        })
    }
}

/// One place, and what was seen there.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Part {
    #[serde(flatten)]
    pub(super) place: Place,
    pub(super) figures: Option<Figures>,
    /// By rank.
    pub(super) wrong: Vec<Wrong>,
    /// What cores added up wrongly without a sidecar.
    pub(super) wrong_cores: Vec<String>,
    /// What kept it from running to its end.
    pub(super) error: Option<String>,
}

impl Part {
    /// What is at fault here, and what was seen; none where nothing is.
    fn fault(&self, floors: Floors) -> Option<(Cause, String)> {
        if let Some(wrong) = self.wrong_cores.first() {
            return Some((Cause::Wrong, format!("{}: {wrong}", self.place)));
        }
        if let Some(wrong) = self.wrong.first() {
            let ranks = self.wrong.len();
            let text = format!("{}: wrong sums on {ranks} ranks: {wrong}", self.place);
            return Some((Cause::Wrong, text));
        }
        let Some(figures) = self.figures.filter(|_| self.error.is_none()) else {
            let why = self.error.as_deref().unwrap_or("nothing was measured");
            return Some((Cause::NotRun, format!("{}: {why}", self.place)));
        };
        let Figures {
            algorithm,
            memcpy_threads,
            memcpy,
            of_memcpy,
            ..
        } = figures;
        let slow = |text: String| Some((Cause::Slow, format!("{}: {text}", self.place)));
        match (floors.at_least, floors.of_memcpy) {
            (Some(floor), _) if algorithm < floor => slow(format!(
                "algorithm bandwidth {algorithm:.3} GB/s is below the floor of {floor} GB/s (--at-least); memcpy reaches \
                 {memcpy:.1} GB/s with {memcpy_threads} threads"
            )),
            (_, Some(floor)) if of_memcpy < floor => slow(format!(
                "the sum's traffic is {of_memcpy:.3} of memcpy's {memcpy:.1} GB/s with {memcpy_threads} threads, below the \
                 floor of {floor} (--of-memcpy); algorithm bandwidth {algorithm:.3} GB/s"
            )),
            _ => None,
        }
    }
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    version: u32,
    program: &'static str,
    processor: String,
    pub(super) verdict: Verdict,
    pub(super) cause: Option<Cause>,
    /// What was seen, where, and what to do.
    pub(super) message: String,
    work: Work,
    floors: Floors,
    pub(super) parts: Vec<Part>,
}

impl Report {
    /// Judges the parts. `refused`: why not even one was begun.
    pub(super) fn new(
        processor: String,
        (work, floors): (Work, Floors),
        parts: Vec<Part>,
        refused: Option<String>,
    ) -> Self {
        let mut faults: Vec<(Cause, String)> = parts
            .iter()
            .filter_map(|part| part.fault(floors))
            .chain(refused.map(|why| (Cause::NotRun, why)))
            .collect();
        if parts.is_empty() && faults.is_empty() {
            faults.push((Cause::NotRun, "nothing was measured".to_owned()));
        }
        let cause = faults.iter().map(|(cause, _)| *cause).max();
        Self {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION"),
            processor,
            verdict: cause.map_or(Verdict::Pass, Cause::verdict),
            cause,
            message: message(cause, &faults),
            work,
            floors,
            parts,
        }
    }

    /// 0 passed, 1 could not run, 3 wrong, 4 too slow; 2 are flags that make no sense.
    pub(super) fn exit(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    const fn code(&self) -> u8 {
        match self.cause {
            None => 0,
            Some(Cause::NotRun) => 1,
            Some(Cause::Wrong) => 3,
            Some(Cause::Slow) => 4,
        }
    }
}

/// What was seen of the worst kind, and what to do about it.
fn message(cause: Option<Cause>, faults: &[(Cause, String)]) -> String {
    let Some(cause) = cause else {
        return "every element was right on every rank, and no floor was missed".to_owned();
    };
    let of_it = faults.iter().filter(|(other, _)| *other == cause);
    let seen: Vec<&str> = of_it.map(|(_, text)| text.as_str()).collect();
    let remedy = match cause {
        Cause::Wrong => {
            "take the node out of use; look for memory errors in the kernel's log and in \
             /sys/devices/system/edac/mc, and test its memory"
        }
        Cause::Slow => {
            "see that nothing else runs on the node, that --workers lets the sidecar use its processors, that these are not \
             throttled and that all memory channels are populated, then run it again; a node that stays slow holds its whole gang up"
        }
        Cause::NotRun => "nothing is known of the machine: remove the cause and run it again",
    };
    format!("{}. What to do: {remedy}", seen.join("; "))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Work {
            processes,
            tensors,
            bytes_per_tensor,
            rounds,
        } = self.work;
        writeln!(f, "cpu      {}", self.processor)?;
        writeln!(
            f,
            "load     allreduce(sum, f32), {tensors} tensors of {bytes_per_tensor} bytes, {processes} processes of one node, \
             {rounds} rounds"
        )?;
        for part in &self.parts {
            let Some(figures) = &part.figures else {
                writeln!(f, "{}: no figures", part.place)?;
                continue;
            };
            writeln!(
                f,
                "{}: algorithm bandwidth {:.3} GB/s, algorithm * 2(ws-1)/ws {:.3} GB/s; {:.2} ms, {:.2} to {:.2}; \
                 {:.2} of memcpy's {:.1} GB/s with {} threads",
                part.place,
                figures.algorithm,
                figures.bus,
                figures.median_seconds * 1e3,
                figures.best_seconds * 1e3,
                figures.worst_seconds * 1e3,
                figures.of_memcpy,
                figures.memcpy,
                figures.memcpy_threads,
            )?;
        }
        writeln!(f, "verdict  {:?}: {}", self.verdict, self.message)
    }
}

#[cfg(test)]
mod tests;
