//! The one seeded simulator: random numbers, virtual time, a network, hosts, crash points, a disk, and a judge of
//! histories. Generic over what is simulated. A protocol of processes on several machines implements [`Simulation`]
//! over [`Hosts`]; anything else writes its own loop:
//!
//! ```
//! use sim::{Conditions, Network, Queue, Rng};
//! use std::time::Duration;
//!
//! let mut rng = Rng::new(1);
//! let mut network = Network::new(rng.fork(), Conditions::reliable());
//! let mut queue = Queue::default();
//! for arrival in network.deliver(queue.now(), 0, 1) {
//!     queue.at(arrival, "hello");
//! }
//! queue.after(Duration::from_secs(1), "tick");
//! assert_eq!(queue.pop(), Some("hello"));
//! assert_eq!(queue.pop(), Some("tick"));
//! assert_eq!(queue.now(), Duration::from_secs(1));
//! ```

mod crash;
pub mod damage;
mod disk;
pub mod history;
mod hosts;
mod limit;
mod network;
mod queue;
mod rng;
mod runner;
mod seeds;

pub use crash::CrashPoint;
pub use disk::{Disk, DiskError, SECTOR};
pub use hosts::{Hosts, Simulation, To};
pub use limit::keep_limit;
pub use network::{Conditions, Network, TAIL_NS};
pub use queue::Queue;
pub use rng::Rng;
pub use runner::run_tests;
pub use seeds::{explore, for_each_seed, is_replay, print_count};
