//! Sessions: opened by clients, ended by them or by their next one. Never ended by a clock.

use crate::MOST_SESSIONS;
use crate::record::{SessionRecord, TableRecord};
use crate::state::TableState;
use crate::step::{TableAnswer, TableRefusal, TableStep, check_name};

pub(crate) fn open(state: &TableState, client: &str) -> Result<TableStep, TableRefusal> {
    check_name("name of a client", client)?;
    let earlier = state.sessions().iter();
    let earlier = earlier.filter(|(_, session)| session.client == client);
    let mut records: Vec<_> = earlier
        .map(|(number, _)| TableRecord::Session(*number, None))
        .collect();
    if state.sessions().len() - records.len() >= MOST_SESSIONS {
        return Err(TableRefusal::Sessions);
    }
    let mut head = state.head().clone();
    head.last_session += 1;
    let (number, client) = (head.last_session, client.to_owned());
    records.push(TableRecord::Session(number, Some(SessionRecord { client })));
    let step = TableStep {
        records,
        is_complete: true,
        answer: TableAnswer::Opened(number),
    };
    Ok(step.with_head(head))
}

pub(crate) fn end(state: &TableState, session: u64) -> TableStep {
    let is_open = state.sessions().contains_key(&session);
    let record = is_open.then_some(TableRecord::Session(session, None));
    let step = TableStep {
        records: Vec::from_iter(record),
        is_complete: true,
        answer: TableAnswer::Done,
    };
    step.with_head(state.head().clone())
}

#[cfg(test)]
mod tests {
    use crate::{MOST_SESSIONS, TableAnswer, TableEvent, TableRefusal, TableState};

    fn open(state: &mut TableState, client: &str) -> Result<u64, TableRefusal> {
        let client = client.to_owned();
        let step = state.step(&TableEvent::OpenSession { client })?;
        let TableAnswer::Opened(session) = step.answer else {
            panic!("{step:?}");
        };
        step.records
            .into_iter()
            .for_each(|record| state.apply(record));
        Ok(session)
    }

    fn end(state: &mut TableState, session: u64) -> usize {
        let step = state.step(&TableEvent::EndSession { session }).unwrap();
        let count = step.records.len();
        step.records
            .into_iter()
            .for_each(|record| state.apply(record));
        count
    }

    #[test]
    fn a_session_ends_with_its_client_or_with_the_next_of_its_name() {
        let mut state = TableState::default();
        let (a, b) = (
            open(&mut state, "a").unwrap(),
            open(&mut state, "b").unwrap(),
        );
        let next = open(&mut state, "a").unwrap();
        let open_now = |state: &TableState| state.sessions().keys().copied().collect::<Vec<_>>();
        assert_eq!(open_now(&state), [b, next]);
        assert!(end(&mut state, b) > 0);
        // The second time nothing changes; nor does a session that ended by itself.
        assert_eq!((end(&mut state, b), end(&mut state, a)), (0, 0));
        assert_eq!(open_now(&state), [next]);
        let later = open(&mut state, "b").unwrap();
        assert!(
            later > next && next > b && b > a,
            "numbers are never used again"
        );
        assert_eq!(state.head().revision, 5);
    }

    #[test]
    fn sessions_have_a_limit_that_a_client_who_comes_again_does_not_meet() {
        let mut state = TableState::default();
        for number in 0..MOST_SESSIONS {
            open(&mut state, &number.to_string()).unwrap();
        }
        assert_eq!(open(&mut state, "one more"), Err(TableRefusal::Sessions));
        let again = open(&mut state, "7").unwrap();
        assert_eq!(again, MOST_SESSIONS as u64 + 1);
        end(&mut state, again);
        assert!(open(&mut state, "one more").is_ok());
        assert!(matches!(
            open(&mut state, ""),
            Err(TableRefusal::Name { .. })
        ));
    }
}
