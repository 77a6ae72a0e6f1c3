//! Two sides in one process.

use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use super::*;

/// The transports on which two sides agree.
fn agreed(one: &Meeting, other: &Meeting) -> [&'static str; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (answered, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| other.agree(answered, one.rank, Side::Answered));
        let one = one.agree(dialled, other_rank(one), Side::Dialled).unwrap();
        [one.name(), other.join().unwrap().unwrap().name()]
    })
}

fn other_rank(one: &Meeting) -> u32 {
    1 - one.rank
}

fn meetings(preferences: [Preference; 2]) -> ([Meeting; 2], tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let meeting = |rank: usize| {
        let folder = dir.path().join(rank.to_string());
        std::fs::create_dir(&folder).unwrap();
        let options = Options {
            transport: preferences[rank],
            ..Options::new(folder)
        };
        Meeting::open(rank as u32, &options).unwrap()
    };
    ([0, 1].map(meeting), dir)
}

#[test]
fn neighbours_that_see_each_others_files_share_memory() {
    let ([one, other], _dir) = meetings([Preference::Auto; 2]);
    assert_eq!(agreed(&one, &other), ["shared memory"; 2]);
}

#[test]
fn one_side_that_wants_tcp_gets_it() {
    for preferences in [
        [Preference::Tcp, Preference::Auto],
        [Preference::Auto, Preference::Tcp],
    ] {
        let ([one, other], _dir) = meetings(preferences);
        assert_eq!(agreed(&one, &other), ["tcp"; 2]);
    }
}

// Every pod calls its run directory the same.
#[test]
fn a_socket_of_the_same_name_that_is_somebody_elses_is_not_taken_for_the_neighbours() {
    let ([mut one, mut other], _dir) = meetings([Preference::Auto; 2]);
    let mine = one.here.as_mut().unwrap();
    other.here.as_mut().unwrap().spot.path = mine.spot.path.clone();
    assert_eq!(agreed(&one, &other), ["tcp"; 2]);
    let ([one, mut other], _dir) = meetings([Preference::Auto; 2]);
    other.here.as_mut().unwrap().spot.path = PathBuf::from("/nowhere/at/all");
    assert_eq!(agreed(&one, &other), ["tcp"; 2]);
}

// Without this it would be taken for the next one, and that for the one after it, for ever.
#[test]
fn a_knock_that_a_neighbour_left_when_it_ended_is_not_taken_for_its_next_one() {
    let ([one, other], _dir) = meetings([Preference::Auto; 2]);
    let spot = &other.here.as_ref().unwrap().spot;
    for _ in 0..2 {
        let ended = Channel::connect(&spot.path).unwrap();
        let knock = Knock {
            rank: one.rank,
            token: spot.token.clone(),
        };
        ended.send(&knock, &[]).unwrap();
    }
    assert_eq!(agreed(&one, &other), ["shared memory"; 2]);
}
