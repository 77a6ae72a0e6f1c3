//! What a node without memory knows of a group: what its ranks say was delivered to them. Each of them remembers a group from
//! the answer to its opening until it knows that its end was delivered to all ranks.

use super::{GroupReport, OpId};
use crate::machine::GroupId;

/// What was delivered to a rank in a group that it has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenedGroup {
    /// The first operation that was not delivered.
    pub(crate) delivered: OpId,
    /// Whether the one before has closed the group.
    pub(crate) closed: bool,
}

/// The first operation that was not delivered to each rank of a group on one node. `None` stands for a rank that knows nothing
/// of the group.
pub(crate) fn delivered_each(ranks: &[Option<OpenedGroup>]) -> Vec<OpId> {
    // Where the group is closed for one, all have called that: who knows nothing of it has learned since that it was
    // delivered to all. Otherwise it does not know that the group is open, and nobody has ended anything in it.
    let closed = ranks.iter().flatten().find(|one| one.closed);
    let unknown = closed.map_or(0, |one| one.delivered);
    let first = |one: &Option<OpenedGroup>| one.map_or(unknown, |one| one.delivered);
    ranks.iter().map(first).collect()
}

/// Whether nobody needs a group any more whose ranks on this node know this. `base`: what the next epoch begins it with, if
/// any member has reported it.
pub(crate) fn is_over(ranks: &[Option<OpenedGroup>], base: Option<OpId>) -> bool {
    let mut known = ranks.iter().flatten().peekable();
    known.peek().is_some()
        && known.all(|one| one.closed && base.is_none_or(|base| base >= one.delivered))
}

impl GroupReport {
    /// The report of a node that holds nothing, from `delivered_each`.
    #[must_use]
    pub fn of_delivered(group: GroupId, delivered: &[OpId]) -> Self {
        Self {
            group,
            delivered_to_all: delivered.iter().copied().min().unwrap_or(0),
            delivered_to_any: delivered.iter().copied().max().unwrap_or(0),
            retained: Vec::new(),
            refused: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: Option<OpenedGroup> = Some(OpenedGroup {
        delivered: 5,
        closed: true,
    });

    fn open(first: OpId) -> OpenedGroup {
        let closed = false;
        OpenedGroup {
            delivered: first,
            closed,
        }
    }

    #[test]
    fn nothing_was_delivered_in_a_group_to_who_does_not_know_that_it_is_open() {
        let delivered = delivered_each(&[Some(open(0)), None]);
        assert_eq!(delivered, [0, 0]);
        let report = GroupReport::of_delivered(3, &delivered_each(&[Some(open(7)), Some(open(4))]));
        assert_eq!(
            (
                report.group,
                report.delivered_to_all,
                report.delivered_to_any
            ),
            (3, 4, 7)
        );
        assert!(report.is_sound());
    }

    #[test]
    fn the_end_of_a_closed_group_was_delivered_to_who_has_forgotten_it() {
        assert_eq!(delivered_each(&[None, CLOSED, None]), [5, 5, 5]);
        assert_eq!(delivered_each(&[Some(open(4)), CLOSED]), [4, 5]);
    }

    #[test]
    fn a_group_is_over_when_all_that_know_it_closed_it_and_everything_was_delivered() {
        assert!(is_over(&[CLOSED, None], None));
        assert!(is_over(&[CLOSED], Some(5)));
        assert!(!is_over(&[CLOSED], Some(4)), "it was not delivered to all");
        assert!(!is_over(&[CLOSED, Some(open(4))], Some(5)));
        assert!(!is_over(&[None], None), "it is none of this node's");
    }
}
