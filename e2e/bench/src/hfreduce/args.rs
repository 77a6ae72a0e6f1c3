//! The command line: which cases are measured, and what of the machine is there for the rivals.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::hfreduce::Cases;
use crate::hfreduce::case::{self, Case, Contender};

/// Measures HFReduce next to its rivals. `cargo xtask bench hfreduce` prepares the machine and starts it, as root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One round of the bars' cases only.
    #[arg(long)]
    quick: bool,
    /// What has all parts of this, as in `2 x 4, 186 MiB, f32, gloo`; `ddp` for training steps, `waiting` for what waiting
    /// costs.
    #[arg(long, default_value = "", hide_default_value = true)]
    case: String,
    /// Interleaved rounds (3; with --quick 1).
    #[arg(long)]
    rounds: Option<usize>,
    /// Processors for each node, and as many workers for its sidecar. Nodes have some of their own where the machine has enough.
    /// Without it all nodes have all of them, and each sidecar its share as workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cores: Option<u16>,
    /// Longest wait for a quiet machine before each measurement, in seconds.
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    gate: u64,
    /// Writes everything there, each round by itself.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The sidecar's program.
    #[arg(long)]
    pub(crate) sidecar: PathBuf,
    /// What meets a need, as `trainer=PATH`; `trainer=!WHY` says why nothing does.
    #[arg(long = "need", value_name = "NEED=PATH")]
    met: Vec<String>,
    /// Prints what the rivals of the chosen cases need, a line each, and measures nothing.
    #[arg(long)]
    pub(crate) needs: bool,
}

/// What a rival needs and cannot get by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// The trainer image's root, with PyTorch.
    Trainer,
    /// The folder of the installed wheel.
    Wheel,
    /// Open MPI's compiler.
    OpenMpi,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trainer => "trainer",
            Self::Wheel => "wheel",
            Self::OpenMpi => "open-mpi",
        })
    }
}

impl Args {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    pub(crate) fn gate(&self) -> Duration {
        Duration::from_secs(self.gate)
    }

    /// What meets a need, or why nothing does.
    pub(crate) fn provided(&self, need: Need) -> Result<&str> {
        let name = need.to_string();
        let mut given = self.met.iter().filter_map(|given| given.split_once('='));
        let (_, value) = given
            .find(|(given, _)| *given == name)
            .with_context(|| format!("--need {name} was not given"))?;
        match value.strip_prefix('!') {
            Some(why) => bail!("{why}"),
            None => Ok(value),
        }
    }

    /// The cases with their contenders; an error if there is none, and nothing else to measure.
    pub(crate) fn cases(&self) -> Result<Cases> {
        let filter = parts(&self.case);
        let all = if self.quick {
            case::of_bars()
        } else {
            case::all()
        };
        let mut cases = Cases::new();
        for (case, contenders) in all {
            let wanted = |contender: &Contender| is_wanted(&filter, case, *contender);
            let contenders: Vec<_> = contenders.into_iter().filter(wanted).collect();
            if !contenders.is_empty() {
                cases.push((case, contenders));
            }
        }
        if cases.is_empty() && !self.wants_waiting() {
            bail!("no case is {:?}", self.case);
        }
        Ok(cases)
    }

    pub(crate) fn wants_waiting(&self) -> bool {
        let filter = parts(&self.case);
        filter.is_empty() || filter == ["waiting"]
    }
}

/// The parts of a filter: `2 x 1, 186 MiB, tcp` has three.
fn parts(filter: &str) -> Vec<String> {
    let parts = filter.split(',').map(|part| part.trim().to_lowercase());
    parts.filter(|part| !part.is_empty()).collect()
}

/// Whether every part is the shape, the load or the type of a case, or part of the contender's name.
fn is_wanted(filter: &[String], case: Case, contender: Contender) -> bool {
    let is = |field: String, part: &str| field.to_lowercase() == part;
    filter.iter().all(|part| {
        is(case.shape.to_string(), part)
            || is(case.load.to_string(), part)
            || case.dtype.name() == part
            || contender.to_string().contains(part)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{Args, Need, is_wanted, parts};
    use crate::hfreduce::case::{self, TCP, TCP_COPIES};

    #[test]
    fn a_filter_names_fields_and_not_what_happens_to_contain_it() {
        let wanted = |filter: &str| {
            let cases = case::of_bars().into_iter();
            let all = cases.flat_map(|(case, who)| who.into_iter().map(move |who| (case, who)));
            all.filter(|(case, who)| is_wanted(&parts(filter), *case, *who))
                .collect::<Vec<_>>()
        };
        assert!(wanted("").len() > wanted("hfreduce").len());
        let small = wanted("2 x 1, 64 KiB, hfreduce tcp");
        assert_eq!(small.len(), 1);
        assert_eq!(small[0].1, TCP);
        let copies = wanted("2 x 4,186 mib,f32,copies");
        assert_eq!(copies.len(), 1);
        assert_eq!(copies[0].1, TCP_COPIES);
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_need_that_is_not_met_says_why() {
        let words = ["bench", "--sidecar=s"];
        let needs = ["--need=trainer=/root", "--need=wheel=!no compiler"];
        let Line { args } = Line::try_parse_from(words.into_iter().chain(needs)).unwrap();
        assert_eq!(args.provided(Need::Trainer).unwrap(), "/root");
        let why = args.provided(Need::Wheel).unwrap_err();
        assert_eq!(why.to_string(), "no compiler");
        assert!(args.provided(Need::OpenMpi).is_err());
    }
}
