//! Simulated machines and what happens on them: processes that die and come back, machines that stand still, links that
//! carry nothing for a while. The state of the processes is the user's own; here is what happens to their events.

use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use crate::network::{Conditions, Network};
use crate::queue::Queue;
use crate::rng::Rng;

/// Who handles an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Something outside the hosts.
    World,
    /// Whatever runs on a host then.
    Host(usize),
    /// The process that runs on a host now: the event is lost with it.
    Process(usize),
}

#[derive(Clone, Debug)]
struct Scheduled<E> {
    to: To,
    /// The life of the process.
    life: u64,
    is_wake: bool,
    event: E,
}

#[derive(Clone, Debug)]
struct Host<E> {
    runs: bool,
    life: u64,
    frozen: bool,
    /// What came while it was frozen.
    deferred: Vec<Scheduled<E>>,
    /// When it wakes up by itself, if that is scheduled.
    wake: Option<Duration>,
}

/// Hosts with numbers from 0, the network between them, the events to come, and the story of the run.
#[derive(Debug)]
pub struct Hosts<E> {
    hosts: Vec<Host<E>>,
    queue: Queue<Scheduled<E>>,
    /// Also carries messages of places beyond the hosts, whose numbers follow.
    pub network: Network,
    rng: Rng,
    story: RefCell<Vec<String>>,
}

impl<E> Hosts<E> {
    /// Hosts on which nothing runs yet.
    #[must_use]
    pub fn new(rng: &mut Rng, count: usize, conditions: Conditions) -> Self {
        let host = || Host {
            runs: false,
            life: 0,
            frozen: false,
            deferred: Vec::new(),
            wake: None,
        };
        Self {
            hosts: std::iter::repeat_with(host).take(count).collect(),
            queue: Queue::default(),
            network: Network::new(rng.fork(), conditions),
            rng: rng.fork(),
            story: RefCell::default(),
        }
    }

    /// Number of hosts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.queue.now()
    }

    /// Whether something happens up to this time.
    #[must_use]
    pub fn is_due(&self, time: Duration) -> bool {
        self.queue.next_at().is_some_and(|next| next <= time)
    }

    /// Schedules an event.
    pub fn at(&mut self, time: Duration, to: To, event: E) {
        let scheduled = self.scheduled(to, event);
        self.queue.at(time, scheduled);
    }

    /// Schedules an event some time from now.
    pub fn after(&mut self, delay: Duration, to: To, event: E) {
        self.at(self.now() + delay, to, event);
    }

    /// Schedules an event after a random time.
    pub fn within(&mut self, delay: Range<Duration>, to: To, event: E) {
        let delay = self.draw(delay);
        self.after(delay, to, event);
    }

    /// A random time.
    pub fn draw(&mut self, range: Range<Duration>) -> Duration {
        let range = range.start.as_nanos() as u64..range.end.as_nanos() as u64;
        Duration::from_nanos(self.rng.range(range))
    }

    fn scheduled(&self, to: To, event: E) -> Scheduled<E> {
        let life = match to {
            To::Process(host) => self.hosts[host].life,
            To::World | To::Host(_) => 0,
        };
        Scheduled {
            to,
            life,
            is_wake: false,
            event,
        }
    }

    /// Wakes the process on a host with this event, unless it wakes up before.
    pub fn wake_at(&mut self, host: usize, time: Duration, event: E) {
        let mut scheduled = self.scheduled(To::Process(host), event);
        scheduled.is_wake = true;
        let wake = &mut self.hosts[host].wake;
        if wake.is_none_or(|wake| time < wake) {
            *wake = Some(time);
            self.queue.at(time, scheduled);
        }
    }

    /// Moves on by one event and returns it. None also where nobody handles it: its process has died since, or its host
    /// stands still and gets it when it goes on.
    pub fn pop(&mut self) -> Option<E> {
        let scheduled = self.queue.pop()?;
        let (To::Host(at) | To::Process(at)) = scheduled.to else {
            return Some(scheduled.event);
        };
        let host = &mut self.hosts[at];
        if matches!(scheduled.to, To::Process(_)) && scheduled.life != host.life {
            return None;
        }
        if host.frozen {
            host.deferred.push(scheduled);
            return None;
        }
        if scheduled.is_wake {
            host.wake = None;
        }
        Some(scheduled.event)
    }

    /// A process starts on a host.
    pub fn start(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        assert!(!host.runs, "one process runs on a host");
        (host.runs, host.life) = (true, host.life + 1);
    }

    /// The process on a host dies, with the events that were for it.
    pub fn kill(&mut self, host: usize) {
        self.thaw(host);
        let host = &mut self.hosts[host];
        (host.runs, host.life, host.wake) = (false, host.life + 1, None);
    }

    /// Whether a process runs on a host.
    #[must_use]
    pub fn runs(&self, host: usize) -> bool {
        self.hosts[host].runs
    }

    /// Whether a process that ran on a host has died.
    #[must_use]
    pub fn has_died(&self, host: usize) -> bool {
        self.hosts[host].life > 1
    }

    /// A host stands still: what is for it waits.
    pub fn freeze(&mut self, host: usize) {
        self.hosts[host].frozen = true;
    }

    /// A host goes on, and handles what came meanwhile.
    pub fn thaw(&mut self, host: usize) {
        self.hosts[host].frozen = false;
        let now = self.now();
        for scheduled in std::mem::take(&mut self.hosts[host].deferred) {
            self.queue.at(now, scheduled);
        }
    }

    /// Whether a host stands still.
    #[must_use]
    pub fn is_frozen(&self, host: usize) -> bool {
        self.hosts[host].frozen
    }

    /// Adds a line to the story, which is printed when the run fails.
    pub fn note(&self, what: impl Debug) {
        let line = format!("{:>12.3?} {what:?}", self.now());
        self.story.borrow_mut().push(line);
    }
}

impl<E: Clone> Hosts<E> {
    /// Sends an event through the network from one place to another.
    pub fn send(&mut self, from: usize, place: usize, to: To, event: &E) {
        for at in self.network.deliver(self.queue.now(), from, place) {
            self.at(at, to, event.clone());
        }
    }
}

impl<E> Drop for Hosts<E> {
    #[expect(
        clippy::print_stdout,
        reason = "the story of a failed run has to be seen"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in self.story.take() {
                println!("{line}");
            }
        }
    }
}

/// What is simulated on hosts: a protocol's processes, and everything around them.
pub trait Simulation {
    /// What happens.
    type Event;

    /// The hosts that it runs on.
    fn hosts(&mut self) -> &mut Hosts<Self::Event>;

    /// Handles one event.
    fn handle_event(&mut self, event: Self::Event);

    /// Lets the next event happen.
    fn step(&mut self) {
        if let Some(event) = self.hosts().pop() {
            self.handle_event(event);
        }
    }

    /// Lets everything happen up to this time, which is now then.
    fn run_until(&mut self, time: Duration) {
        while self.hosts().is_due(time) {
            self.step();
        }
        self.hosts().queue.pass(time);
    }

    /// Goes on while this holds, which is looked at after so many events. False when it still holds at the limit.
    fn run_while(
        &mut self,
        limit: Duration,
        events: usize,
        goes_on: impl Fn(&Self) -> bool,
    ) -> bool {
        while goes_on(self) {
            for _ in 0..events {
                if !self.hosts().is_due(limit) {
                    return !goes_on(self);
                }
                self.step();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn hosts() -> Hosts<u32> {
        let mut hosts = Hosts::new(&mut Rng::new(1), 2, Conditions::reliable());
        (0..2).for_each(|host| hosts.start(host));
        hosts
    }

    fn all(hosts: &mut Hosts<u32>) -> Vec<u32> {
        let mut events = Vec::new();
        while hosts.is_due(Duration::MAX) {
            events.extend(hosts.pop());
        }
        events
    }

    #[test]
    fn what_was_for_a_process_is_lost_with_it_and_what_is_for_its_host_is_not() {
        let mut hosts = hosts();
        hosts.after(MS, To::Process(0), 1);
        hosts.after(MS, To::Host(0), 2);
        hosts.after(MS, To::Process(1), 3);
        hosts.wake_at(0, MS, 4);
        hosts.kill(0);
        hosts.start(0);
        hosts.after(MS, To::Process(0), 5);
        hosts.wake_at(0, MS, 6);
        assert!(hosts.runs(0) && hosts.has_died(0) && !hosts.has_died(1));
        assert_eq!(all(&mut hosts), [2, 3, 5, 6]);
    }

    #[test]
    fn a_frozen_host_handles_in_order_what_came_when_it_goes_on() {
        let mut hosts = hosts();
        hosts.freeze(0);
        hosts.send(1, 0, To::Process(0), &1);
        hosts.send(1, 0, To::Process(0), &2);
        hosts.after(MS, To::World, 3);
        assert_eq!(all(&mut hosts), [3]);
        let now = hosts.now();
        hosts.thaw(0);
        assert_eq!(all(&mut hosts), [1, 2]);
        assert_eq!(hosts.now(), now);
    }

    #[test]
    fn a_process_wakes_up_once_at_the_earliest_time() {
        let mut hosts = hosts();
        hosts.wake_at(0, 5 * MS, 5);
        hosts.wake_at(0, 7 * MS, 7);
        hosts.wake_at(0, 3 * MS, 3);
        assert_eq!(hosts.pop(), Some(3));
        assert_eq!(hosts.now(), 3 * MS);
        // That of later is not called off: who wakes up looks whether anything is due.
        assert_eq!(all(&mut hosts), [5]);
    }
}
