//! Which nodes measure the network between them: two whose runs are created at once, so that both
//! come to it at about the same time.

use super::DueNode;
use super::when::Due;
use crate::links::LinkResult;

/// A node without an open run.
pub(super) struct Candidate<'a> {
    pub(super) node: &'a DueNode,
    pub(super) due: Due,
    /// From when on it may have a run again, if its last one was withdrawn.
    pub(super) again: Option<i64>,
    /// Whether it is to have a run now. One that is not may be the partner of one that is.
    pub(super) is_wanted: bool,
    /// The newest way to a partner.
    pub(super) link: Option<&'a LinkResult>,
}

/// Chooses nodes that get a run, in their order, at most so many, and for each a partner if they are
/// to be in pairs: another of the same group that the same job uses, or nobody. Wanted ones come
/// first, the last partner only if there is no other, and after a slow way rather one whose own was
/// good. A node that has no possible partner is alone. One for whose partner there is no room waits.
pub(super) fn choose<'a>(
    mut candidates: Vec<Candidate<'a>>,
    mut room: usize,
    in_pairs: bool,
) -> Vec<(Candidate<'a>, Option<&'a str>)> {
    let mut chosen = Vec::new();
    while let Some(at) = candidates.iter().position(|one| one.is_wanted) {
        let one = candidates.remove(at);
        let partner = partner(&one, &candidates).filter(|_| in_pairs);
        let needed = 1 + usize::from(partner.is_some());
        if room < needed {
            break;
        }
        room -= needed;
        let partner = partner.map(|at| candidates.remove(at));
        let (name, other) = (
            &one.node.name,
            partner.as_ref().map(|other| &other.node.name),
        );
        let (name, other) = (name.as_str(), other.map(String::as_str));
        chosen.push((one, other));
        chosen.extend(partner.map(|partner| (partner, Some(name))));
    }
    chosen
}

fn partner(one: &Candidate<'_>, others: &[Candidate<'_>]) -> Option<usize> {
    if one.node.group.is_empty() {
        return None;
    }
    let job = |node: &DueNode| node.job.as_ref().map(|used| used.job.clone());
    let of_one = job(one.node);
    let fits = |other: &Candidate<'_>| {
        let may_be = other.is_wanted || other.node.quarantine.is_none();
        may_be && other.node.group == one.node.group && job(other.node) == of_one
    };
    let was_last = |other: &Candidate<'_>| {
        let last = one.link.map(|link| link.partner.as_str());
        last == Some(other.node.name.as_str())
    };
    // Two with a slow way would not tell which of them is the cause.
    let is_slow = |one: &Candidate<'_>| one.link.is_some_and(|link| !link.is_good);
    let fitting = others.iter().enumerate().filter(|(_, other)| fits(other));
    let best = fitting.min_by_key(|(_, other)| (was_last(other), is_slow(one) && is_slow(other)));
    best.map(|(at, _)| at)
}
