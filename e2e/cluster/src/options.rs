//! What a cluster shall be like: the caller's wishes, not yet checked.

use crate::layout::Name;

/// What to bring up.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    pub(crate) name: Name,
    pub(crate) nodes: usize,
    pub(crate) zones: Vec<String>,
    pub(crate) fake_nodes: usize,
}

impl ClusterOptions {
    /// Two nodes in one zone, no fake ones.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            nodes: 2,
            zones: vec!["a".to_owned()],
            fake_nodes: 0,
        }
    }

    /// How many real nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// The zone of each node; when there are fewer zones than nodes, they start over.
    #[must_use]
    pub fn zones(mut self, zones: &[impl AsRef<str>]) -> Self {
        self.zones = zones.iter().map(|zone| zone.as_ref().to_owned()).collect();
        self
    }

    /// How many simulated nodes, of class `simulated`, besides.
    #[must_use]
    pub fn fake_nodes(mut self, fake_nodes: usize) -> Self {
        self.fake_nodes = fake_nodes;
        self
    }
}
