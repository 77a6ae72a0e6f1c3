//! On four real devices, in software: `rxe0` to `rxe3` with the addresses 192.0.2.10 to 192.0.2.13, whose cables
//! (`p0` to `p3`) these tests pull. Run by `cargo xtask test --rdma`.

use std::env;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use link::segment::{Segment, Writers};
use link::verbs::channel::{ChannelOptions, Invitation};
use link::verbs::{
    Access, CompletionQueue, Done, FinishedWork, GidChoice, LinkLayer, PairOptions, PathOptions,
    QueuePair, RegisteredRegion, Remote, VerbsLibrary, Write, check_locked,
};
use rustix::net::{AddressFamily, RecvFlags, SocketType, ipproto};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::nodes::{
    self, End, LIMIT, Node, channel, connect, exchange, wake_a_sleeper, work_until,
};

const SMALL: ChannelOptions = ChannelOptions {
    slots: 8,
    sends: 16,
};
const MEBIBYTE: usize = 1 << 20;

/// Names the socket of the test that started this process.
const PEER_SOCKET: &str = "FIREFLYER_TEST_PEER_SOCKET";

fn nodes() -> [Node; 4] {
    let library = VerbsLibrary::load(None).unwrap();
    let mut nodes = nodes::nodes(&library);
    nodes.sort_by_key(|node| node.context.name().to_owned());
    nodes.try_into().ok().unwrap()
}

/// Plugs a node's cable in, or pulls it.
fn cable(node: usize, state: &str) {
    let (port, number) = (format!("p{node}"), node);
    let mut ip = Command::new("/sbin/ip");
    assert!(
        ip.args(["link", "set", &port, state])
            .status()
            .unwrap()
            .success()
    );
    let wanted = if state == "up" { "ACTIVE" } else { "DOWN" };
    let file = format!("/sys/class/infiniband/rxe{number}/ports/1/state");
    let deadline = Instant::now() + LIMIT;
    while !std::fs::read_to_string(&file).unwrap().contains(wanted) {
        assert!(
            Instant::now() < deadline,
            "rxe{number} did not become {wanted}"
        );
        std::thread::yield_now();
    }
}

/// Two connected queue pairs, with a mebibyte of memory each.
struct Raw {
    pairs: [QueuePair; 2],
    queues: [Arc<CompletionQueue>; 2],
    memory: [Segment; 2],
    regions: [Arc<RegisteredRegion>; 2],
}

impl Raw {
    fn new(one: &Node, other: &Node, path: PathOptions) -> Self {
        let nodes = [one, other];
        let queues = nodes.map(|node| CompletionQueue::new(&node.context, 16).unwrap());
        let memory = [0, 1].map(|_| Segment::create("raw", MEBIBYTE, Writers::Everybody).unwrap());
        let access = Access {
            remote_write: true,
            relaxed_ordering: false,
        };
        let regions = [0, 1]
            .map(|at| RegisteredRegion::register(&nodes[at].domain, &memory[at], access).unwrap());
        let options = PairOptions {
            sends: 4,
            receives: 4,
            inline_bytes: 64,
        };
        let mut pairs = [0, 1].map(|at: usize| {
            let Node {
                domain, port, gid, ..
            } = nodes[at];
            let mut pair = QueuePair::new(domain, &queues[at], port, gid, options).unwrap();
            pair.post_receive(7).unwrap();
            pair
        });
        let ends = [pairs[0].endpoint(), pairs[1].endpoint()];
        pairs[0].connect(&ends[1], path).unwrap();
        pairs[1].connect(&ends[0], path).unwrap();
        Self {
            pairs,
            queues,
            memory,
            regions,
        }
    }

    /// Writes from the beginning of the first's memory.
    fn write(&mut self, bytes: u32, to: Remote, number: u32) {
        let source = self.regions[0].source(0, bytes).unwrap();
        let write = Write {
            id: 9,
            source: Some(&source),
            address: to.address,
            key: to.key,
            number: Some(number),
            signaled: true,
        };
        self.pairs[0].post_write(&write).unwrap();
    }

    fn completion(&self, side: usize) -> FinishedWork {
        let deadline = Instant::now() + LIMIT;
        let mut found = Vec::new();
        while found.is_empty() {
            assert!(Instant::now() < deadline, "nothing completes");
            self.queues[side].poll(&mut found).unwrap();
        }
        found[0]
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn devices_have_active_ports_and_their_addresses() {
    for (number, node) in nodes().iter().enumerate() {
        assert_eq!(node.context.name(), format!("rxe{number}"));
        assert!(node.port.active && node.port.link == LinkLayer::Ethernet);
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10 + number as u8));
        assert_eq!((node.gid.index, node.gid.address()), (1, address));
        let named = node.port.gid("", GidChoice::Address(address)).unwrap();
        assert_eq!(named, node.gid);
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_write_lands_and_its_number_comes_after_it() {
    let [one, _, _, other] = nodes();
    let mut raw = Raw::new(&one, &other, PathOptions::default());
    for (at, byte) in raw.memory[0].bytes_mut().iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    let to = raw.regions[1].remote(0, MEBIBYTE as u64).unwrap();
    raw.write(MEBIBYTE as u32, to, 0xfee1_900d);
    let came = raw.completion(1);
    assert!(came.status.is_success(), "{}", came.status);
    assert_eq!(
        (came.id, came.done, came.bytes),
        (7, Done::Received(0xfee1_900d), 1 << 20)
    );
    assert_eq!(came.pair, raw.pairs[1].number());
    assert!(
        raw.memory[0].bytes() == raw.memory[1].bytes(),
        "the bytes differ"
    );
    let sent = raw.completion(0);
    assert_eq!(
        (sent.id, sent.done, sent.status.is_success()),
        (9, Done::Write, true)
    );
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_write_that_its_key_does_not_cover_is_refused_by_the_device() {
    let [one, other, ..] = nodes();
    for past in [true, false] {
        let mut raw = Raw::new(&one, &other, PathOptions::default());
        let mut to = raw.regions[1].remote(0, MEBIBYTE as u64).unwrap();
        if past {
            to.address += MEBIBYTE as u64 - 50;
        } else {
            to.key ^= 0x5a5a_5a5a;
        }
        raw.write(100, to, 1);
        let refused = raw.completion(0);
        assert!(!refused.status.is_success());
        assert_eq!(
            refused.status.to_string(),
            "the peer's device refused access to its memory"
        );
        assert!(raw.memory[1].bytes().iter().all(|byte| *byte == 0));
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn frames_cross_between_any_two_devices() {
    let nodes = nodes();
    for one in 0..4 {
        for other in one + 1..4 {
            let mut ends = channel(&nodes[one], &nodes[other], SMALL, MEBIBYTE);
            exchange(&mut ends, 40, 20_000);
        }
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn links_carry_payload_both_ways_between_two_devices() {
    let library = VerbsLibrary::load(None).unwrap();
    crate::links::everything_crosses(&library, ["rxe0", "rxe2"]);
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn one_queue_serves_channels_to_all_peers() {
    let [hub, rest @ ..] = nodes();
    let queue = CompletionQueue::new(&hub.context, 3 * SMALL.completions()).unwrap();
    let mut near = [0; 3].map(|_| End::with_queue(&hub, SMALL, MEBIBYTE, &queue));
    let mut far = rest.each_ref().map(|node| End::new(node, SMALL, MEBIBYTE));
    for (near, far) in near.iter_mut().zip(&mut far) {
        connect(near, far, PathOptions::default());
    }
    for number in 0..20 {
        for (near, far) in near.iter_mut().zip(&mut far) {
            near.send(number, 0, 0, 2000);
            far.send(number, 0, 0, 3000);
        }
    }
    let deadline = Instant::now() + LIMIT;
    let done = |end: &End| end.frames.len() == 20 && end.left.len() == 20;
    while !near.iter().chain(&far).all(done) {
        assert!(Instant::now() < deadline, "frames do not come");
        far.iter_mut().for_each(End::work);
        near.iter_mut().for_each(End::post);
        let mut completions = Vec::new();
        queue.poll(&mut completions).unwrap();
        for completion in &completions {
            let mut owners = near.iter_mut();
            let owner = owners.find(|end| end.channel.number() == completion.pair);
            owner.unwrap().take(completion);
        }
        for end in near.iter().chain(&far) {
            assert!(end.error.is_none(), "{}", end.words());
        }
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_completion_wakes_whoever_sleeps_on_the_descriptor() {
    let [one, other, ..] = nodes();
    wake_a_sleeper(&mut channel(&one, &other, SMALL, MEBIBYTE));
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn the_traffic_class_reaches_the_packets() {
    // What UDP packets this machine gets, with their IP headers.
    let kind = (AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP));
    let socket = rustix::net::socket(kind.0, kind.1, kind.2).unwrap();
    let [one, other, ..] = nodes();
    let path = PathOptions {
        traffic_class: 0x68,
        ..PathOptions::default()
    };
    let mut raw = Raw::new(&one, &other, path);
    let to = raw.regions[1].remote(0, 4096).unwrap();
    raw.write(4096, to, 1);
    assert!(raw.completion(1).status.is_success());
    let mut packet = [0; 128];
    loop {
        let (bytes, _) = rustix::net::recv(&socket, &mut packet, RecvFlags::DONTWAIT)
            .expect("no RoCE packet came by");
        // RoCE's UDP port, behind an IP header without options.
        if bytes > 24 && packet[22..24] == 4791u16.to_be_bytes() {
            assert_eq!(packet[1], 0x68);
            return;
        }
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn memory_beyond_the_limit_is_refused_with_the_remedy() {
    let [node, ..] = nodes();
    let segment = Segment::create("test", MEBIBYTE, Writers::Everybody).unwrap();
    // Root may lock anything, so we give that up; each test is a process of its own.
    let mut capabilities = rustix::thread::capabilities(None).unwrap();
    capabilities
        .effective
        .remove(rustix::thread::CapabilitySet::IPC_LOCK);
    rustix::thread::set_capabilities(None, capabilities).unwrap();
    let limit = Some(64 << 10);
    let maximum = limit;
    let limits = Rlimit {
        current: limit,
        maximum,
    };
    setrlimit(Resource::Memlock, limits).unwrap();
    for refused in [
        RegisteredRegion::register(&node.domain, &segment, Access::default()).err(),
        check_locked(MEBIBYTE as u64).err(),
    ] {
        let words = refused.unwrap().to_string();
        assert!(
            words.contains("1048576 bytes") && words.contains("65536"),
            "{words}"
        );
        assert!(words.contains("LimitMEMLOCK=infinity"), "{words}");
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_queue_pair_that_is_given_up_is_noticed_on_both_sides() {
    let [one, other, ..] = nodes();
    let [mut one, mut other] = channel(&one, &other, SMALL, MEBIBYTE);
    exchange_one(&mut one, &mut other);
    for number in 1..6 {
        one.send(number, 0, 0, 1000);
    }
    one.channel.abandon(&mut one.left);
    one.left.sort_unstable();
    assert_eq!(one.left, (0..6).collect::<Vec<_>>());
    other.send(1, 0, 0, 1000);
    work_until(&mut [&mut other], "the peer notices", |ends| {
        ends[0].error.is_some()
    });
    assert!(
        other.words().contains("connection failed"),
        "{}",
        other.words()
    );
}

/// Frame 0, so that both sides are known to be connected.
fn exchange_one(one: &mut End, other: &mut End) {
    one.send(0, 0, 0, 1000);
    work_until(&mut [one, other], "the first frame", |ends| {
        ends[1].frames.len() == 1 && ends[0].left.len() == 1
    });
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_pulled_cable_ends_the_channel_and_plugged_in_another_works() {
    let [one, other, ..] = nodes();
    let [mut near, mut far] = channel(&one, &other, SMALL, MEBIBYTE);
    exchange_one(&mut near, &mut far);
    cable(1, "down");
    let pulled = Instant::now();
    near.send(1, 0, 0, 1000);
    work_until(&mut [&mut near], "the error", |ends| {
        ends[0].error.is_some()
    });
    assert!(
        near.words().contains("gone, or the link is down"),
        "{}",
        near.words()
    );
    assert_eq!(near.left, [0, 1]);
    println!("noticed after {:?}", pulled.elapsed());
    cable(1, "up");
    let mut ends = channel(&one, &other, SMALL, MEBIBYTE);
    exchange(&mut ends, 20, 20_000);
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_short_outage_costs_time_only_where_the_timeout_is_longer() {
    let [one, other, ..] = nodes();
    let mut near = End::new(&one, SMALL, MEBIBYTE);
    let mut far = End::new(&other, SMALL, MEBIBYTE);
    // 1.07 s, tried eight times.
    let path = PathOptions {
        timeout: 18,
        ..PathOptions::default()
    };
    connect(&mut near, &mut far, path);
    exchange_one(&mut near, &mut far);
    cable(1, "down");
    for number in 1..4 {
        near.send(number, 0, 0, 1000);
    }
    near.work();
    // Long enough that the first tries are lost.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        near.work();
        far.work();
    }
    assert_eq!(far.frames.len(), 1);
    cable(1, "up");
    work_until(&mut [&mut near, &mut far], "the rest", |ends| {
        ends[1].frames.len() == 4 && ends[0].left.len() == 4
    });
    assert!(near.error.is_none() && far.error.is_none());
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_peer_that_is_killed_is_noticed() {
    if let Ok(socket) = env::var(PEER_SOCKET) {
        be_a_peer(&socket);
        return;
    }
    let socket = env::temp_dir().join(format!("rdma-peer-{}", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let mut peer = Command::new(env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "devices::a_peer_that_is_killed_is_noticed",
        ])
        .env(PEER_SOCKET, &socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    std::fs::remove_file(&socket).unwrap();
    let [node, ..] = nodes();
    let mut end = End::new(&node, SMALL, MEBIBYTE);
    introduce(&mut end, &mut stream);
    for number in 0..5 {
        end.send(number, 0, 0, 10_000);
    }
    // The peer sends every frame back.
    work_until(&mut [&mut end], "frames come back", |ends| {
        ends[0].frames.len() == 5
    });
    peer.kill().unwrap();
    let killed = Instant::now();
    peer.wait().unwrap();
    for number in 5..40 {
        end.send(number, 0, 0, 10_000);
    }
    work_until(&mut [&mut end], "the error", |ends| ends[0].error.is_some());
    println!("noticed after {:?}: {}", killed.elapsed(), end.words());
    assert!(end.words().contains("connection failed"), "{}", end.words());
    end.left.sort_unstable();
    assert_eq!(end.left, (0..40).collect::<Vec<_>>());
}

/// Connects to whoever is at the other end of the stream.
fn introduce(end: &mut End, stream: &mut UnixStream) {
    let ours = end.channel.invitation().unwrap();
    stream.write_all(&ours.encode()).unwrap();
    let mut theirs = [0; Invitation::BYTES];
    stream.read_exact(&mut theirs).unwrap();
    let theirs = Invitation::parse(&theirs).unwrap();
    end.channel
        .connect(&theirs, PathOptions::default())
        .unwrap();
    // Only now may the other side post.
    stream.write_all(&[1]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// The other process: sends back what comes, until it is killed.
fn be_a_peer(socket: &str) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let [_, node, ..] = nodes();
    let mut end = End::new(&node, SMALL, MEBIBYTE);
    introduce(&mut end, &mut stream);
    loop {
        let before = end.frames.len();
        work_until(&mut [&mut end], "frames", |ends| {
            ends[0].frames.len() > before
        });
        for at in before..end.frames.len() {
            let (header, _) = end.frames[at];
            end.send(header.number, 0, 0, header.payload);
        }
    }
}
