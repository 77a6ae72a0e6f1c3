//! `cargo xtask bench hfreduce`: HFReduce next to its rivals and the machine's limits, in interleaved rounds. Here are
//! the options, who can take part, and the order of things; how a gang is measured is `gang`'s, what has to hold
//! `bars`'. Everything that a rival needs is installed by this verb, and nothing of it is part of what we ship.

mod bars;
mod case;
mod conductor;
mod gang;
mod gloo;
mod limits;
mod machine;
mod mpi;
mod network;
mod ours;
mod process;
mod programs;
mod results;
mod step;
mod table;
mod trainer;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::cluster::prerequisites;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use self::bars::Short;
use self::case::{Case, Contender, DType, Exchange, Player, Transport, kib, shape};
use self::gang::{Figures, Gang};
use self::limits::Limits;
use self::mpi::Library;
use self::network::Network;
use self::results::{LimitSample, Results, Waiting, is_noisy};
use crate::args::{Args, Usage};
use crate::{cluster, images};

/// Most nodes of any case.
const NODES: usize = 4;
/// How late the last rank is when the cost of waiting is measured, and how long a sidecar is watched.
const LATE: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(3);
/// How often a measurement is made that others disturbed although the machine was quiet before; the least disturbed counts.
const TRIES: usize = 3;
/// Of the memory that is free, how much a case may take.
const MEMORY_SHARE: f64 = 0.8;
/// A gang that had more than this does not keep it while others are measured.
const KEEPS_BYTES: u64 = 2 << 30;

/// Who is ready to take part.
enum Ready {
    Ours(PathBuf, Transport),
    Gloo(PathBuf),
    Mpi(Library, case::Path),
    Step(PathBuf, step::Trainer, Exchange),
}

struct Field {
    network: Network,
    program: PathBuf,
    gate: Duration,
    filter: Vec<String>,
    /// Who can take part, or why not.
    players: BTreeMap<Player, Result<Ready, String>>,
    results: Results,
}

pub(super) fn run(mut args: Args) -> Result<ExitCode> {
    let quick = args.switch("--quick");
    let rounds = args
        .parsed("--rounds")?
        .unwrap_or(if quick { 1 } else { 3 });
    let filter = args.option("--case")?.unwrap_or_default();
    let gate = Duration::from_secs(args.parsed("--gate")?.unwrap_or(20));
    let json = args.option("--json")?;
    args.finish()?;
    if !prerequisites::is_root() {
        return Ok(cluster::ask_for_root(
            "The nodes are network namespaces, which only root may make.",
        ));
    }
    let program = images::sidecar()?;
    let network = Network::star(NODES)?;
    let mut field = Field {
        filter: parts(&filter),
        players: BTreeMap::new(),
        results: Results::default(),
        program,
        network,
        gate,
    };
    let cases = field.chosen(if quick { case::of_bars() } else { case::all() });
    if cases.is_empty() && !field.wants_waiting() {
        return Err(Usage(format!("no case is {filter:?}")).into());
    }
    field.invite(&cases);
    let facts = machine::facts();
    println!("machine: {facts}");
    for warning in machine::warnings() {
        println!("warning: {warning}");
    }
    let limits = Limits::new()?;
    for round in 1..=rounds {
        println!("== round {round} of {rounds}");
        // Steps are compared with each other only.
        if cases
            .iter()
            .any(|(_, contenders)| !contenders.iter().all(Contender::is_step))
        {
            field.limits(&limits)?;
        }
        field.round(&cases);
        // After every round: who ends a long run early keeps what there is.
        if let Some(file) = &json {
            field.write(file, &facts)?;
        }
    }
    table::print(&field.results);
    Ok(ExitCode::SUCCESS)
}

type Cases = Vec<(Case, Vec<Contender>)>;

impl Field {
    /// What the filter leaves.
    fn chosen(&self, cases: Cases) -> Cases {
        let mut chosen = Cases::new();
        for (case, contenders) in cases {
            let wanted = |contender: &Contender| is_wanted(&self.filter, case, *contender);
            let contenders: Vec<_> = contenders.into_iter().filter(wanted).collect();
            if !contenders.is_empty() {
                chosen.push((case, contenders));
            }
        }
        chosen
    }

    fn wants_waiting(&self) -> bool {
        self.filter.is_empty() || self.filter == ["waiting"]
    }

    /// Makes everybody ready who takes part in a case.
    fn invite(&mut self, cases: &Cases) {
        let mut trainer = None;
        let contenders = cases.iter().flat_map(|(_, contenders)| contenders);
        for player in contenders.map(|contender| contender.player) {
            if self.players.contains_key(&player) {
                continue;
            }
            let ready = match player {
                Player::Ours(transport) => Ok(Ready::Ours(self.program.clone(), transport)),
                Player::Gloo => trainer::root().map(Ready::Gloo),
                Player::OpenMpi(path) => mpi::open().map(|library| Ready::Mpi(library, path)),
                Player::IntelMpi(path) => mpi::intel().map(|library| Ready::Mpi(library, path)),
                Player::Step(exchange) => {
                    // The wheel is built once for all of them.
                    let prepared = trainer.get_or_insert_with(|| {
                        step::prepare().map_err(|error| format!("{error:#}"))
                    });
                    let prepared = prepared.clone().map_err(anyhow::Error::msg);
                    prepared.map(|trainer| Ready::Step(self.program.clone(), trainer, exchange))
                }
            };
            if let Err(error) = &ready {
                println!("not run: {player}: {error:#}");
            }
            let ready = ready.map_err(|error| format!("{error:#}"));
            self.players.insert(player, ready);
        }
    }

    fn limits(&mut self, limits: &Limits) -> Result<()> {
        for limit in limits::ALL {
            let (value, others, quiet) = limits.measure(limit, &self.network, self.gate)?;
            println!("  {:<50} {value:>9.2} GB/s", limit.to_string());
            let sample = LimitSample {
                value,
                others,
                quiet,
            };
            self.results.add_limit(limit, sample);
        }
        Ok(())
    }

    /// Measures each case once by everybody. Gangs of a shape live side by side, asleep while others are measured.
    fn round(&mut self, cases: &Cases) {
        let mut gangs: BTreeMap<Player, Gang> = BTreeMap::new();
        let mut last = None;
        for (case, contenders) in cases {
            if last.replace(case.shape) != Some(case.shape) {
                gangs.clear();
            }
            for &contender in contenders {
                match self.measure(*case, contender, &mut gangs) {
                    Ok(figures) => {
                        tell(*case, contender, &figures);
                        self.results.add(*case, contender, figures);
                    }
                    Err(why) => {
                        println!("  {case}  {contender}: not run: {why}");
                        self.results.miss(*case, contender, why);
                        gangs.remove(&contender.player);
                    }
                }
                if case.memory(contender) > KEEPS_BYTES {
                    gangs.remove(&contender.player);
                }
            }
        }
        drop(gangs);
        if self.wants_waiting() {
            match self.wait() {
                Ok(waiting) => {
                    let (client, sidecar) = (waiting.client * 100.0, waiting.sidecar * 100.0);
                    println!(
                        "  waiting: client {client:.2} %, idle sidecar {sidecar:.2} % of a core"
                    );
                    self.results.add_waiting(waiting);
                }
                Err(error) => println!("  waiting: not run: {error:#}"),
            }
        }
    }

    fn measure(
        &self,
        case: Case,
        contender: Contender,
        gangs: &mut BTreeMap<Player, Gang>,
    ) -> Result<Figures, String> {
        let player = contender.player;
        let ready = match self.players.get(&player) {
            Some(Ok(ready)) => ready,
            Some(Err(why)) => return Err(why.clone()),
            None => return Err("not invited".to_owned()),
        };
        let (needed, free) = (case.memory(contender), machine::available_bytes());
        if needed as f64 > free as f64 * MEMORY_SHARE {
            return Err(format!(
                "it needs {} MiB of memory, {} are free",
                needed >> 20,
                free >> 20
            ));
        }
        let gang = match gangs.entry(player) {
            std::collections::btree_map::Entry::Occupied(gang) => gang.into_mut(),
            std::collections::btree_map::Entry::Vacant(seat) => {
                let gang = self.start(ready, case);
                seat.insert(gang.map_err(|error| format!("{error:#}"))?)
            }
        };
        let mut measured: Option<Figures> = None;
        for _ in 0..TRIES {
            let figures = gang
                .measure(case, contender.way, self.gate)
                .map_err(|error| format!("{error:#}"))?;
            let again = figures.quiet && is_noisy(&figures);
            let quieter = |other: &Figures| figures.others < other.others;
            if measured.as_ref().is_none_or(quieter) {
                measured = Some(figures);
            }
            if !again {
                break;
            }
        }
        measured.ok_or_else(|| "never measured".to_owned())
    }

    fn start(&self, ready: &Ready, case: Case) -> Result<Gang> {
        let (network, shape) = (&self.network, case.shape);
        match ready {
            Ready::Ours(program, transport) => ours::start(program, network, shape, *transport),
            Ready::Gloo(root) => gloo::start(root, network, shape),
            Ready::Mpi(library, path) => mpi::start(library, network, shape, *path),
            Ready::Step(program, trainer, exchange) => {
                step::start(program, trainer, network, shape, *exchange)
            }
        }
    }

    /// What waiting costs, with a gang of its own.
    fn wait(&self) -> Result<Waiting> {
        let case = Case {
            shape: shape(2, 1),
            dtype: DType::F32,
            load: kib(64),
        };
        let ready = Ready::Ours(self.program.clone(), Transport::Tcp);
        let mut gang = self.start(&ready, case)?;
        Ok(Waiting {
            client: gang.waiting(case, LATE)?,
            sidecar: gang.idling(WATCHED),
        })
    }

    /// Everything so far, each round by itself.
    fn write(&self, file: &str, facts: &Value) -> Result<()> {
        let all = json!({
            "machine": facts,
            "versions": self.versions(),
            "results": self.results.json(),
            "bars": table::bars_json(&self.results),
            "costs": table::costs_json(&self.results),
        });
        let text = serde_json::to_string_pretty(&all).context("failed to write the results")?;
        fs::write(file, text).with_context(|| format!("failed to write {file}"))
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let known = self
            .players
            .iter()
            .filter_map(|(player, ready)| match ready {
                Ok(Ready::Mpi(library, _)) => Some((player.to_string(), mpi::version(library))),
                Ok(Ready::Ours(..) | Ready::Gloo(_) | Ready::Step(..)) | Err(_) => None,
            });
        known.collect()
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

fn tell(case: Case, contender: Contender, figures: &Figures) {
    let rate = case.load.total() as f64 / figures.median.as_secs_f64() / 1e9;
    let noisy = if is_noisy(figures) { "noisy" } else { "" };
    println!(
        "  {:<24} {:<24} {:>10} {rate:>8.3} GB/s, others {:>3.0} % {noisy}",
        case.to_string(),
        contender.to_string(),
        Short(figures.median).to_string(),
        figures.others * 100.0
    );
}

#[cfg(test)]
mod tests {
    use super::case::{self, TCP, TCP_COPIES};
    use super::{is_wanted, parts};

    #[test]
    fn a_filter_names_fields_and_not_what_happens_to_contain_it() {
        let wanted = |filter: &str| {
            let cases = case::of_bars().into_iter();
            let all = cases.flat_map(|(case, who)| who.into_iter().map(move |who| (case, who)));
            all.filter(|(case, who)| is_wanted(&parts(filter), *case, *who))
                .collect::<Vec<_>>()
        };
        assert!(wanted("").len() > wanted("hfreduce").len());
        let small = wanted("2 x 1, 4 KiB, hfreduce tcp");
        assert_eq!(small.len(), 1);
        assert_eq!(small[0].1, TCP);
        let copies = wanted("2 x 4,186 mib,f32,copies");
        assert_eq!(copies.len(), 1);
        assert_eq!(copies[0].1, TCP_COPIES);
    }
}
