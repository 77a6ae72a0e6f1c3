//! The gang's store under real sidecars: it outlives the node of rank 0, and sidecars that are killed and started again.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod gang;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gang::descriptors::allow_descriptors;
use gang::leader::Leader;
use gang::pods::Pods;
use gang::restarted::Restarted;
use gang::{PATIENCE, wait_until};
use store::{Answer, Command, Value};
use wire::assignment::OnPeerLoss;
use wire::run_dir;
use wire::store::{Client, Error, FRAME_LIMIT_BYTES, Frames, Reply, Word};

fn store(pods: &Pods, node: u32) -> Client {
    Client::new(&pods.run_dir(node).join(run_dir::STORE))
}

fn ask(client: &Client, command: &Command) -> Answer {
    let answer = client.call(command.encode(), PATIENCE).unwrap();
    Answer::decode(&answer).unwrap()
}

fn value(text: &str) -> Value {
    text.as_bytes().into()
}

fn set(client: &Client, key: &str, content: &str) {
    let command = Command::Set(vec![(key.to_owned(), value(content))]);
    assert_eq!(ask(client, &command), Answer::Done);
}

fn get(client: &Client, key: &str) -> String {
    let told = ask(client, &Command::Get(vec![key.to_owned()]));
    let Answer::Values(values) = told else {
        panic!("{key} is {told:?}");
    };
    String::from_utf8(values[0].to_vec()).unwrap()
}

#[test]
fn what_was_set_outlives_the_first_node_and_who_waits_is_answered() {
    let leader = Leader::start(3, Duration::from_secs(2));
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    let mut pods = Pods::start_at(address, 3, leader.address, OnPeerLoss::Shrink, "auto");
    let mut processes: Vec<_> = (0..3).map(|rank| pods.client(rank)).collect();
    let stores: Vec<Client> = (0..3).map(|node| store(&pods, node)).collect();
    for (node, store) in stores.iter().enumerate() {
        set(store, &format!("of {node}"), "before");
    }
    thread::scope(|scope| {
        let waits = scope.spawn(|| get(&stores[2], "later"));
        // Both at once, as when the machine is gone.
        pods.kill(0);
        processes.remove(0).abandon();
        for store in &stores[1..] {
            for node in 0..3 {
                assert_eq!(get(store, &format!("of {node}")), "before");
            }
        }
        set(&stores[1], "later", "after");
        assert_eq!(waits.join().unwrap(), "after");
    });
    let view = leader.view.lock().unwrap().clone().unwrap();
    assert_eq!(view.members, [1, 2]);
}

#[test]
fn each_call_is_done_once_while_sidecars_are_killed_and_started_again() {
    let mut gang = Restarted::start("auto", (3, 1));
    let stores: Vec<Client> = (0..3).map(|node| store(&gang.pods, node)).collect();
    const ADDS: i64 = 60;
    thread::scope(|scope| {
        let adding: Vec<_> = stores
            .iter()
            .map(|store| {
                scope.spawn(|| {
                    let add = Command::Add("sum".to_owned(), 1);
                    let sums = (0..ADDS).map(|_| {
                        let told = ask(store, &add);
                        let Answer::Number(sum) = told else {
                            panic!("{told:?}");
                        };
                        sum
                    });
                    sums.collect::<Vec<i64>>()
                })
            })
            .collect();
        for node in [0, 2, 1, 0] {
            // Not to synchronise: whenever it is, the outcome is the same.
            thread::sleep(Duration::from_millis(100));
            gang.pods.kill(node);
            gang.pods.start_again(node);
            // What forgets while another has not heard yet would leave nobody who remembers.
            gang.check(gang.call_all(10), 10);
        }
        let mut sums: Vec<i64> = adding
            .into_iter()
            .flat_map(|one| one.join().unwrap())
            .collect();
        sums.sort_unstable();
        assert!(sums.into_iter().eq(1..=3 * ADDS));
    });
}

#[test]
fn a_call_that_is_not_answered_in_time_has_not_happened() {
    let gang = Restarted::start("auto", (2, 1));
    let stores: Vec<Client> = (0..2).map(|node| store(&gang.pods, node)).collect();
    let pop = Command::Pop("queue".to_owned()).encode();
    let late = stores[1].call(pop, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(late, Error::Timeout(_)), "{late}");
    let push = Command::Push("queue".to_owned(), value("one"));
    assert_eq!(ask(&stores[0], &push), Answer::Done);
    let length = Command::Length("queue".to_owned());
    assert_eq!(ask(&stores[0], &length), Answer::Number(1));
    // Its session goes on.
    let taken = ask(&stores[1], &Command::Pop("queue".to_owned()));
    assert_eq!(taken, Answer::Values(vec![value("one")]));
}

#[test]
fn nonsense_is_refused_with_a_reason_and_serves_nobody_worse() {
    let gang = Restarted::start("auto", (2, 1));
    let socket = gang.pods.run_dir(0).join(run_dir::STORE);
    let huge = (FRAME_LIMIT_BYTES as u32 + 1).to_le_bytes();
    let cases: [(&[u8], &str); 4] = [
        (&huge, "larger than it may be"),
        (&[1, 0, 0, 0, 1], "ends too early"),
        (
            &[
                18, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
            "another version",
        ),
        (
            &[
                19, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 99,
            ],
            "no such Command",
        ),
    ];
    for (bytes, why) in cases {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(bytes).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        let mut frames = Frames::new(FRAME_LIMIT_BYTES);
        frames.push(&said);
        let reply = Reply::decode(frames.next().unwrap().unwrap()).unwrap();
        let Word::Refused(reason) = reply.word else {
            panic!("{reply:?}");
        };
        assert!(reason.contains(why), "{reason}");
    }
    let client = store(&gang.pods, 0);
    set(&client, "key", "content");
    assert_eq!(get(&client, "key"), "content");
}

/// Processor time that the store's thread of a process has used, in hundredths of a second.
fn ticks(process: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let stat = |task: &Path| fs::read_to_string(task.join("stat")).unwrap();
    let mut stats = tasks.map(|task| stat(&task.unwrap().path()));
    let of_store = stats.find(|stat| stat.contains("(store)")).unwrap();
    let fields: Vec<&str> = of_store.split_whitespace().collect();
    [13, 14]
        .map(|at| fields[at].parse::<u64>().unwrap())
        .iter()
        .sum()
}

#[test]
fn who_knocks_when_descriptors_are_short_waits_and_keeps_the_store_asleep() {
    let gang = Restarted::start("auto", (2, 1));
    let process = gang.pods.process(0);
    let before = allow_descriptors(process, 3);
    let client = store(&gang.pods, 0);
    thread::scope(|scope| {
        let waits = scope.spawn(|| set(&client, "key", "content"));
        wait_until(|| gang.pods.log(0).contains("failed to accept a process"));
        let (since, begun) = (Instant::now(), ticks(process));
        wait_until(|| since.elapsed() > Duration::from_secs(2));
        assert!(ticks(process) - begun < 20, "a tenth of two seconds");
        allow_descriptors(process, before);
        waits.join().unwrap();
    });
    assert_eq!(get(&client, "key"), "content");
}
