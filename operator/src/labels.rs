//! Labels of nodes, each kept once however many nodes have it. Feature discovery gives a node more
//! than a hundred, of which nearly all are those of its neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Labels that no node has any more are dropped when there are twice as many as there were the last
/// time, and these more.
const SWEEP: usize = 1024;

/// A label with its value.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// Its key.
    pub key: Box<str>,
    /// Its value.
    pub value: Box<str>,
}

/// All labels that nodes have.
#[derive(Debug, Default)]
pub struct LabelPool {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    labels: BTreeSet<Arc<Label>>,
    /// Number of labels that were left when the unused ones were dropped last.
    swept: usize,
}

impl LabelPool {
    /// The labels of an object, those that others have shared with them.
    pub fn share(&self, labels: BTreeMap<String, String>) -> Vec<Arc<Label>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = labels.into_iter().map(|(key, value)| {
            known.shared(Label {
                key: key.into(),
                value: value.into(),
            })
        });
        let shared = shared.collect();
        known.sweep();
        shared
    }
}

impl Known {
    fn shared(&mut self, label: Label) -> Arc<Label> {
        if let Some(known) = self.labels.get(&label) {
            return Arc::clone(known);
        }
        let label = Arc::new(label);
        self.labels.insert(Arc::clone(&label));
        label
    }

    fn sweep(&mut self) {
        if self.labels.len() > 2 * self.swept + SWEEP {
            self.labels.retain(|label| Arc::strong_count(label) > 1);
            self.swept = self.labels.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn nodes_with_the_same_label_share_it() {
        let pool = LabelPool::default();
        let one = pool.share(labels(&[("gpu", "a100"), ("host", "n1")]));
        let other = pool.share(labels(&[("gpu", "a100"), ("host", "n2")]));
        assert!(Arc::ptr_eq(&one[0], &other[0]));
        assert_ne!(one[1], other[1]);
    }

    #[test]
    fn labels_that_no_node_has_any_more_are_dropped() {
        let pool = LabelPool::default();
        let kept = pool.share(labels(&[("gpu", "a100")]));
        for index in 0..10 * SWEEP {
            pool.share(labels(&[("uptime", &index.to_string())]));
        }
        let known = pool.known.lock().unwrap();
        assert!(known.labels.len() <= SWEEP + 3, "{}", known.labels.len());
        assert!(known.labels.contains(&kept[0]));
    }
}
