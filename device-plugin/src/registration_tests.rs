//! The steps of registering, without files and without time.

use super::*;

fn identity(inode: u64) -> FileIdentity {
    FileIdentity {
        device: 1,
        inode,
        changed: (0, 0),
    }
}

const KUBELET: u64 = 1;
const SOCKET: u64 = 100;

fn seen(kubelet: Option<u64>, socket: Option<u64>) -> FolderContents {
    FolderContents {
        folder_deleted: false,
        kubelet: kubelet.map(identity),
        socket: socket.map(identity),
    }
}

/// Registered with the kubelet and followed by it since `now`.
fn in_use(now: Instant) -> RegistrationState {
    let mut held = RegistrationState::default();
    held.opened(identity(SOCKET));
    held.registered(identity(KUBELET), now);
    held.followed(1, now);
    held
}

#[track_caller]
fn check(
    held: &RegistrationState,
    seen: &FolderContents,
    now: Instant,
    expected: RegistrationStep,
) {
    assert_eq!(held.next(seen, now), expected);
}

#[test]
fn nothing_is_opened_before_there_is_a_kubelet() {
    let now = Instant::now();
    check(
        &RegistrationState::default(),
        &seen(None, None),
        now,
        RegistrationStep::Wait(None),
    );
    check(
        &RegistrationState::default(),
        &seen(Some(KUBELET), None),
        now,
        RegistrationStep::Open,
    );
}

#[test]
fn an_open_socket_is_registered_and_then_left_alone() {
    let now = Instant::now();
    let here = seen(Some(KUBELET), Some(SOCKET));
    let mut held = RegistrationState::default();
    held.opened(identity(SOCKET));
    check(
        &held,
        &here,
        now,
        RegistrationStep::Register(identity(KUBELET)),
    );
    check(
        &in_use(now),
        &here,
        now + CONFIRM_WITHIN * 100,
        RegistrationStep::Wait(None),
    );
}

#[test]
fn a_registration_that_nobody_follows_is_repeated() {
    let now = Instant::now();
    let here = seen(Some(KUBELET), Some(SOCKET));
    let mut held = RegistrationState::default();
    held.opened(identity(SOCKET));
    held.registered(identity(KUBELET), now);
    let due = now + CONFIRM_WITHIN;
    check(&held, &here, now, RegistrationStep::Wait(Some(due)));
    check(
        &held,
        &here,
        due,
        RegistrationStep::Register(identity(KUBELET)),
    );
}

#[test]
fn a_lost_stream_is_followed_by_a_registration() {
    let now = Instant::now();
    let here = seen(Some(KUBELET), Some(SOCKET));
    let mut held = in_use(now);
    held.followed(0, now);
    let due = now + RETRY_FIRST;
    check(&held, &here, now, RegistrationStep::Wait(Some(due)));
    check(
        &held,
        &here,
        due,
        RegistrationStep::Register(identity(KUBELET)),
    );
}

#[test]
fn a_new_kubelet_is_registered_with_at_once() {
    let now = Instant::now();
    let again = seen(Some(KUBELET + 1), Some(SOCKET));
    check(
        &in_use(now),
        &again,
        now,
        RegistrationStep::Register(identity(KUBELET + 1)),
    );

    let mut refused = in_use(now);
    refused.followed(0, now);
    refused.refused(identity(KUBELET), now);
    check(
        &refused,
        &again,
        now,
        RegistrationStep::Register(identity(KUBELET + 1)),
    );
}

#[test]
fn a_socket_that_was_removed_or_replaced_is_closed_first() {
    let now = Instant::now();
    for there in [None, Some(SOCKET + 1)] {
        let mut held = in_use(now);
        check(
            &held,
            &seen(Some(KUBELET), there),
            now,
            RegistrationStep::Close,
        );
        held.closed();
        check(&held, &seen(None, None), now, RegistrationStep::Wait(None));
        check(
            &held,
            &seen(Some(KUBELET + 1), None),
            now,
            RegistrationStep::Open,
        );
    }
}

#[test]
fn a_kubelet_that_is_gone_is_waited_for() {
    let now = Instant::now();
    let mut held = in_use(now);
    held.followed(0, now);
    check(
        &held,
        &seen(None, Some(SOCKET)),
        now,
        RegistrationStep::Wait(None),
    );
}

#[test]
fn refusals_in_a_row_wait_longer_up_to_a_limit() {
    let mut now = Instant::now();
    let here = seen(Some(KUBELET), Some(SOCKET));
    let mut held = RegistrationState::default();
    held.opened(identity(SOCKET));
    let mut waits = Vec::new();
    for _ in 0..40 {
        held.refused(identity(KUBELET), now);
        let RegistrationStep::Wait(Some(due)) = held.next(&here, now) else {
            panic!("a refused registration waits")
        };
        waits.push((due - now).as_millis());
        now = due;
    }
    assert_eq!(waits[..6], [200, 400, 800, 1600, 3200, 5000]);
    assert!(waits[6..].iter().all(|wait| *wait == 5000));
}

#[test]
fn a_stream_that_lived_makes_the_next_wait_short_again() {
    let now = Instant::now();
    let mut held = RegistrationState::default();
    held.opened(identity(SOCKET));
    for _ in 0..5 {
        held.refused(identity(KUBELET), now);
    }
    held.registered(identity(KUBELET), now);
    held.followed(1, now);
    let later = now + SETTLED_AFTER;
    held.followed(0, later);
    let here = seen(Some(KUBELET), Some(SOCKET));
    check(
        &held,
        &here,
        later,
        RegistrationStep::Wait(Some(later + RETRY_FIRST)),
    );
}

#[test]
fn a_deleted_folder_is_left() {
    let mut gone = seen(None, None);
    gone.folder_deleted = true;
    check(
        &in_use(Instant::now()),
        &gone,
        Instant::now(),
        RegistrationStep::Leave,
    );
}
