//! What a chunk remembers of the writes of each session, so that one that is sent again is not done again. It lies with
//! the content, on every member: whoever is the head next knows it too.

use crate::table::SessionId;

/// Most sessions that a chunk remembers. One more waits until another is settled or ends.
pub const MOST_RECORDS: usize = 64;

/// The last write of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub session: SessionId,
    /// The session's number of it.
    pub number: u64,
}

/// Those of one chunk, one for each session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records(Vec<Record>);

/// What a write is to a chunk that remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was not done.
    New,
    /// It was the session's last one.
    Done,
    /// The session has done a later one.
    Old,
}

impl Records {
    /// From what a disk or a peer has; none if that is more than there can be.
    #[must_use]
    pub fn new(records: Vec<Record>) -> Option<Self> {
        let sessions = records.iter().map(|record| record.session);
        let are_sorted = sessions.is_sorted_by(|one, next| one < next);
        (are_sorted && records.len() <= MOST_RECORDS).then_some(Self(records))
    }

    /// By session.
    #[must_use]
    pub fn as_slice(&self) -> &[Record] {
        &self.0
    }

    pub(crate) fn seen(&self, session: SessionId, number: u64) -> Seen {
        let last = self.0.iter().find(|record| record.session == session);
        match last.map(|last| number.cmp(&last.number)) {
            None | Some(std::cmp::Ordering::Greater) => Seen::New,
            Some(std::cmp::Ordering::Equal) => Seen::Done,
            Some(std::cmp::Ordering::Less) => Seen::Old,
        }
    }

    /// With a new write, and without those that nobody sends again; none if there is no room.
    pub(crate) fn with(
        &self,
        record: Record,
        is_settled: impl Fn(&Record) -> bool,
    ) -> Option<Self> {
        let stay = |old: &&Record| old.session != record.session && !is_settled(old);
        let mut records: Vec<_> = self.0.iter().filter(stay).copied().collect();
        let at = records.partition_point(|old| old.session < record.session);
        records.insert(at, record);
        Self::new(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(session: u64, number: u64) -> Record {
        let session = SessionId(session);
        Record { session, number }
    }

    #[test]
    fn the_last_write_of_a_session_is_done_and_earlier_ones_are_old() {
        let records = Records::default().with(record(3, 7), |_| false).unwrap();
        let seen = |session, number| records.seen(SessionId(session), number);
        assert_eq!(
            [seen(3, 6), seen(3, 7), seen(3, 8), seen(4, 7)],
            [Seen::Old, Seen::Done, Seen::New, Seen::New]
        );
    }

    #[test]
    fn one_more_than_there_is_room_for_waits_for_a_settled_one() {
        let full = (0..MOST_RECORDS as u64).fold(Records::default(), |records, session| {
            records.with(record(session, 1), |_| false).unwrap()
        });
        assert_eq!(full.with(record(1000, 1), |_| false), None);
        assert!(full.with(record(5, 2), |_| false).is_some());
        let is_settled = |record: &Record| record.session == SessionId(9);
        let next = full.with(record(1000, 1), is_settled).unwrap();
        assert_eq!(next.seen(SessionId(9), 1), Seen::New);
        assert_eq!(next.as_slice().len(), MOST_RECORDS);
    }

    #[test]
    fn foreign_records_are_sorted_single_and_not_too_many() {
        assert!(Records::new(vec![record(1, 5), record(2, 4)]).is_some());
        assert_eq!(Records::new(vec![record(2, 4), record(1, 5)]), None);
        assert_eq!(Records::new(vec![record(2, 4), record(2, 5)]), None);
        let many = (0..=MOST_RECORDS as u64).map(|session| record(session, 1));
        assert_eq!(Records::new(many.collect()), None);
    }
}
