//! The environment of each rank: what the operator wrote into the pod, what the gang's roster says,
//! and the names that PyTorch and its kin expect.

use std::path::Path;
use std::time::Duration;

use contract::limits::MAX_PROCS_PER_NODE;
use contract::run_dir::{Roster, RosterNode};

use crate::limits::EXIT;

/// What is wrong with what the launcher was given.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to read {name}: {problem}; the operator sets it in the trainer container")]
    Variable { name: &'static str, problem: String },
    #[error(
        "failed to use the roster: it is of attempt {found}, this pod is of attempt {expected}"
    )]
    OtherAttempt { found: u32, expected: u32 },
    #[error("failed to use the roster: it lists {found} nodes, this job has {expected}")]
    OtherSize { found: usize, expected: u32 },
}

/// This node's place in the gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GangPlace {
    pub(crate) attempt: u32,
    pub(crate) node_rank: u32,
    pub(crate) nodes: u32,
    pub(crate) procs_per_node: u32,
    /// How long ranks have to end after one of the gang failed.
    pub(crate) exit: Duration,
}

impl GangPlace {
    /// Reads the place from the variables that the operator sets.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let given = |name: &'static str| -> Result<Option<u32>, Error> {
            let parse = |text: String| match text.parse() {
                Ok(number) => Ok(number),
                Err(error) => Err(Error::Variable {
                    name,
                    problem: format!("`{text}`: {error}"),
                }),
            };
            variable(name).map(parse).transpose()
        };
        let number = |name: &'static str| -> Result<u32, Error> {
            let problem = "it is not set".to_owned();
            given(name)?.ok_or(Error::Variable { name, problem })
        };
        let exit = given("FIREFLYER_EXIT_SECONDS")?;
        let place = Self {
            attempt: number("FIREFLYER_ATTEMPT")?,
            node_rank: number("FIREFLYER_NODE_RANK")?,
            nodes: number("FIREFLYER_NODES")?,
            procs_per_node: number("FIREFLYER_PROCS_PER_NODE")?,
            exit: exit.map_or(EXIT, |seconds| Duration::from_secs(seconds.into())),
        };
        if place.procs_per_node == 0 || place.procs_per_node > MAX_PROCS_PER_NODE {
            let problem = format!(
                "{} is not in 1..={MAX_PROCS_PER_NODE}",
                place.procs_per_node
            );
            return Err(Error::Variable {
                name: "FIREFLYER_PROCS_PER_NODE",
                problem,
            });
        }
        if place.node_rank >= place.nodes {
            let problem = format!("{} is not below {} nodes", place.node_rank, place.nodes);
            return Err(Error::Variable {
                name: "FIREFLYER_NODE_RANK",
                problem,
            });
        }
        Ok(place)
    }

    /// The global rank of a process of this node.
    pub(crate) fn rank(&self, local_rank: usize) -> u32 {
        let local_rank = u32::try_from(local_rank).unwrap_or(u32::MAX);
        self.node_rank
            .saturating_mul(self.procs_per_node)
            .saturating_add(local_rank)
    }

    /// What stands before each line that a process of this node prints: nothing where it is alone
    /// in its pod.
    pub(crate) fn line_prefix(&self, local_rank: usize) -> String {
        if self.procs_per_node == 1 {
            return String::new();
        }
        format!("[rank{}]: ", self.rank(local_rank))
    }

    /// What a process of this node gets on top of the container's own environment.
    pub(crate) fn environment(
        &self,
        roster: &Roster,
        run_dir: &Path,
        local_rank: usize,
    ) -> Result<Vec<(&'static str, String)>, Error> {
        let master = self.master(roster)?;
        let world = u64::from(self.nodes) * u64::from(self.procs_per_node);
        Ok(vec![
            ("RANK", self.rank(local_rank).to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("WORLD_SIZE", world.to_string()),
            ("LOCAL_WORLD_SIZE", self.procs_per_node.to_string()),
            ("NODE_RANK", self.node_rank.to_string()),
            ("GROUP_RANK", self.node_rank.to_string()),
            ("MASTER_ADDR", master.address.to_string()),
            ("MASTER_PORT", roster.master_port.to_string()),
            (
                "FIREFLYER_ON_PEER_LOSS",
                roster.on_peer_loss.name().to_owned(),
            ),
            ("FIREFLYER_RUN_DIR", run_dir.display().to_string()),
        ])
    }

    /// The roster's first node; by then the roster is known to be this gang's.
    fn master<'a>(&self, roster: &'a Roster) -> Result<&'a RosterNode, Error> {
        if roster.attempt != self.attempt {
            return Err(Error::OtherAttempt {
                found: roster.attempt,
                expected: self.attempt,
            });
        }
        let size = Error::OtherSize {
            found: roster.nodes.len(),
            expected: self.nodes,
        };
        match roster.nodes.first() {
            Some(first) if roster.nodes.len() as u64 == u64::from(self.nodes) => Ok(first),
            Some(_) | None => Err(size),
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::OnPeerLoss;

    use super::*;

    fn roster(attempt: u32, nodes: u32) -> Roster {
        let node = |rank: u32| RosterNode {
            rank,
            name: format!("n{rank}"),
            zone: "a".to_owned(),
            address: format!("10.0.0.{}", rank + 1).parse().unwrap(),
            port: 9404,
        };
        Roster {
            attempt,
            epoch: 1,
            nodes: (0..nodes).map(node).collect(),
            master_port: 29_500,
            on_peer_loss: OnPeerLoss::Shrink,
        }
    }

    fn place(procs: &str) -> Result<GangPlace, Error> {
        place_with(procs, None)
    }

    fn place_with(procs: &str, exit: Option<&str>) -> Result<GangPlace, Error> {
        GangPlace::read(|name| {
            let value = match name {
                "FIREFLYER_ATTEMPT" => "2",
                "FIREFLYER_NODE_RANK" => "1",
                "FIREFLYER_NODES" => "3",
                "FIREFLYER_PROCS_PER_NODE" => procs,
                "FIREFLYER_EXIT_SECONDS" => exit?,
                _ => return None,
            };
            Some(value.to_owned())
        })
    }

    #[test]
    fn a_rank_counts_the_processes_of_the_nodes_before_its_own() {
        let environment = place("4")
            .unwrap()
            .environment(&roster(2, 3), Path::new("/r"), 3)
            .unwrap();
        let value = |name| {
            environment
                .iter()
                .find(|entry| entry.0 == name)
                .unwrap()
                .1
                .as_str()
        };
        assert_eq!(
            (value("RANK"), value("LOCAL_RANK"), value("WORLD_SIZE")),
            ("7", "3", "12")
        );
        assert_eq!(
            (value("MASTER_ADDR"), value("MASTER_PORT")),
            ("10.0.0.1", "29500")
        );
        assert_eq!((value("NODE_RANK"), value("LOCAL_WORLD_SIZE")), ("1", "4"));
        assert_eq!(value("FIREFLYER_ON_PEER_LOSS"), "Shrink");
    }

    #[test]
    fn a_roster_of_another_attempt_or_size_is_refused() {
        let place = place("4").unwrap();
        let refused = place.environment(&roster(1, 3), Path::new("/r"), 0);
        assert_eq!(
            refused,
            Err(Error::OtherAttempt {
                found: 1,
                expected: 2
            })
        );
        let refused = place.environment(&roster(2, 2), Path::new("/r"), 0);
        assert_eq!(
            refused,
            Err(Error::OtherSize {
                found: 2,
                expected: 3
            })
        );
    }

    #[test]
    fn how_long_ranks_have_to_end_is_the_operators_to_say() {
        assert_eq!(place("4").unwrap().exit, EXIT);
        let exit = |text| place_with("4", Some(text));
        assert_eq!(exit("30").unwrap().exit, Duration::from_secs(30));
        let wrong = exit("soon").unwrap_err().to_string();
        assert!(wrong.contains("FIREFLYER_EXIT_SECONDS"), "{wrong}");
    }

    #[test]
    fn a_variable_that_makes_no_sense_is_named() {
        assert!(place("64").is_ok());
        for procs in ["0", "65"] {
            let error = place(procs).unwrap_err().to_string();
            assert!(error.contains("FIREFLYER_PROCS_PER_NODE"), "{error}");
        }
        assert!(place("many").unwrap_err().to_string().contains("`many`"));
    }
}
