//! A cluster's name and everything that follows from it: namespaces, cgroups, addresses. Pure: it
//! asks nobody.
//!
//! Several clusters share a machine because each has an index, and the index picks its subnets:
//!
//! | what | range of cluster I |
//! |---|---|
//! | services | 10.(96+I).0.0/16 |
//! | pods of node N | 10.(128+I).N.0/24 |
//! | pods of fake nodes | 10.(160+I).0.0/16 |
//! | control plane, node N | 10.(192+I).0.1, 10.(192+I).0.(10+N) |

use std::fmt;
use std::net::Ipv4Addr;

use crate::error::{Error, Result};

/// Four blocks of 32 second octets fit between 10.96 and 10.223.
pub(crate) const MAX_CLUSTERS: u8 = 32;
/// Node addresses end in 11..=110.
pub(crate) const MAX_NODES: usize = 100;

/// The name of a cluster: a DNS label of at most 30 characters, so that `NAME-100` is a node name
/// anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    const MAX_BYTES: usize = 30;

    /// Accepts `[a-z][a-z0-9-]*` that does not end in `-`.
    pub fn new(text: &str) -> Result<Self> {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let legal = text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(inner)
            && !text.ends_with('-')
            && text.len() <= Self::MAX_BYTES;
        if legal {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::new(format!(
            "{text:?} is not a cluster name: use lower-case letters, digits and -, starting with a letter, \
             at most {} characters",
            Self::MAX_BYTES
        )))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the names of all this cluster's namespaces and cgroups start with. The dots keep `dev`
    /// and `dev-1` apart.
    pub(crate) fn prefix(&self) -> String {
        format!("ff.{}.", self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names and addresses of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) name: Name,
    index: u8,
}

impl Layout {
    /// The index must be one that [`free_index`] gave.
    pub(crate) fn new(name: Name, index: u8) -> Result<Self> {
        if index >= MAX_CLUSTERS {
            return Err(Error::new(format!(
                "cluster index {index} is not below {MAX_CLUSTERS}"
            )));
        }
        Ok(Self { name, index })
    }

    /// The network namespace that holds the bridge between the nodes.
    pub(crate) fn switch_namespace(&self) -> String {
        self.name.prefix() + "switch"
    }

    /// The network namespace of the control plane.
    pub(crate) fn control_namespace(&self) -> String {
        self.name.prefix() + "control"
    }

    /// The network namespace of node `number` (from 1); its cgroups have the same name.
    pub(crate) fn node_namespace(&self, number: usize) -> String {
        format!("{}{number}", self.name.prefix())
    }

    /// The Kubernetes name of node `number`.
    pub(crate) fn node_name(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// Where the API server listens, inside the cluster's network.
    pub(crate) fn control_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 192 + self.index, 0, 1)
    }

    pub(crate) fn node_address(&self, number: usize) -> Ipv4Addr {
        // Numbers stay below MAX_NODES, see Cluster::up.
        Ipv4Addr::new(10, 192 + self.index, 0, 10 + number as u8)
    }

    pub(crate) fn node_pods(&self, number: usize) -> String {
        format!("10.{}.{number}.0/24", 128 + self.index)
    }

    pub(crate) fn all_pods(&self) -> String {
        format!("10.{}.0.0/16", 128 + self.index)
    }

    pub(crate) fn fake_pods(&self) -> String {
        format!("10.{}.0.0/16", 160 + self.index)
    }

    pub(crate) fn services(&self) -> String {
        format!("10.{}.0.0/16", 96 + self.index)
    }

    /// The ClusterIP of the Service `kubernetes`: always the first of the range.
    pub(crate) fn api_service(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96 + self.index, 0, 1)
    }
}

/// The lowest index that no other cluster has.
pub(crate) fn free_index(taken: &[u8]) -> Option<u8> {
    (0..MAX_CLUSTERS).find(|index| !taken.contains(index))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Layout, MAX_CLUSTERS, MAX_NODES, Name, free_index};

    fn layout(name: &str, index: u8) -> Layout {
        Layout::new(Name::new(name).unwrap(), index).unwrap()
    }

    #[test]
    fn names_are_dns_labels() {
        for good in ["dev", "a", "demo-2", "x0"] {
            Name::new(good).unwrap();
        }
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "1a",
            "a.b",
            "a/b",
            "..",
            &"a".repeat(31),
        ] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_two_clusters_share_an_address() {
        let mut seen = BTreeSet::new();
        for index in 0..MAX_CLUSTERS {
            let cluster = layout("a", index);
            for range in [cluster.services(), cluster.all_pods(), cluster.fake_pods()] {
                assert!(seen.insert(range));
            }
            for number in 1..=MAX_NODES {
                assert!(seen.insert(cluster.node_pods(number)));
                assert!(seen.insert(cluster.node_address(number).to_string()));
            }
            assert!(seen.insert(cluster.control_address().to_string()));
        }
    }

    #[test]
    fn a_name_that_starts_like_another_shares_no_namespace_with_it() {
        let node = layout("dev", 0).node_namespace(1);
        assert!(!node.starts_with(&Name::new("dev-1").unwrap().prefix()));
        assert!(node.starts_with(&Name::new("dev").unwrap().prefix()));
    }

    #[test]
    fn an_index_is_free_until_all_are_taken() {
        assert_eq!(free_index(&[]), Some(0));
        assert_eq!(free_index(&[0, 1, 3]), Some(2));
        let all: Vec<u8> = (0..MAX_CLUSTERS).collect();
        assert_eq!(free_index(&all), None);
    }
}
