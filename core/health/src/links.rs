//! The ways between nodes, by the newest run that measured each, and which of two nodes a slow one
//! is due to: what two nodes share says nothing about one of them alone.

use std::collections::BTreeMap;

/// So many partners that are good elsewhere show that a node is the cause.
const WITNESSES: usize = 2;

/// What a run found of the way to its partner node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkResult {
    /// The other node.
    pub partner: String,
    /// Whether every result of it is a Pass.
    pub is_good: bool,
}

/// The newest result of each two nodes.
#[derive(Clone, Debug, Default)]
pub struct Links(BTreeMap<String, BTreeMap<String, Sample>>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: i64,
    is_good: bool,
}

/// Two nodes whose run is judged.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The node that is judged.
    pub node: &'a str,
    /// The other.
    pub partner: &'a str,
    /// What is known of these and other nodes.
    pub links: &'a Links,
}

impl Links {
    /// Adds what a run of a node found. `at` is when it ended, on any scale. The order does not
    /// matter.
    pub fn push(&mut self, node: &str, at: i64, link: &LinkResult) {
        let is_good = link.is_good;
        for [one, other] in [[node, &link.partner], [&link.partner, node]] {
            let of_one = self.0.entry(one.to_owned()).or_default();
            // Of two that end at once the bad one counts.
            let is_newer = |known: &Sample| (known.at, !known.is_good) < (at, !is_good);
            if of_one.get(other).is_none_or(is_newer) {
                of_one.insert(other.to_owned(), Sample { at, is_good });
            }
        }
    }

    /// Whether the newest way of a node to any but this one is good, and when that was seen. Without
    /// one nobody knows.
    fn good_elsewhere(&self, node: &str, except: &str) -> Option<i64> {
        let ways = self.0.get(node).into_iter().flatten();
        let others = ways.filter(|(other, _)| *other != except);
        let newest = others.max_by_key(|(_, sample)| (sample.at, !sample.is_good));
        let good = newest.filter(|(_, sample)| sample.is_good);
        good.map(|(_, sample)| sample.at)
    }
}

impl<'a> Pair<'a> {
    /// The partners with which the node is slow, now and before, and which are good with others:
    /// none, unless they are enough to show that the node is the cause. Whoever was slow with it
    /// before has been good since, and the node itself has been good with nobody since.
    pub(crate) fn witnesses(&self) -> Option<Vec<&'a str>> {
        let Self {
            node,
            partner,
            links,
        } = *self;
        let ways = || links.0.get(node).into_iter().flatten();
        let good = ways().filter(|(_, sample)| sample.is_good);
        let good = good.map(|(_, sample)| sample.at).max();
        let before = ways().filter(|(other, sample)| {
            let since = links.good_elsewhere(other, node);
            let is_other = *other != partner && !sample.is_good;
            is_other && Some(sample.at) > good && since > Some(sample.at)
        });
        let now = links.good_elsewhere(partner, node).map(|_| partner);
        let before = before.map(|(other, _)| other.as_str());
        let witnesses: Vec<_> = now.into_iter().chain(before).collect();
        (witnesses.len() >= WITNESSES).then_some(witnesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in their order: `a-b` is slow, `a=b` is good.
    fn links(runs: &str) -> Links {
        let mut links = Links::default();
        for (at, run) in (0..).zip(runs.split_whitespace()) {
            let is_good = run.contains('=');
            let (node, partner) = run.split_once(['-', '=']).unwrap();
            let partner = partner.to_owned();
            links.push(node, at, &LinkResult { partner, is_good });
        }
        links
    }

    fn witnesses(runs: &str, node: &str, partner: &str) -> Vec<String> {
        let links = links(runs);
        let pair = Pair {
            node,
            partner,
            links: &links,
        };
        let witnesses = pair.witnesses().unwrap_or_default();
        witnesses.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_node_is_the_cause_if_two_are_good_with_others_and_slow_with_it() {
        assert_eq!(witnesses("c=e a-b b=d", "a", "c"), ["c", "b"]);
        // Whoever ran: a way has two ends.
        assert_eq!(witnesses("e=c b-a d=b", "a", "c"), ["c", "b"]);
        // The partners say nothing of each other's.
        assert_eq!(witnesses("c=e a-b b=d", "c", "a"), [""; 0]);
    }

    #[test]
    fn nobody_is_blamed_with_less() {
        for runs in [
            "",
            // One partner only.
            "c=e",
            // The other was not good elsewhere since.
            "a-b c=e",
            "b=d a-b c=e",
            "a-b b-d c=e",
            // It was, and is not any more.
            "a-b b=d b-e c=e",
            // The node was good since, with it or with another.
            "a-b b=d a=b c=e",
            "a-b b=d a=f c=e",
            // Good only with the node itself.
            "a=b a-b c=e",
        ] {
            assert_eq!(witnesses(runs, "a", "c"), [""; 0], "{runs}");
        }
    }

    #[test]
    fn of_two_results_at_once_the_bad_one_counts_in_any_order() {
        for order in [[true, false], [false, true]] {
            let mut links = Links::default();
            for is_good in order {
                let partner = "b".to_owned();
                links.push("a", 1, &LinkResult { partner, is_good });
            }
            assert_eq!(links.good_elsewhere("a", "c"), None);
        }
    }
}
