//! HFReduce next to its rivals and the machine's limits, in interleaved rounds. Here is who can take part, and the order
//! of things; the command line is `args`'s, how a gang is measured `gang`'s, what has to hold `bars`'. What a rival needs
//! of the machine is installed by `cargo xtask bench hfreduce`, which starts this; nothing of it is part of what we ship.

mod args;
mod bars;
mod case;
mod conductor;
mod gang;
mod gloo;
mod limits;
mod mpi;
mod ours;
mod programs;
mod ranks;
mod results;
mod step;
mod table;
mod tuning;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::bar;
use crate::cores::Cores;
pub(crate) use crate::hfreduce::args::Args;
use crate::hfreduce::args::Need;
use crate::hfreduce::bars::Short;
use crate::hfreduce::case::{Case, Contender, DType, Exchange, Player, Transport, kib, shape};
use crate::hfreduce::gang::{Figures, Gang};
use crate::hfreduce::limits::Limits;
use crate::hfreduce::mpi::Library;
use crate::hfreduce::results::{Results, Waiting, is_noisy};
use crate::hfreduce::tuning::{Of, Tuning, Tunings, is_large};
use crate::machine;
use crate::network::Network;
use crate::sample::Sample;

/// Most nodes of any case.
const NODES: usize = 4;
/// How late the last rank is when the cost of waiting is measured, and how long a sidecar is watched.
const LATE: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(3);
/// How often a measurement is made that others disturbed although the machine was quiet before; the least disturbed counts.
const TRIES: usize = 3;
/// A way to work in which a rank is silent for longer is none.
const TRIAL_SILENCE: Duration = Duration::from_secs(20);
/// Of the memory that is free, how much a case may take.
const MEMORY_SHARE: f64 = 0.8;
/// A gang that had more than this does not keep it while others are measured.
const KEEPS_BYTES: u64 = 2 << 30;

/// Who is ready to take part.
enum Ready {
    Ours(PathBuf, ours::Words),
    Gloo(PathBuf),
    Mpi(Library, case::Path),
    Step(PathBuf, step::Trainer, Exchange),
}

struct Field {
    network: Network,
    args: Args,
    /// Who can take part, or why not.
    players: BTreeMap<Player, Result<Ready, String>>,
    results: Results,
    tunings: Tunings,
}

pub(crate) fn start(args: Args) -> Result<()> {
    let cases = args.cases()?;
    if args.needs {
        for need in needs(&cases) {
            println!("{need}");
        }
    } else {
        run(args, &cases)?;
    }
    Ok(())
}

/// What those who take part in the cases need of the machine.
fn needs(cases: &Cases) -> BTreeSet<Need> {
    let contenders = cases.iter().flat_map(|(_, contenders)| contenders);
    let needs = contenders.flat_map(|contender| match contender.player {
        Player::Ours(_) | Player::Pool(_) | Player::IntelMpi(_) => &[][..],
        Player::Gloo => &[Need::Trainer],
        Player::OpenMpi(_) => &[Need::OpenMpi],
        Player::Step(_) => &[Need::Trainer, Need::Wheel],
    });
    needs.copied().collect()
}

fn run(args: Args, cases: &Cases) -> Result<()> {
    let mut network = Network::star(NODES)?;
    if let Some(each) = args.cores {
        network.divide(Cores::new(each.into())?);
    }
    let mut field = Field {
        network,
        args,
        players: BTreeMap::new(),
        results: Results::default(),
        tunings: Tunings::default(),
    };
    field.invite(cases);
    let facts = machine::facts();
    println!("machine: {facts}");
    for warning in machine::warnings() {
        println!("warning: {warning}");
    }
    if let Some(cores) = &field.network.cores {
        say(cores, cases);
    }
    let limits = Limits::new()?;
    let rounds = field.args.rounds();
    for round in 1..=rounds {
        println!("== round {round} of {rounds}");
        // Steps are compared with each other only.
        if cases
            .iter()
            .any(|(_, contenders)| !contenders.iter().all(Contender::is_step))
        {
            field.limits(&limits)?;
        }
        field.round(cases);
        // After every round: who ends a long run early keeps what there is.
        if let Some(file) = &field.args.json {
            field.write(file, &facts)?;
        }
    }
    table::print(&field.results);
    Ok(())
}

/// Which processors nodes have, and where some have the same.
fn say(cores: &Cores, cases: &Cases) {
    let lists = (0..NODES).map(|node| format!("node {node} {}", cores.of_node(node)));
    println!("cores: {}", lists.collect::<Vec<_>>().join("; "));
    let nodes: BTreeSet<usize> = cases.iter().map(|(case, _)| case.shape.nodes).collect();
    for nodes in nodes.into_iter().filter(|nodes| !cores.are_apart(*nodes)) {
        let (each, all) = (cores.each, cores.of_nodes(nodes).len());
        println!(
            "warning: {nodes} nodes of {each} processors share the {all} of this machine: their times are no times of nodes"
        );
    }
}

type Cases = Vec<(Case, Vec<Contender>)>;
/// The gangs of a shape, by who they are and whether they are configured for large messages.
type Gangs = BTreeMap<(Player, bool), Gang>;

/// A gang's place among them.
const fn seat(case: Case, player: Player) -> (Player, bool) {
    let differs = matches!(player, Player::OpenMpi(_) | Player::IntelMpi(_));
    (player, differs && is_large(case.load))
}

impl Field {
    /// Makes everybody ready who takes part in a case.
    fn invite(&mut self, cases: &Cases) {
        let contenders = cases.iter().flat_map(|(_, contenders)| contenders);
        for player in contenders.map(|contender| contender.player) {
            if self.players.contains_key(&player) {
                continue;
            }
            let sidecar = || self.args.sidecar.clone();
            let need = |need| self.args.provided(need);
            let ready = match player {
                Player::Ours(transport) => Ok(Ready::Ours(sidecar(), ours::words(transport))),
                Player::Pool(threads) => Ok(Ready::Ours(sidecar(), ours::pool(threads))),
                Player::Gloo => need(Need::Trainer).map(|root| Ready::Gloo(root.into())),
                Player::OpenMpi(path) => need(Need::OpenMpi)
                    .and_then(mpi::open)
                    .map(|library| Ready::Mpi(library, path)),
                Player::IntelMpi(path) => mpi::intel().map(|library| Ready::Mpi(library, path)),
                Player::Step(exchange) => need(Need::Trainer).and_then(|root| {
                    let (root, wheel) = (root.into(), need(Need::Wheel)?.into());
                    let trainer = step::Trainer { root, wheel };
                    Ok(Ready::Step(sidecar(), trainer, exchange))
                }),
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
            let (value, others, quiet) = limits.measure(limit, &self.network, self.args.gate())?;
            println!("  {:<50} {value:>9.2} {}", limit.to_string(), limit.unit());
            let sample = Sample {
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
        let mut gangs = Gangs::new();
        let mut last = None;
        for (case, contenders) in cases {
            if last.replace(case.shape) != Some(case.shape) {
                gangs.clear();
            }
            for &contender in contenders {
                match self.measure(*case, contender, &mut gangs) {
                    Ok(figures) => {
                        print(*case, contender, &figures);
                        self.results.add(*case, contender, figures);
                    }
                    Err(why) => {
                        println!("  {case}  {contender}: not run: {why}");
                        self.results.miss(*case, contender, why);
                        gangs.remove(&seat(*case, contender.player));
                    }
                }
                if case.memory(contender) > KEEPS_BYTES {
                    gangs.remove(&seat(*case, contender.player));
                }
            }
        }
        drop(gangs);
        if self.args.wants_waiting() {
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
        &mut self,
        case: Case,
        contender: Contender,
        gangs: &mut Gangs,
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
        let of = Of::new(player, case.shape, case.load);
        if let Ready::Mpi(library, path) = ready
            && self.tunings.get(of).is_none()
        {
            let network = &self.network;
            self.tunings.choose(of, |tuning| {
                let mut gang = mpi::start(library, network, case.shape, *path, tuning)?;
                gang.trial(case, TRIAL_SILENCE)
            });
        }
        let gang = match gangs.entry(seat(case, player)) {
            std::collections::btree_map::Entry::Occupied(gang) => gang.into_mut(),
            std::collections::btree_map::Entry::Vacant(seat) => {
                let gang = self.start(ready, case, self.tunings.get(of));
                seat.insert(gang.map_err(|error| format!("{error:#}"))?)
            }
        };
        let mut measured: Option<Figures> = None;
        for _ in 0..TRIES {
            let figures = gang
                .measure(case, contender.way, self.args.gate())
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

    fn start(&self, ready: &Ready, case: Case, tuning: Option<&Tuning>) -> Result<Gang> {
        let (network, shape) = (&self.network, case.shape);
        match ready {
            Ready::Ours(program, words) => ours::start(program, network, shape, words),
            Ready::Gloo(root) => gloo::start(root, network, shape),
            Ready::Mpi(library, path) => {
                let own = Tuning::default();
                mpi::start(library, network, shape, *path, tuning.unwrap_or(&own))
            }
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
        let words = ours::words(Transport::Tcp);
        let ready = Ready::Ours(self.args.sidecar.clone(), words);
        let mut gang = self.start(&ready, case, None)?;
        Ok(Waiting {
            client: gang.waiting(case, LATE)?,
            sidecar: gang.idling(WATCHED),
        })
    }

    /// Everything so far, each round by itself.
    fn write(&self, file: &Path, facts: &Value) -> Result<()> {
        let all = json!({
            "machine": facts,
            "cores": self.network.cores.as_ref().map(|cores| cores.json(NODES)),
            "versions": self.versions(),
            "tunings": self.tunings.json(),
            "results": self.results.json(),
            "bars": bar::json(&bars::all(&self.results)),
            "costs": table::costs_json(&self.results),
        });
        let text = serde_json::to_string_pretty(&all).context("failed to write the results")?;
        fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
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

fn print(case: Case, contender: Contender, figures: &Figures) {
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
