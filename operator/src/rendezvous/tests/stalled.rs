//! Gangs that make no progress: what the planner learns of it, and how ranks are asked for their
//! stacks.

use scheduler::{GangProgress, Stalled, Timestamp};
use topology::SignKind;

use super::*;

/// The progress of the only gang, as far as it is known.
fn known(reports: &Reports) -> GangProgress {
    let mut all = reports.progress.values();
    all.next().cloned().unwrap_or_default()
}

async fn beat(sidecar: &mut Sidecar, operations: Option<u64>) {
    let progress = None;
    let beat = ToOperator::Heartbeat {
        progress,
        operations,
    };
    sidecar.say(&beat).await;
}

/// Waits until all of a gang are heard and have given a sign of progress.
async fn heard(running: &Running, [first, second]: [&mut Sidecar; 2]) -> GangProgress {
    let heard = async {
        loop {
            let known = known(&running.reports.borrow());
            if known.newest.is_some() && known.is_heard {
                return known;
            }
            // Whoever is quiet for seconds, because the machine is busy, is not heard.
            beat(first, None).await;
            beat(second, None).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, heard).await.unwrap()
}

/// The planner asks for stacks, because of the newest sign that is published.
async fn ask(running: &Running, sidecars: [&mut Sidecar; 2]) -> Timestamp {
    let since = heard(running, sidecars).await.newest.unwrap().at;
    running.stalled.send_replace(vec![Stalled {
        job: gang(1, 2).gang.job.clone(),
        attempt: 1,
        since,
        message: "no progress for 600 s".to_owned(),
    }]);
    since
}

#[tokio::test]
async fn ranks_are_asked_for_their_stacks_once_and_the_next_sign_calls_it_off() {
    let mut running = start(Role::Leading, None).await;
    let [mut first, mut second] = going(running.address).await;
    beat(&mut first, Some(5)).await;
    let since = ask(&running, [&mut first, &mut second]).await;
    for sidecar in [&mut first, &mut second] {
        let reason = "no progress for 600 s".to_owned();
        assert_eq!(sidecar.receive().await, Some(ToSidecar::Stacks { reason }));
    }
    let is_asked = |reports: &Reports| known(reports).asked.is_some();
    let asked = known(&until(&mut running.reports, is_asked).await);
    let newest = asked.newest.unwrap();
    assert_eq!((newest.at, newest.kind), (since, SignKind::Operation));
    let asked = asked.asked.unwrap();
    assert_eq!((asked.nodes, asked.of), (2, 2));

    beat(&mut second, Some(9)).await;
    let moved = until(&mut running.reports, |reports| !is_asked(reports)).await;
    assert!(known(&moved).newest.unwrap().at >= since);
    // What was decided before that is no reason to ask.
    running
        .stalled
        .send_modify(|stalled| stalled[0].attempt = 1);
    let nothing = tokio::time::timeout(Duration::from_millis(300), first.receive()).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

#[tokio::test]
async fn a_sidecar_of_an_older_release_is_not_asked_and_is_counted() {
    let mut running = start(Role::Leading, None).await;
    let mut first = Sidecar::hello(running.address, 0, None).await;
    let mut older = Sidecar::dial(running.address, 1, 1, KEY).await.unwrap();
    older
        .say(&ToOperator::Hello {
            version: "older".to_owned(),
            address: [10, 0, 0, 2].into(),
            port: 9404,
            joined_epoch: None,
            features: vec!["retry".to_owned()],
        })
        .await;
    for sidecar in [&mut first, &mut older] {
        let roster = sidecar.receive().await;
        assert!(matches!(roster, Some(ToSidecar::Roster { .. })));
        sidecar.say(&ToOperator::Joined { epoch: 1 }).await;
    }
    for sidecar in [&mut first, &mut older] {
        assert_eq!(sidecar.receive().await, Some(ToSidecar::Go { epoch: 1 }));
    }
    beat(&mut first, Some(5)).await;
    ask(&running, [&mut first, &mut older]).await;
    let said = first.receive().await;
    assert!(matches!(said, Some(ToSidecar::Stacks { .. })), "{said:?}");
    let is_asked = |reports: &Reports| known(reports).asked.is_some();
    let asked = known(&until(&mut running.reports, is_asked).await).asked;
    let asked = asked.unwrap();
    assert_eq!((asked.nodes, asked.of), (1, 2));
}

#[tokio::test]
async fn a_newer_sign_of_progress_is_known_and_wakes_nobody() {
    let mut running = start(Role::Leading, None).await;
    let [mut first, mut second] = going(running.address).await;
    beat(&mut first, Some(5)).await;
    let known_first = heard(&running, [&mut first, &mut second]).await;
    running.reports.mark_unchanged();
    let newer = async {
        for operations in 6.. {
            beat(&mut first, Some(operations)).await;
            beat(&mut second, Some(operations)).await;
            let newest = known(&running.reports.borrow()).newest;
            if newest != known_first.newest {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, newer).await.unwrap();
    assert!(!running.reports.has_changed().unwrap());
}
