//! `cargo xtask demo`: from nothing to a trained model on a real cluster, in front of a person. It does what a user would
//! do, with the same tools: helm installs the chart, kubectl applies the example; the rest is watching.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use ::cluster::{Cluster, ClusterOptions, Name, NodeEngine, chart, prerequisites, tools};
use anyhow::{Context as _, Result, bail, ensure};

use crate::args::Args;
use crate::{Verb, child, cluster, images, packages, recording, report};

pub(crate) const VERB: Verb = Verb {
    name: "demo",
    about: "Train a PyTorch model on a Kubernetes cluster on this machine",
    usage: "
Usage: cargo xtask demo [--kill-node] [--down] [--record FILE]

Builds everything, creates a cluster of three nodes in three zones, installs the chart and trains a PyTorch model on
handwritten digits over HFReduce, on the nodes of two zones. The first run takes up to half an hour, later runs take minutes. Each run creates a new
cluster and deletes the old one with its jobs and checkpoints.

  --kill-node    use three nodes in one zone, and kill the node of node rank 1 while the job trains
  --down         delete the demo's cluster
  --record FILE  write the output as an animated SVG, too, such as docs/demo.svg",
    run,
};

const NAME: &str = "demo";
const JOB: &str = "digits";
const EXAMPLE: &str = "examples/digits.yaml";
/// What the example trains for, and the same slowly enough for a fast machine to be still at it when the node dies.
const STEPS: &str = "--steps, \"400\"";
const PACED: &str = "--steps, \"400\", --pace, \"0.05\"";
/// Where the example keeps its images and checkpoints, and what it uses where a node dies that has a replica: writes would
/// wait until it is back.
const CLASS: &str = "storageClassName: fireflyer";
const SHARED: &str = "storageClassName: demo-shared";
/// What the example promises on images that it has not seen.
const ACCURACY: f64 = 0.95;
/// The training takes about a minute, a lost node some seconds more; ten times that is the limit.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// How often the job is looked at.
const LOOK: Duration = Duration::from_millis(500);

fn run(mut args: Args) -> Result<ExitCode> {
    let kill_node = args.switch("--kill-node");
    let down = args.switch("--down");
    let picture = args.option("--record")?;
    args.finish()?;
    if !prerequisites::is_root() {
        return Ok(cluster::ask_for_root(
            "The demo installs packages and makes file systems and namespaces, which only root may.",
        ));
    }
    if let Some(picture) = picture {
        return recorded(kill_node, Path::new(&picture));
    }
    let name = Name::new(NAME)?;
    if down {
        let was_there = Cluster::down(&name)?;
        println!(
            "{}",
            if was_there {
                "the demo's cluster is gone"
            } else {
                "there is no demo cluster"
            }
        );
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    println!("Fire-Flyer: from an empty machine to a trained model\n\nPrerequisites");
    cluster::announce_engine();
    packages::install(&prerequisites::missing_for_cluster())?;
    println!("\nPrograms of the cluster");
    tools::Tools::build(&tools::of_demo(NodeEngine::here()), &report::step)?;
    println!("\nImages");
    images::build(&images::all())?;

    // Three, for three replicas of what is stored. Who loses a node waits minutes for its zone before it crosses zones:
    // the spare one is in the same.
    let zones = if kill_node {
        ["a", "a", "a"]
    } else {
        ["a", "b", "c"]
    };
    println!(
        "\nCluster of {} nodes, zones {}",
        zones.len(),
        zones.join(", ")
    );
    let options = ClusterOptions::new(name).nodes(zones.len()).zones(&zones);
    let cluster = Cluster::up(&options, &report::step)?;
    chart::install(&cluster, &report::step)?;

    if kill_node {
        println!("\nsed 's/{STEPS}/{PACED}/; s/{CLASS}/{SHARED}/' {EXAMPLE} | kubectl apply -f -");
        let mut apply = cluster.kubectl(["apply", "-f", "-"])?;
        ::cluster::command::run_with_input(&mut apply, for_a_loss()?.as_bytes())?;
    } else {
        println!("\nkubectl apply -f {EXAMPLE}");
        kubectl(&cluster, &["apply", "-f", EXAMPLE])?;
    }
    let ended = follow(&cluster, kill_node)?;
    ensure!(
        ended.accuracy >= ACCURACY,
        "the model reached an accuracy of {}, the example promises {ACCURACY}",
        ended.accuracy
    );
    if kill_node {
        ensure!(ended.attempt > 1, "the job did not notice that a node died");
        ensure!(
            ended.resumed.is_some(),
            "the job began anew instead of going on from its checkpoint"
        );
    }
    let shown: &[&str] = if kill_node {
        &["trainingjobs,nodes"]
    } else {
        &["trainingjobs,nodes,pvc,storagepools"]
    };
    let shown = [&["get"], shown].concat();
    println!("\n{}", kubectl(&cluster, &shown)?.trim_end());
    println!("\n{}", goodbye(&cluster, &ended, started.elapsed()));
    Ok(ExitCode::SUCCESS)
}

/// Runs itself and keeps what it prints.
fn recorded(kill_node: bool, picture: &Path) -> Result<ExitCode> {
    let own = env::current_exe().context("failed to find this program's own path")?;
    let mut demo = child::command(own);
    demo.arg("demo").args(kill_node.then_some("--kill-node"));
    let status = recording::record(&mut demo, picture)?;
    Ok(child::exit_code(status))
}

/// The example as it survives the loss of a node.
fn for_a_loss() -> Result<String> {
    let path = ::cluster::paths::repository().join(EXAMPLE);
    let mut text = fs::read_to_string(path).context("failed to read the example")?;
    for (from, to) in [(STEPS, PACED), (CLASS, SHARED)] {
        ensure!(text.contains(from), "{EXAMPLE} has no {from}");
        text = text.replace(from, to);
    }
    Ok(text)
}

/// How the job ended.
struct Ended {
    attempt: u32,
    accuracy: f64,
    /// The checkpoint that the last attempt went on from.
    resumed: Option<String>,
}

/// Shows the job until it ends; kills the node of rank 1 once there is a checkpoint to lose, if asked to.
fn follow(cluster: &Cluster, kill_node: bool) -> Result<Ended> {
    let started = Instant::now();
    let (sender, lines) = channel();
    let mut shown = String::new();
    let mut printed = Printed::default();
    let mut log: Option<Log> = None;
    let mut killed = !kill_node;
    loop {
        ensure!(
            started.elapsed() < LIMIT,
            "the job did not end within {} minutes",
            LIMIT.as_secs() / 60
        );
        let job = Job::look(cluster)?;
        if job.line() != shown {
            shown = job.line();
            println!("{:>6.1} s  {shown}", started.elapsed().as_secs_f64());
        }
        let trains = matches!(job.phase.as_str(), "Running" | "Succeeded");
        if trains && log.as_ref().is_none_or(|log| log.attempt != job.attempt) {
            log = Some(Log::follow(cluster, job.attempt, sender.clone())?);
        }
        show(&lines, started, &mut printed);
        if printed.saved && !killed {
            killed = true;
            let node = node_of(cluster, job.attempt, 1)?;
            println!(
                "{:>6.1} s  killing node {node}, which has node rank 1",
                started.elapsed().as_secs_f64()
            );
            cluster.node(&node)?.kill()?;
        }
        match job.phase.as_str() {
            "Succeeded" => {
                ensure!(
                    killed,
                    "the training ended before its first checkpoint: no node was killed"
                );
                // The log's last lines may come after the phase.
                if let Some(log) = log.as_mut() {
                    log.finish();
                }
                show(&lines, started, &mut printed);
                let accuracy = printed.accuracy;
                return Ok(Ended {
                    attempt: job.attempt,
                    accuracy: accuracy.context("the trainer's log has no accuracy")?,
                    resumed: printed.resumed,
                });
            }
            "Failed" => {
                println!("{}", kubectl(cluster, &["describe", "trainingjob", JOB])?);
                bail!("the job failed; its description is above");
            }
            _ => thread::sleep(LOOK),
        }
    }
}

/// What the trainer has printed so far.
#[derive(Default)]
struct Printed {
    /// It has saved a checkpoint.
    saved: bool,
    /// The checkpoint that it went on from.
    resumed: Option<String>,
    accuracy: Option<f64>,
}

/// Prints what the trainer printed since the last time, and takes in what matters.
fn show(lines: &Receiver<String>, started: Instant, printed: &mut Printed) {
    let lines = lines.try_iter().filter(|line| !is_traceback(line));
    for line in lines {
        let line = without_rank(&line);
        println!("{:>6.1} s      {line}", started.elapsed().as_secs_f64());
        match line.split_once('=') {
            Some(("checkpoint", _)) => printed.saved = true,
            Some(("resumed", name)) => printed.resumed = Some(name.to_owned()),
            Some(("accuracy", text)) => printed.accuracy = text.parse().ok(),
            Some(_) | None => {}
        }
    }
}

/// A line without the `[rank0]: ` that the launcher puts before it.
fn without_rank(line: &str) -> &str {
    match line.split_once("]: ") {
        Some((rank, rest)) if rank.starts_with("[rank") => rest,
        Some(_) | None => line,
    }
}

/// Where in the code an error came up: the line below it says which error it was, `kubectl logs` has it all.
fn is_traceback(line: &str) -> bool {
    let line = without_rank(line);
    line.is_empty() || line.starts_with(' ') || line.starts_with("Traceback ") || line == "At:"
}

/// What the status says, without what a person would not read.
struct Job {
    phase: String,
    attempt: u32,
    zone: String,
}

impl Job {
    fn look(cluster: &Cluster) -> Result<Self> {
        let path = "jsonpath={.status.phase}|{.status.attempt}|{.status.zones[*]}";
        let text = kubectl(cluster, &["get", "trainingjob", JOB, "-o", path])?;
        let mut parts = text.split('|').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        let (phase, attempt, zone) = (next(), next(), next());
        Ok(Self {
            phase,
            attempt: attempt.parse().unwrap_or(0),
            zone: zone.replace(' ', "+"),
        })
    }

    fn line(&self) -> String {
        let zone = if self.zone.is_empty() {
            String::new()
        } else {
            format!(", zone {}", self.zone)
        };
        let phase = if self.phase.is_empty() {
            "Queued"
        } else {
            &self.phase
        };
        format!("{phase} (attempt {}{zone})", self.attempt)
    }
}

/// `kubectl logs --follow` of rank 0, line by line into a channel.
struct Log {
    attempt: u32,
    child: Child,
    reader: Option<thread::JoinHandle<()>>,
}

impl Log {
    fn follow(cluster: &Cluster, attempt: u32, lines: Sender<String>) -> Result<Self> {
        let pod = format!("{JOB}-{attempt}-0");
        let mut child = cluster
            .kubectl(["logs", "--follow", "--container", "trainer", &pod])?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("failed to start kubectl logs")?;
        let output = child.stdout.take().context("kubectl logs has no output")?;
        let reader = thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            attempt,
            child,
            reader: Some(reader),
        })
    }

    /// Waits for the log's end: the container is gone, so it comes by itself.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has nothing more to say.
            drop(reader.join());
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        drop(self.child.kill());
        drop(self.child.wait());
        self.finish();
    }
}

fn node_of(cluster: &Cluster, attempt: u32, rank: u32) -> Result<String> {
    let pod = format!("{JOB}-{attempt}-{rank}");
    kubectl(
        cluster,
        &["get", "pod", &pod, "-o", "jsonpath={.spec.nodeName}"],
    )
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let mut command: Command = cluster.kubectl(arguments)?;
    command.current_dir(::cluster::paths::repository());
    Ok(::cluster::command::run(&mut command)?)
}

fn goodbye(cluster: &Cluster, ended: &Ended, elapsed: Duration) -> String {
    format!(
        "Accuracy {:.3} on images the model has not seen, after {} attempt(s) and {:.0} s in all.\n\n\
         The cluster is still up. Try:\n  \
         export KUBECONFIG={}\n  \
         export PATH={}:$PATH\n  \
         kubectl get trainingjobs\n  \
         kubectl describe trainingjob {JOB}\n  \
         kubectl get storagechains\n  \
         kubectl logs {JOB}-{}-0 -c trainer\n  \
         kubectl explain trainingjob.spec\n  \
         cp examples/digits.yaml mine.yaml, rename the job in it and kubectl apply -f mine.yaml\n  \
         cargo xtask demo --kill-node\n  \
         cargo xtask demo --down",
        ended.accuracy,
        ended.attempt,
        elapsed.as_secs_f64(),
        cluster.kubeconfig().display(),
        cluster.programs().display(),
        ended.attempt,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_traceback_only_the_error_is_shown() {
        let printed = [
            "[rank0]: step=20 loss=2.1808",
            "[rank1]: Traceback (most recent call last):",
            "[rank1]:   File \"digits.py\", line 166, in <module>",
            "[rank1]: RuntimeError: HFReduceError: node 1 was lost",
            "[rank1]: At:",
            "[rank1]:   group.py(293): finish",
            "[rank1]: ",
        ];
        let shown = printed.iter().filter(|line| !is_traceback(line));
        let shown: Vec<_> = shown.map(|line| without_rank(line)).collect();
        let expected = [
            "step=20 loss=2.1808",
            "RuntimeError: HFReduceError: node 1 was lost",
        ];
        assert_eq!(shown, expected);
    }
}
