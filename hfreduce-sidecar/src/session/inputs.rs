//! The segments that a process's inputs lie in: made for it, or taken back from one that an earlier sidecar has served.
//! Both may take seconds, so they are done in the background; the process is answered in the order of its requests.

use std::os::fd::OwnedFd;

use collective::machine::MAX_MESSAGES;
use hfreduce_client::attach::SidecarAnswer;
use link::block::Block;
use link::memory_policy::MemoryPolicy;
use link::segment::{self, Segment, Writers};

use super::{Error, Session};
use crate::background::{Background, BackgroundAnswer};
pub(super) use crate::limits::REQUEST_LIMIT;

/// Input segments of one process: the buckets of a large model, and all messages that it may send at once.
const SEGMENT_LIMIT: usize = 1024 + MAX_MESSAGES as usize;

/// How much memory a process may use for inputs.
#[derive(Clone, Debug)]
pub struct Room {
    /// In bytes, of which `kept` are not to be had.
    pub limit_bytes: usize,
    /// Memory of processes that were attached in this place before, which they may have kept.
    pub kept_bytes: usize,
    /// Where it lies.
    pub home: MemoryPolicy,
}

/// What a process has asked for and was not answered.
#[derive(Debug)]
pub(super) enum Request {
    /// A segment of this number is made, or mapped.
    Segment {
        number: u32,
        bytes: usize,
        /// Whether it is the process's.
        taken: bool,
        answer: BackgroundAnswer<Result<Segment, segment::Error>>,
    },
    /// It is not to be had.
    Refused(String),
}

impl Session {
    /// Takes a segment back that an earlier sidecar has made. It may be anything, so it is checked like anything untrusted.
    pub(super) fn take_back(
        &mut self,
        number: u32,
        bytes: u64,
        fds: Vec<OwnedFd>,
        background: &mut Background,
    ) -> Result<(), Error> {
        let request = self.map(number, bytes, fds, background);
        self.note_request(request)
    }

    fn map(
        &mut self,
        number: u32,
        bytes: u64,
        fds: Vec<OwnedFd>,
        background: &mut Background,
    ) -> Result<Request, String> {
        let count = fds.len();
        let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(format!(
                "segment {number} came with {count} descriptors instead of one"
            ));
        };
        let next = number.checked_add(1);
        let Some(next) = next.filter(|_| !self.has_segment(number)) else {
            return Err(format!(
                "there is a segment {number} already, or none can be"
            ));
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.check_room(bytes, bytes)?;
        let answer = background
            .ask(move || Segment::open(fd, bytes))
            .map_err(|error| error.to_string())?;
        self.next_segment = self.next_segment.max(next);
        Ok(Request::Segment {
            number,
            bytes,
            taken: true,
            answer,
        })
    }

    /// Sends the process a segment, when it is made.
    pub(super) fn send_segment(
        &mut self,
        bytes: u64,
        background: &mut Background,
    ) -> Result<(), Error> {
        let request = self.make(bytes, background);
        self.note_request(request)
    }

    fn make(&mut self, bytes: u64, background: &mut Background) -> Result<Request, String> {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        let bytes = segment::size_class(wanted);
        self.check_room(wanted, bytes)?;
        let number = self.next_segment;
        let next = number
            .checked_add(1)
            .ok_or("all numbers of segments are used up")?;
        let home = self.room.home.clone();
        let make = move || Segment::create_at("fireflyer-input", wanted, Writers::Everybody, &home);
        let answer = background.ask(make).map_err(|error| error.to_string())?;
        self.next_segment = next;
        Ok(Request::Segment {
            number,
            bytes,
            taken: false,
            answer,
        })
    }

    fn note_request(&mut self, request: Result<Request, String>) -> Result<(), Error> {
        if self.requests.len() >= REQUEST_LIMIT {
            return Err(Error::AsksTooMuch);
        }
        self.requests
            .push_back(request.unwrap_or_else(Request::Refused));
        self.answer_requests()
    }

    /// Answers what has been made since, in the order of the requests.
    pub fn answer_requests(&mut self) -> Result<(), Error> {
        while let Some(request) = self.requests.pop_front() {
            let (number, taken, made) = match request {
                Request::Refused(reason) => {
                    self.say(&SidecarAnswer::Refused { reason }, &[])?;
                    continue;
                }
                Request::Segment {
                    number,
                    bytes,
                    taken,
                    answer,
                } => match answer.take() {
                    Some(made) => (number, taken, made),
                    None => {
                        self.requests.push_front(Request::Segment {
                            number,
                            bytes,
                            taken,
                            answer,
                        });
                        return Ok(());
                    }
                },
            };
            let made = made
                .map_err(|error| error.to_string())
                .and_then(|made| made.map_err(|error| error.to_string()));
            let block = match made {
                // Its pages could not be given back.
                Ok(segment) if taken && !segment.keeps_its_seals() => Err(format!(
                    "segment {number} is not sealed against further seals"
                )),
                Ok(segment) => Ok(Block::new(segment)),
                Err(reason) => Err(reason),
            };
            match block {
                Ok(block) => {
                    let bytes = block.len() as u64;
                    if taken {
                        self.say(&SidecarAnswer::Taken { segment: number }, &[])?;
                    } else {
                        let segment = number;
                        self.say(&SidecarAnswer::Input { segment, bytes }, &[block.fd()])?;
                    }
                    self.inputs.insert(number, block);
                }
                Err(reason) => self.say(&SidecarAnswer::Refused { reason }, &[])?,
            }
        }
        Ok(())
    }

    /// Bytes of registered segments that the process has not given back.
    pub fn input_bytes(&self) -> usize {
        self.inputs.values().map(|block| block.len()).sum()
    }

    fn has_segment(&self, number: u32) -> bool {
        let asked = |request: &Request| matches!(request, Request::Segment { number: of, .. } if *of == number);
        self.inputs.contains_key(&number) || self.requests.iter().any(asked)
    }

    /// Whether the process may use so much more memory for inputs; `size` is what `wanted` bytes take.
    fn check_room(&self, wanted: usize, size: usize) -> Result<(), String> {
        let asked = self.requests.iter().filter_map(|request| match request {
            Request::Segment { bytes, .. } => Some(*bytes),
            Request::Refused(_) => None,
        });
        let used = self.input_bytes() + asked.clone().sum::<usize>() + self.room.kept_bytes;
        let segments = self.inputs.len() + asked.count();
        let limit = self.room.limit_bytes;
        if size > limit.saturating_sub(used) || segments >= SEGMENT_LIMIT {
            return Err(format!(
                "{wanted} bytes were asked for, and {used} of the {limit} bytes that one process may use \
                 for inputs are registered in {segments} segments: wait for some of the calls in flight, each \
                 of which holds one, then try again"
            ));
        }
        Ok(())
    }
}
