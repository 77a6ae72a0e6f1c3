//! Who uses the machine's processors: whether it is quiet enough to measure on, and how much others took meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// The machine counts as quiet when it was idle for more than this share of that time.
const QUIET: (f64, Duration) = (0.9, Duration::from_millis(700));
/// Others may use this share of all processors before a figure counts as noisy.
pub const NOISY: f64 = 0.08;
/// The kernel counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Waits until the machine is quiet, at most for `limit`. Says whether it is.
pub fn wait_until_quiet(limit: Duration) -> bool {
    let (share, time) = QUIET;
    let start = Instant::now();
    loop {
        let before = Processors::now();
        thread::sleep(time);
        if before.idle_share_since() > share {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
    }
}

/// Processor time of a set of processes and of the whole machine, at one moment.
#[derive(Debug)]
pub struct ProcessorUse {
    all: Processors,
    own: f64,
}

impl ProcessorUse {
    /// From now on.
    pub fn now(processes: &BTreeSet<u32>) -> Self {
        Self {
            all: Processors::now(),
            own: processor_seconds(processes).total() + own_seconds(),
        }
    }

    /// The share of all processors that went to others than `processes` since then.
    pub fn others_since(&self, processes: &BTreeSet<u32>) -> f64 {
        let now = Self::now(processes);
        let total = now.all.total - self.all.total;
        let busy = total - (now.all.idle - self.all.idle);
        if total <= 0.0 {
            return 0.0;
        }
        ((busy - (now.own - self.own)) / total).clamp(0.0, 1.0)
    }
}

/// Seconds that processes have used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seconds {
    /// In their own code.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl Seconds {
    /// Both.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

/// Of the whole machine, in seconds.
#[derive(Clone, Copy, Debug)]
struct Processors {
    total: f64,
    idle: f64,
}

impl Processors {
    fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guests are in user already.
        let ticks: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        let idle = ticks.iter().skip(3).take(2).sum::<f64>();
        Self {
            total: ticks.iter().sum::<f64>() / TICKS_PER_SECOND,
            idle: idle / TICKS_PER_SECOND,
        }
    }

    fn idle_share_since(self) -> f64 {
        let now = Self::now();
        let total = now.total - self.total;
        if total <= 0.0 {
            1.0
        } else {
            (now.idle - self.idle) / total
        }
    }
}

/// What these processes have used since they began, all threads together.
pub fn processor_seconds(processes: &BTreeSet<u32>) -> Seconds {
    let mut seconds = Seconds::default();
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let [user, system, ..] = times(&text);
        seconds.user += user;
        seconds.system += system;
    }
    seconds
}

/// Of this process, and of the children that it has waited for.
fn own_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    times(&stat).iter().sum()
}

/// Seconds in user and in kernel mode, and the same of children that ended, of a `stat` file. The name of the
/// process may hold blanks and brackets.
fn times(stat: &str) -> [f64; 4] {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // The third field of the file is the first here; user time is the 14th, and the others follow.
    let mut fields = rest.split_whitespace().skip(11);
    [(); 4].map(|()| {
        let field = fields.next().and_then(|field| field.parse::<f64>().ok());
        field.unwrap_or(0.0) / TICKS_PER_SECOND
    })
}

#[cfg(test)]
mod tests {
    use super::times;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 1 0";
        assert_eq!(times(stat), [1.5, 0.25, 0.0, 0.0]);
        assert_eq!(times(""), [0.0; 4]);
    }
}
