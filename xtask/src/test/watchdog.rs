//! Ends the stages under way, with all that they started, when the time is over or a signal asks for
//! it. A stage is a process group of its own, so no other signal reaches it, not even that of Ctrl-C.

use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long a stage may take to end by itself before it is killed.
const GRACE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// Watches all stages of a run.
#[derive(Debug, Clone)]
pub(super) struct Watchdog {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The process groups of the stages under way.
    groups: Vec<u32>,
    /// Why nothing may run any more.
    over: Option<String>,
}

impl Watchdog {
    /// Watches until the limit, SIGINT or SIGTERM, whichever comes first.
    pub(super) fn start(limit: Duration) -> Result<Self> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM]).context("failed to listen for signals")?;
        let (sender, orders) = channel();
        thread::spawn(move || {
            for signal in signals.forever() {
                let name = if signal == SIGINT {
                    "SIGINT"
                } else {
                    "SIGTERM"
                };
                // The first is obeyed; nobody receives a second.
                let _ = sender.send(name);
            }
        });
        Ok(Self::obeying(limit, orders))
    }

    /// Watches until the limit or the first order.
    pub(super) fn obeying(limit: Duration, orders: Receiver<&'static str>) -> Self {
        let watchdog = Self {
            state: Arc::default(),
        };
        let watching = watchdog.clone();
        thread::spawn(move || {
            let why = match orders.recv_timeout(limit) {
                Ok(signal) => format!("ended by {signal}"),
                Err(RecvTimeoutError::Timeout) => {
                    format!("the time limit of {} minutes is over", limit.as_secs() / 60)
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            watching.stop(why);
        });
        watchdog
    }

    /// Ends what is under way; from here on nothing may run. The first reason counts.
    pub(super) fn stop(&self, why: String) {
        let mut state = self.state();
        state.over.get_or_insert(why);
        state.groups.drain(..).for_each(end);
    }

    /// Watches a process group from here on; an error when nothing may run any more.
    pub(super) fn watch(&self, group: u32) -> Result<()> {
        let mut state = self.state();
        if let Some(why) = &state.over {
            end(group);
            bail!("{why}");
        }
        state.groups.push(group);
        Ok(())
    }

    /// A group that was watched has ended by itself, or there is an error that says why not.
    pub(super) fn ended(&self, group: u32) -> Result<()> {
        let mut state = self.state();
        state.groups.retain(|&other| other != group);
        match &state.over {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// True when nothing may run any more.
    pub(super) fn over(&self) -> bool {
        self.state().over.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a process group: asks it to, and kills what is left after a while.
fn end(group: u32) {
    let deadline = Instant::now() + GRACE;
    send("TERM", group);
    while send("0", group) && Instant::now() < deadline {
        thread::sleep(POLL);
    }
    send("KILL", group);
}

/// Sends a signal to a process group; false when there is none.
fn send(signal: &str, group: u32) -> bool {
    // The shell's own kill: the program is not on every machine.
    let script = format!("kill -s {signal} -- -{group} 2>/dev/null");
    let sent = Command::new("sh").args(["-c", &script]).status();
    sent.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::Watchdog;

    const LONG: Duration = Duration::from_secs(3600);

    /// A process with a child of its own, both of which hold its stdout open.
    fn family() -> Child {
        Command::new("sh")
            .args(["-c", "sleep 600 & wait"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap()
    }

    /// Returns once nobody holds the stdout open any more.
    fn wait_for_all(child: &mut Child) {
        let mut output = child.stdout.take().unwrap();
        output.read_to_end(&mut Vec::new()).unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn the_time_limit_ends_a_stage_and_all_that_it_started() {
        let (_sender, orders) = channel();
        let mut child = family();
        let watchdog = Watchdog::obeying(Duration::from_millis(200), orders);
        // On a slow machine the time may be over already.
        let _over = watchdog.watch(child.id());
        wait_for_all(&mut child);
        let error = watchdog.ended(child.id()).unwrap_err().to_string();
        assert!(error.contains("time limit"), "{error}");
        assert!(watchdog.over());
    }

    #[test]
    fn an_order_ends_a_stage_and_the_next_does_not_start() {
        let (sender, orders) = channel();
        let watchdog = Watchdog::obeying(LONG, orders);
        let mut first = family();
        watchdog.watch(first.id()).unwrap();
        sender.send("SIGINT").unwrap();
        wait_for_all(&mut first);
        assert!(watchdog.ended(first.id()).is_err());

        let mut second = family();
        let error = watchdog.watch(second.id()).unwrap_err().to_string();
        assert!(error.contains("SIGINT"), "{error}");
        wait_for_all(&mut second);
    }

    #[test]
    fn a_stage_that_fails_ends_those_beside_it() {
        let (_sender, orders) = channel();
        let watchdog = Watchdog::obeying(LONG, orders);
        let mut beside = family();
        watchdog.watch(beside.id()).unwrap();
        watchdog.stop("lint failed".to_owned());
        wait_for_all(&mut beside);
        let error = watchdog.ended(beside.id()).unwrap_err().to_string();
        assert!(error.contains("lint failed"), "{error}");
    }

    #[test]
    fn a_stage_that_ends_by_itself_is_no_error() {
        let (_sender, orders) = channel();
        let watchdog = Watchdog::obeying(LONG, orders);
        watchdog.watch(u32::MAX).unwrap();
        watchdog.ended(u32::MAX).unwrap();
        assert!(!watchdog.over());
    }
}
