//! How the MPI libraries are configured: each is tried in the ways that its users know, on the case that is measured, and the
//! best is measured beside ours. The other flags of their launchers are `mpi`'s.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::hfreduce::bars::Short;
use crate::hfreduce::case::{Load, Path, Player, Shape};

/// One way to work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Parameters of Open MPI's launcher.
    pub(crate) words: Vec<String>,
    /// The environment of Intel MPI.
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// What is measured in one way. Small messages have other algorithms than large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Of {
    player: Player,
    shape: Shape,
    is_large: bool,
}

impl Of {
    pub(crate) fn new(player: Player, shape: Shape, load: Load) -> Self {
        let is_large = is_large(load);
        Self {
            player,
            shape,
            is_large,
        }
    }
}

pub(crate) const fn is_large(load: Load) -> bool {
    load.bytes > 64 << 10
}

/// A way that was tried, with its time or why there is none.
type Tried = (Tuning, Result<Duration, String>);

/// The best ways, and all that were tried, in order.
#[derive(Debug, Default)]
pub(crate) struct Tunings {
    chosen: BTreeMap<Of, (Tuning, Vec<Tried>)>,
}

impl Tunings {
    pub(crate) fn get(&self, of: Of) -> Option<&Tuning> {
        self.chosen.get(&of).map(|(tuning, _)| tuning)
    }

    /// Tries all ways of a player, the second kind of words with the best of the first kind.
    pub(crate) fn choose(&mut self, of: Of, mut trial: impl FnMut(&Tuning) -> Result<Duration>) {
        let (mut best, mut tried) = (Tuning::default(), Vec::new());
        for kind in kinds(of.player) {
            let with = |one: Tuning| Tuning {
                words: [best.words.clone(), one.words].concat(),
                environment: [best.environment.clone(), one.environment].concat(),
            };
            for tuning in kind.into_iter().map(with) {
                let time = trial(&tuning).map_err(|error| format!("{error:#}"));
                let said = match &time {
                    Ok(time) => Short(*time).to_string(),
                    Err(why) => why.clone(),
                };
                println!("    tries {} with {tuning}: {said}", of.player);
                tried.push((tuning, time));
            }
            let times = tried.iter().filter_map(|(tuning, time)| {
                let time = *time.as_ref().ok()?;
                Some((time, tuning))
            });
            if let Some((_, fastest)) = times.min_by_key(|(time, _)| *time) {
                best = fastest.clone();
            }
        }
        println!("  {}, {}: best with {best}", of.player, of.shape);
        self.chosen.insert(of, (best, tried));
    }

    pub(crate) fn json(&self) -> Value {
        let each = self.chosen.iter().map(|(of, (best, tried))| {
            let tried = tried.iter().map(|(tuning, time)| {
                let (seconds, why) = match time {
                    Ok(time) => (Some(time.as_secs_f64()), None),
                    Err(why) => (None, Some(why)),
                };
                json!({"with": tuning.to_string(), "seconds": seconds, "notRun": why})
            });
            json!({
                "contender": of.player.to_string(),
                "shape": of.shape.to_string(),
                "large": of.is_large,
                "best": best.to_string(),
                "tried": tried.collect::<Vec<_>>(),
            })
        });
        each.collect()
    }
}

impl std::fmt::Display for Tuning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let environment = self.environment.iter();
        let environment = environment.map(|(name, value)| format!("{name}={value}"));
        let all: Vec<String> = environment.chain(self.words.iter().cloned()).collect();
        if all.is_empty() {
            return f.write_str("its own choice");
        }
        f.write_str(&all.join(" "))
    }
}

fn environment(name: &'static str, value: impl ToString) -> Tuning {
    Tuning {
        words: Vec::new(),
        environment: vec![(name, value.to_string())],
    }
}

fn parameters(words: &str) -> Tuning {
    Tuning {
        words: words.split(' ').map(str::to_owned).collect(),
        environment: Vec::new(),
    }
}

/// The ways, by kind; each kind begins with what the library does by itself.
fn kinds(player: Player) -> [Vec<Tuning>; 2] {
    let own = Tuning::default;
    match player {
        Player::IntelMpi(_) => {
            // A rank that waits sleeps, or spins: with fewer processors than ranks either may be better.
            let waits = vec![own(), environment("I_MPI_WAIT_MODE", 1)];
            let algorithms = (1..=12).map(|number| environment("I_MPI_ADJUST_ALLREDUCE", number));
            [waits, algorithms.collect()]
        }
        Player::OpenMpi(path) => {
            let (over, ucx) = match path {
                Path::Tcp => ("self,vader,tcp", "tcp,self,sm"),
                Path::Shm => ("self,vader", "self,sm"),
            };
            let ways = vec![
                parameters(&format!("--mca pml ob1 --mca btl {over}")),
                parameters(&format!("--mca pml ucx -x UCX_TLS={ucx}")),
            ];
            let tuned = |number: usize| {
                parameters(&format!(
                    "--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm {number}"
                ))
            };
            let han = parameters("--mca coll_han_priority 100");
            let algorithms = [han].into_iter().chain((1..=6).map(tuned));
            [ways, algorithms.collect()]
        }
        Player::Ours(_) | Player::Pool(_) | Player::Gloo | Player::Step(_) => {
            [Vec::new(), Vec::new()]
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;
    use crate::hfreduce::case::{mib, shape};

    const PLAYER: Player = Player::IntelMpi(Path::Shm);

    #[test]
    fn the_second_kind_is_tried_with_the_best_of_the_first_and_what_fails_is_left_out() {
        let (mut tunings, mut seen) = (Tunings::default(), Vec::new());
        let of = Of::new(PLAYER, shape(4, 8), mib(64));
        tunings.choose(of, |tuning| {
            seen.push(tuning.to_string());
            Ok(Duration::from_millis(match seen.len() {
                1 => 900,
                2 => 500,
                5 => 300,
                7 => bail!("it is silent"),
                _ => 600,
            }))
        });
        assert_eq!(seen.len(), 14);
        assert_eq!(seen[..2], ["its own choice", "I_MPI_WAIT_MODE=1"]);
        let best = tunings.get(of).unwrap().to_string();
        assert_eq!(best, "I_MPI_WAIT_MODE=1 I_MPI_ADJUST_ALLREDUCE=3");
        assert_eq!(tunings.json()[0]["tried"][6]["notRun"], "it is silent");
    }

    #[test]
    fn where_no_algorithm_gains_it_stays_what_it_was() {
        let (mut tunings, mut number) = (Tunings::default(), 0);
        let of = Of::new(PLAYER, shape(2, 1), mib(64));
        tunings.choose(of, |_| {
            number += 1;
            Ok(Duration::from_millis(100 + number))
        });
        assert_eq!(*tunings.get(of).unwrap(), Tuning::default());
    }
}
