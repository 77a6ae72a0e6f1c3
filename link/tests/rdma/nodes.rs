//! Nodes with a device each, and ends of channels between them: shared by the tests on real devices and those on the
//! stand-in library.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::toy::Toy;
use link::segment::{Segment, Writers};
use link::verbs::channel::{
    ChannelEvent, ChannelOptions, Destination, Error, Payload, RdmaChannel, SlotTarget,
};
use link::verbs::{
    Access, CompletionQueue, DeviceContext, Domain, FinishedWork, Gid, GidChoice, PathOptions,
    Port, RegisteredRegion, VerbsLibrary, devices,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The window of all tests that need one.
pub(crate) const WINDOW: u64 = 3;
/// Nothing takes so long that is going to happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// A device, its port, and what is made once.
pub(crate) struct Node {
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) port: Port,
    pub(crate) gid: Gid,
    pub(crate) domain: Arc<Domain>,
}

/// One node for each device.
pub(crate) fn nodes(library: &Arc<VerbsLibrary>) -> Vec<Node> {
    let nodes = devices(library).unwrap().into_iter().map(|context| {
        let port = context.ports().unwrap().remove(0);
        let gid = port.gid(context.name(), GidChoice::Automatic).unwrap();
        Node {
            domain: Domain::new(&context).unwrap(),
            context,
            port,
            gid,
        }
    });
    nodes.collect()
}

/// One end of a channel: sends from the first half of its memory and receives into the second.
pub(crate) struct End {
    pub(crate) channel: RdmaChannel<Toy>,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) memory: Segment,
    pub(crate) region: Arc<RegisteredRegion>,
    pub(crate) frames: Vec<(Toy, SlotTarget)>,
    pub(crate) left: Vec<u64>,
    pub(crate) error: Option<Error>,
    /// Looks at each frame as it comes.
    pub(crate) check: fn(&Segment, &Toy, SlotTarget),
}

impl End {
    pub(crate) fn new(node: &Node, options: ChannelOptions, bytes: usize) -> Self {
        let queue = CompletionQueue::new(&node.context, options.completions()).unwrap();
        Self::with_queue(node, options, bytes, &queue)
    }

    pub(crate) fn with_queue(
        node: &Node,
        options: ChannelOptions,
        bytes: usize,
        queue: &Arc<CompletionQueue>,
    ) -> Self {
        let memory = Segment::create("end", bytes, Writers::Everybody).unwrap();
        let access = Access {
            remote_write: true,
            relaxed_ordering: true,
        };
        let region = RegisteredRegion::register(&node.domain, &memory, access).unwrap();
        let mut channel =
            RdmaChannel::new(&node.domain, queue, &node.port, &node.gid, options).unwrap();
        let half = memory.len() as u64 / 2;
        let remote = region.remote(half, half).unwrap();
        channel.announce(WINDOW, remote).unwrap();
        Self {
            channel,
            queue: Arc::clone(queue),
            memory,
            region,
            frames: Vec::new(),
            left: Vec::new(),
            error: None,
            check: |_, _, _| {},
        }
    }

    /// Sends a frame with so many bytes, from `from` in the first half to `to` in the peer's second.
    pub(crate) fn send(&mut self, number: u64, from: u64, to: u64, bytes: u32) {
        let payload = (bytes > 0).then(|| Payload {
            ticket: number,
            source: self.region.source(from, bytes).unwrap(),
            destination: Destination {
                window: WINDOW,
                offset: to,
            },
        });
        let header = header(number, bytes);
        self.channel.push(header, payload).unwrap();
    }

    /// Flushes, and takes in what has completed.
    pub(crate) fn work(&mut self) {
        let mut completions = Vec::new();
        self.post();
        if let Err(error) = self.queue.poll(&mut completions) {
            self.fail(error.into());
        }
        for completion in &completions {
            self.take(completion);
        }
        self.post();
    }

    pub(crate) fn post(&mut self) {
        if let Err(error) = self.channel.flush() {
            self.fail(error);
        }
    }

    pub(crate) fn take(&mut self, completion: &FinishedWork) {
        match self.channel.complete(completion, &mut self.left) {
            Ok(ChannelEvent::Frame { header, place }) => {
                (self.check)(&self.memory, &header, place);
                self.frames.push((header, place));
            }
            Ok(ChannelEvent::Nothing) => {}
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: Error) {
        self.channel.abandon(&mut self.left);
        self.error.get_or_insert(error);
    }

    /// The error in words; empty while there is none.
    pub(crate) fn words(&self) -> String {
        self.error
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    }
}

pub(crate) fn header(number: u64, payload: u32) -> Toy {
    Toy::copied(number, payload)
}

/// Connects two ends, which exchange nothing but invitations.
pub(crate) fn connect(one: &mut End, other: &mut End, path: PathOptions) {
    let invitations = [&one.channel, &other.channel].map(|channel| channel.invitation().unwrap());
    one.channel.connect(&invitations[1], path).unwrap();
    other.channel.connect(&invitations[0], path).unwrap();
}

/// A channel between two nodes.
pub(crate) fn channel(one: &Node, other: &Node, options: ChannelOptions, bytes: usize) -> [End; 2] {
    let mut ends = [one, other].map(|node| End::new(node, options, bytes));
    let [one, other] = &mut ends;
    connect(one, other, PathOptions::default());
    ends
}

/// Lets ends work until it is done; sleeps on their descriptors when nothing moves.
pub(crate) fn work_until(ends: &mut [&mut End], what: &str, done: impl Fn(&[&mut End]) -> bool) {
    let deadline = Instant::now() + LIMIT;
    loop {
        // Armed before the last look, so that nothing comes unseen between looking and sleeping.
        for end in ends.iter_mut() {
            end.queue.arm().unwrap();
            end.work();
        }
        if done(ends) {
            return;
        }
        let errors: Vec<String> = ends.iter().map(|end| end.words()).collect();
        assert!(Instant::now() < deadline, "{what}: not in time; {errors:?}");
        let mut ready: Vec<PollFd<'_>> = ends
            .iter()
            .map(|end| PollFd::new(&*end.queue, PollFlags::IN))
            .collect();
        // Not longer, because a device of ours may work only while it is looked at.
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        poll(&mut ready, Some(&moment)).unwrap();
    }
}

/// A byte that depends on who sends which frame, and where in it.
fn pattern(number: u64, at: usize) -> u8 {
    (number.wrapping_mul(31) as usize + at * 7) as u8
}

/// Sends frames with and without payload in both directions at once, over rings that they go round many times, and
/// checks each payload when its frame comes.
pub(crate) fn exchange(ends: &mut [End; 2], frames: u64, largest: u32) {
    let places = 8;
    for end in ends.iter_mut() {
        assert!(end.memory.len() as u64 / 2 >= places * u64::from(largest));
        end.check = |memory, header, place| {
            let SlotTarget::At(to) = place else {
                assert_eq!(header.payload, 0);
                return;
            };
            let start = memory.len() / 2 + to.offset as usize;
            let bytes = &memory.bytes()[start..start + header.payload as usize];
            let right = |(at, byte): (usize, &u8)| *byte == pattern(header.number, at);
            let wrong = bytes.iter().enumerate().find(|byte| !right(*byte));
            assert_eq!(wrong, None, "frame {} is damaged", header.number);
        };
    }
    let [one, other] = ends;
    let mut sent = [0; 2];
    // A place is written to again when the frame that used it last was seen by its receiver.
    while sent != [frames; 2] {
        for (side, sent) in sent.iter_mut().enumerate() {
            let (end, seen) = match side {
                0 => (&mut *one, other.frames.len() as u64),
                _ => (&mut *other, one.frames.len() as u64),
            };
            while *sent < frames && *sent < seen + places {
                let number = *sent;
                let bytes = match number % 4 {
                    0 => 0,
                    1 => 100,
                    _ => largest - (number % 97) as u32,
                };
                let place = number % places * u64::from(largest);
                let source = &mut end.memory.bytes_mut()[place as usize..][..bytes as usize];
                for (at, byte) in source.iter_mut().enumerate() {
                    *byte = pattern(number, at);
                }
                end.send(number, place, place, bytes);
                *sent += 1;
            }
        }
        let before = one.frames.len() + other.frames.len();
        let all = 2 * frames as usize;
        work_until(&mut [one, other], "frames come", |ends| {
            assert!(
                ends.iter().all(|end| end.error.is_none()),
                "{} {}",
                ends[0].words(),
                ends[1].words()
            );
            let came = ends[0].frames.len() + ends[1].frames.len();
            came > before || came == all
        });
    }
    let loaded = (0..frames).filter(|number| number % 4 != 0);
    let loaded: Vec<u64> = loaded.collect();
    work_until(&mut [one, other], "everything arrives", |ends| {
        ends.iter()
            .all(|end| end.frames.len() as u64 == frames && end.left.len() == loaded.len())
    });
    for end in [one, other] {
        let came: Vec<u64> = end.frames.iter().map(|(header, _)| header.number).collect();
        assert_eq!(came, (0..frames).collect::<Vec<_>>());
        end.left.sort_unstable();
        assert_eq!(end.left, loaded);
        assert!(end.channel.is_flushed());
    }
}

/// A completion wakes whoever sleeps on an armed queue, and only then.
pub(crate) fn wake_a_sleeper(ends: &mut [End; 2]) {
    let [one, other] = ends;
    work_until(&mut [one, other], "windows", |ends| {
        ends.iter().all(|end| end.channel.is_flushed())
    });
    for number in 0..3 {
        let mut completions = Vec::new();
        other.queue.arm().unwrap();
        other.queue.poll(&mut completions).unwrap();
        completions
            .iter()
            .for_each(|completion| other.take(completion));
        one.send(number, 0, 0, 0);
        one.work();
        let limit = Timespec {
            tv_sec: LIMIT.as_secs() as i64,
            tv_nsec: 0,
        };
        let mut ready = [PollFd::new(&*other.queue, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&limit)), Ok(1), "nobody is woken");
        work_until(&mut [one, other], "the frame", |ends| {
            ends[1].frames.len() as u64 == number + 1
        });
    }
}
