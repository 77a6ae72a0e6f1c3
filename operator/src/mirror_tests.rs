//! Tests of the mirror.

use std::sync::Arc;

use super::*;

impl Mirrored for u64 {
    type Derived = Sum;
}

/// Of all numbers: it is wrong if one is added or removed once too often.
#[derive(Debug, Default)]
pub struct Sum(i128);

impl Derived<u64> for Sum {
    fn added(&mut self, number: &u64) {
        self.0 += i128::from(*number);
    }

    fn removed(&mut self, number: &u64) {
        self.0 -= i128::from(*number);
    }
}

fn key(name: &str) -> ObjectKey {
    ("team".to_owned(), name.to_owned())
}

fn synced(listed: &[(&str, u64)]) -> Mirror<u64> {
    let mut mirror = Mirror::default();
    mirror.listing(0, Instant::now());
    for &(name, version) in listed {
        mirror.listed(key(name), version, version);
    }
    mirror.listing_done();
    mirror
}

fn get(mirror: &Mirror<u64>, name: &str) -> Option<u64> {
    mirror.get("team", name).copied()
}

#[test]
fn own_writes_are_seen_at_once_and_an_older_watch_event_does_not_undo_them() {
    let mut mirror = synced(&[("a", 5)]);
    assert!(mirror.changed(key("a"), 9, 9));
    assert!(mirror.created(key("b"), 10, 10, Instant::now()));
    assert!(!mirror.applied(key("a"), 7, Some(7)));
    assert_eq!((get(&mirror, "a"), get(&mirror, "b")), (Some(9), Some(10)));
}

#[test]
fn an_answer_that_comes_after_the_object_has_gone_does_not_bring_it_back() {
    let mut mirror = synced(&[("a", 5)]);
    mirror.applied(key("b"), 6, Some(6));
    mirror.deleted(&key("b"), 7);
    assert!(!mirror.created(key("b"), 6, 6, Instant::now()));
    mirror.deleted(&key("a"), 8);
    assert!(!mirror.changed(key("a"), 9, 9));
    assert!(mirror.is_empty());
}

#[test]
fn the_end_of_an_older_object_does_not_remove_the_new_one_of_its_name() {
    let mut mirror = synced(&[("a", 5)]);
    mirror.missing("team", "a");
    mirror.created(key("a"), 9, 9, Instant::now());
    mirror.deleted(&key("a"), 8);
    assert_eq!(get(&mirror, "a"), Some(9));
}

#[test]
fn a_new_listing_replaces_everything_but_what_was_created_during_it() {
    let mut mirror = synced(&[("a", 5), ("b", 6)]);
    mirror.created(key("early"), 7, 7, Instant::now());
    mirror.listing(1, Instant::now() + Duration::from_millis(1));
    mirror.created(
        key("late"),
        20,
        20,
        Instant::now() + Duration::from_millis(2),
    );
    mirror.listed(key("a"), 12, 12);
    mirror.listing_done();
    assert_eq!(get(&mirror, "a"), Some(12));
    assert_eq!(get(&mirror, "b"), None);
    assert_eq!(get(&mirror, "early"), None);
    assert_eq!(get(&mirror, "late"), Some(20));
}

#[test]
fn a_listing_of_what_is_known_keeps_nothing_twice() {
    #[derive(Clone, Debug)]
    struct Counted(Arc<()>);
    impl Mirrored for Counted {
        type Derived = ();
    }
    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }

    let counted = Counted(Arc::default());
    let kept = || Arc::strong_count(&counted.0) - 1;
    let mut mirror = Mirror::default();
    mirror.listing(0, Instant::now());
    for (name, version) in [("same", 5), ("new", 6), ("guess", 7), ("gone", 8)] {
        mirror.listed(key(name), version, counted.clone());
    }
    mirror.listing_done();
    mirror.touched("team", "guess", |_| {});
    mirror.listing(1, Instant::now());
    for (name, version) in [("same", 5), ("new", 9), ("guess", 7), ("gone", 8)] {
        mirror.listed(key(name), version, counted.clone());
    }
    assert_eq!(
        kept(),
        4 + 2,
        "the one that changed, and the one that was guessed"
    );
    mirror.missing("team", "gone");
    mirror.listing_done();
    assert_eq!((kept(), mirror.len()), (3, 3));
    assert!(mirror.get("team", "gone").is_none());
}

#[test]
fn what_the_watch_never_confirms_is_asked_for_and_not_forgotten() {
    let now = Instant::now();
    let mut mirror = synced(&[]);
    mirror.created(key("quiet"), 7, 7, now);
    mirror.created(key("real"), 8, 8, now);
    mirror.applied(key("real"), 8, Some(8));
    let later = now + UNCONFIRMED;
    assert_eq!(mirror.overdue(later), [key("quiet")]);
    assert_eq!(mirror.overdue(later), [], "asked once in a while");
    assert_eq!(
        (get(&mirror, "quiet"), get(&mirror, "real")),
        (Some(7), Some(8))
    );
    assert!(mirror.missing("team", "quiet"));
}

/// True for what is remembered.
impl Mirrored for bool {
    type Derived = ();

    fn is_remembered(&self) -> bool {
        *self
    }
}

#[test]
fn what_is_worth_it_is_remembered_for_five_minutes_however_it_goes() {
    type Way = fn(&mut Mirror<bool>);
    let ways: [Way; 5] = [
        |mirror| {
            mirror.deleted(&key("a"), 9);
        },
        |mirror| {
            mirror.applied(key("a"), 9, None);
        },
        |mirror| {
            mirror.missing("team", "a");
        },
        |mirror| {
            mirror.applied(key("a"), 9, Some(false));
        },
        |mirror| {
            mirror.listing(1, Instant::now());
            mirror.listing_done();
        },
    ];
    for way in ways {
        for worth in [true, false] {
            let mut mirror = Mirror::default();
            mirror.listing(0, Instant::now());
            mirror.listed(key("a"), 5, worth);
            mirror.listing_done();
            let now = Instant::now();
            assert_eq!(mirror.departed(now).count(), 0);
            way(&mut mirror);
            assert_eq!(mirror.departed(now).count(), usize::from(worth));
            let later = Instant::now() + REMEMBERED_TIME;
            assert_eq!(mirror.departed(later).count(), 0);
        }
    }
}

#[test]
fn no_more_than_so_much_is_remembered() {
    let mut mirror: Mirror<bool> = Mirror::default();
    for number in 0..=MOST_REMEMBERED {
        let key = key(&number.to_string());
        mirror.applied(key.clone(), 1, Some(true));
        mirror.deleted(&key, 2);
    }
    let now = Instant::now();
    assert_eq!(mirror.departed(now).count(), MOST_REMEMBERED);
}

#[test]
fn a_mirror_is_as_old_as_its_last_complete_word() {
    let start = Instant::now();
    let mut mirror: Mirror<u64> = Mirror::default();
    mirror.listing(3, start);
    assert_eq!(
        (mirror.complete_until(), mirror.is_listed(0)),
        (None, false)
    );
    mirror.listing_done();
    assert_eq!(
        mirror.complete_until(),
        Some(start),
        "as of when the listing began"
    );
    assert_eq!((mirror.is_listed(3), mirror.is_listed(4)), (true, false));
    let later = start + Duration::from_secs(5);
    mirror.note_current(later);
    mirror.note_current(start);
    assert_eq!(mirror.complete_until(), Some(later));
}

#[derive(Debug, PartialEq)]
struct Ended(bool);

impl Mirrored for Ended {
    type Derived = ();

    fn rests_with(&self) -> Option<ObjectKey> {
        self.0.then(|| key("job"))
    }
}

#[test]
fn what_rests_is_found_by_its_name_and_by_its_job_alone() {
    let mut mirror = Mirror::default();
    mirror.applied(key("a"), 1, Some(Ended(true)));
    mirror.applied(key("b"), 2, Some(Ended(false)));
    assert_eq!((mirror.len(), mirror.values().count()), (2, 1));
    assert_eq!(mirror.resting_with(&key("job")).count(), 1);
    assert!(mirror.get("team", "a").is_some());
    mirror.applied(key("b"), 3, Some(Ended(true)));
    assert_eq!(mirror.resting_with(&key("job")).count(), 2);
    assert_eq!(mirror.values().count(), 0);
    mirror.applied(key("a"), 4, Some(Ended(false)));
    mirror.deleted(&key("b"), 5);
    assert_eq!(mirror.resting_with(&key("job")).count(), 0);
    assert_eq!((mirror.len(), mirror.values().count()), (1, 1));
}

#[test]
fn what_is_derived_follows_each_change() {
    let mut mirror = synced(&[("a", 5), ("b", 6)]);
    let check = |mirror: &Mirror<u64>| {
        let all: u64 = mirror.values().sum();
        assert_eq!(mirror.derived().0, i128::from(all));
    };
    check(&mirror);
    mirror.changed(key("a"), 7, 70);
    mirror.created(key("c"), 8, 80, Instant::now());
    mirror.applied(key("b"), 9, Some(60));
    mirror.applied(key("b"), 9, Some(60));
    mirror.applied(key("b"), 3, Some(30));
    mirror.touched("team", "c", |value| *value = 81);
    check(&mirror);
    mirror.listing(1, Instant::now() + Duration::from_millis(1));
    let later = Instant::now() + Duration::from_millis(2);
    mirror.created(key("late"), 20, 20, later);
    mirror.listed(key("a"), 7, 70);
    mirror.listed(key("b"), 12, 61);
    mirror.listed(key("new"), 13, 13);
    check(&mirror);
    mirror.listing_done();
    check(&mirror);
    assert_eq!(get(&mirror, "c"), None);
    mirror.deleted(&key("a"), 30);
    mirror.missing("team", "late");
    mirror.applied(key("b"), 31, None);
    check(&mirror);
    assert_eq!(mirror.derived().0, 13);
}

#[test]
fn a_change_of_unknown_version_holds_until_the_watch_tells() {
    let mut mirror = synced(&[("a", 5)]);
    mirror.touched("team", "a", |value| *value = 50);
    assert_eq!(get(&mirror, "a"), Some(50));
    mirror.applied(key("a"), 6, Some(6));
    assert_eq!(get(&mirror, "a"), Some(6));
    mirror.touched("team", "gone", |value| *value = 1);
    assert_eq!(get(&mirror, "gone"), None);
}

#[test]
fn a_watch_event_without_change_is_no_news() {
    let mut mirror = synced(&[("a", 5)]);
    assert!(!mirror.applied(key("a"), 6, Some(5)));
    assert!(mirror.applied(key("a"), 7, Some(6)));
}
