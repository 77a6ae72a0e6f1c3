//! The client when its sidecar ends and another takes its place.

use std::thread;
use std::time::Duration;

use super::tests::{PATIENCE, bytes_of, echo};
use super::*;
use crate::attach::Listener;
use crate::{DType, OpKind};

/// Sidecars one after the other, each for so many calls; the last until it is left.
fn sidecars(lives: &'static [usize]) -> (tempfile::TempDir, Client, thread::JoinHandle<Said>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hfreduce.sock");
    let listener = Listener::bind(&path).unwrap();
    let again = path.clone();
    let served = thread::spawn(move || {
        let mut said = vec![echo(&listener, 1 << 30, Some(lives[0]))];
        drop(listener);
        for lasts in &lives[1..] {
            said.push(echo(
                &Listener::bind(&again).unwrap(),
                1 << 30,
                Some(*lasts),
            ));
        }
        said
    });
    let client = Client::attach(&path, 0, PATIENCE).unwrap();
    (dir, client, served)
}

/// What each of them has received.
type Said = Vec<Vec<ClientMessage>>;

fn call(client: &Client, content: &[u8]) -> CallTicket {
    let mut input = client.buffer(content.len(), PATIENCE).unwrap();
    input.copy_from_slice(content);
    client
        .submit(bytes_of(content.len()), Some(input), PATIENCE)
        .unwrap()
}

#[test]
fn operations_in_flight_go_on_with_the_next_sidecar_in_their_order() {
    let (_dir, client, served) = sidecars(&[2, 1, usize::MAX]);
    let tickets: Vec<CallTicket> = (1..=6u8).map(|one| call(&client, &[one; 100])).collect();
    for (one, ticket) in (1..=6u8).zip(tickets) {
        let output = client.wait(ticket, PATIENCE).unwrap();
        assert_eq!(&output.result[..], [one; 100]);
        assert_eq!(output.input.unwrap()[..], [one; 100]);
    }
    drop(client);
    let said = served.join().unwrap();
    let again: Vec<Option<u64>> = said
        .iter()
        .flatten()
        .filter_map(|message| match message {
            ClientMessage::Attach { again, .. } => Some(*again),
            ClientMessage::Ranks { .. }
            | ClientMessage::Group(_)
            | ClientMessage::RestoreSegment { .. }
            | ClientMessage::Allocate { .. }
            | ClientMessage::Free { .. }
            | ClientMessage::Whom { .. }
            | ClientMessage::Detach => None,
        })
        .collect();
    // What the first two have delivered is not called again.
    assert_eq!(again, [None, Some(2), Some(3)]);
}

#[test]
fn results_and_inputs_stay_where_they_are_while_sidecars_come_and_go() {
    let (_dir, client, served) = sidecars(&[2, usize::MAX]);
    let (one, two) = (call(&client, b"one"), call(&client, b"two"));
    let mut mine = client.buffer(5, PATIENCE).unwrap();
    mine.copy_from_slice(b"three");
    let place = mine.as_ptr();
    let held = client.wait(one, PATIENCE).unwrap();
    let lost = call(&client, b"lost");
    assert_eq!(&client.wait(lost, PATIENCE).unwrap().result[..], b"lost");
    // The second outcome was delivered by the first sidecar and is taken now.
    assert_eq!(&client.wait(two, PATIENCE).unwrap().result[..], b"two");
    assert_eq!(&held.result[..], b"one");
    drop(held);
    assert_eq!((mine.as_ptr(), &mine[..]), (place, &b"three"[..]));
    let ticket = client.submit(bytes_of(5), Some(mine), PATIENCE).unwrap();
    let output = client.wait(ticket, PATIENCE).unwrap();
    assert_eq!(&output.result[..], b"three");
    assert_eq!(output.input.unwrap().as_ptr(), place);
    drop(output.result);
    drop(client);
    let said = served.join().unwrap();
    let segment = said[1]
        .iter()
        .filter(|one| matches!(one, ClientMessage::RestoreSegment { .. }));
    assert_eq!(segment.count(), 4);
    let asked = said[1]
        .iter()
        .any(|one| matches!(one, ClientMessage::Allocate { .. }));
    assert!(!asked, "an idle segment of the first served the second");
}

#[test]
fn calls_and_requests_wait_while_no_sidecar_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hfreduce.sock");
    let listener = Listener::bind(&path).unwrap();
    let first = thread::spawn(move || echo(&listener, 1 << 30, Some(0)));
    let client = Client::attach(&path, 0, PATIENCE).unwrap();
    let gone = call(&client, b"gone");
    first.join().unwrap();
    let late = client.wait(gone, Duration::from_millis(1)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    assert!(!client.test(gone).unwrap());
    // No idle segment is as large, so this one is asked for.
    let asking = {
        let client = client.clone();
        thread::spawn(move || call(&client, &[7; 1 << 20]))
    };
    let listener = Listener::bind(&path).unwrap();
    let second = thread::spawn(move || echo(&listener, 1 << 30, Some(usize::MAX)));
    assert_eq!(&client.wait(gone, PATIENCE).unwrap().result[..], b"gone");
    let ticket = asking.join().unwrap();
    let output = client.wait(ticket, PATIENCE).unwrap();
    assert!(output.result.iter().all(|byte| *byte == 7));
    assert_eq!((output.members.epoch, output.members.ranks), (1, 1));
    drop((output, client));
    second.join().unwrap();
}

#[test]
fn a_sidecar_that_does_not_come_back_is_an_error_that_says_where_to_look() {
    let (_dir, client, served) = sidecars(&[0]);
    let ticket = call(&client, b"lost");
    let error = client.wait(ticket, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::SidecarLost { .. }), "{error}");
    let text = error.to_string();
    for words in ["hfreduce.sock", "container hfreduce", "none took its place"] {
        assert!(text.contains(words), "{text}");
    }
    served.join().unwrap();
}

#[test]
fn the_next_sidecar_learns_of_each_group_what_was_delivered_in_it() {
    let (_dir, client, served) = sidecars(&[4, usize::MAX]);
    let ranks: Vec<u32> = (0..3000).collect();
    let group = client.open_with(7, &ranks, false, 3, PATIENCE).unwrap();
    let closed = client.open(8, &[0], true, PATIENCE).unwrap();
    let over = client.open(9, &[0], true, PATIENCE).unwrap();
    let call_in = |group, call| client.submit_in(group, call, None, PATIENCE).unwrap();
    let all = |calls: &[(Group, Call)]| {
        for (group, call) in calls {
            client.wait(call_in(*group, *call), PATIENCE).unwrap();
        }
    };
    all(&[(group, Call::barrier()), (over, Call::close())]);
    // What is said to be over before the answer to an opening is not restored.
    client.open(10, &[0], true, PATIENCE).unwrap();
    all(&[(closed, Call::barrier()), (closed, Call::close())]);
    let message = Call::new(OpKind::Receive { from: 0 }, DType::U8, 1);
    let message = client.submit_in(client.world(), message, None, PATIENCE);
    let lost = call(&client, b"lost");
    let error = client.wait(message.unwrap(), PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Operation { .. }), "{error}");
    assert_eq!(&client.wait(lost, PATIENCE).unwrap().result[..], b"lost");
    drop(client);
    let said = served.join().unwrap();
    let mut listed = 0;
    let mut restored = Vec::new();
    for message in &said[1] {
        match message {
            ClientMessage::Ranks { ranks } => listed += ranks.len(),
            ClientMessage::Group(one) => restored.push((
                one.group,
                std::mem::take(&mut listed),
                (one.replicated, one.priority, one.delivered, one.closed),
            )),
            ClientMessage::Attach { .. }
            | ClientMessage::RestoreSegment { .. }
            | ClientMessage::Allocate { .. }
            | ClientMessage::Free { .. }
            | ClientMessage::Whom { .. }
            | ClientMessage::Detach => {}
        }
    }
    assert_eq!(
        restored,
        [
            (7, 3000, (false, 3, 1, false)),
            (8, 1, (true, 0, 2, true)),
            (10, 1, (true, 0, 0, false)),
        ]
    );
}
