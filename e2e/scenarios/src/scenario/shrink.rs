//! Jobs that go on without the nodes they lose.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::training_job::{MembershipStatus, Phase, RankRange, TrainingJobStatus};
use serde_json::json;

use crate::context::{Context, victim};
use crate::jobs::{ENDS_WELL, RUNS_UNTIL_ASKED, TestJob};
use crate::scenario::{NODE_LOSS, START};

/// Imports of three ranks on a busy machine, and their first step.
const FIRST_STEP: Duration = Duration::from_secs(200);
/// The last step, and the end of the pods.
const ENDS: Duration = Duration::from_secs(100);

/// A model under DistributedDataParallel whose ranks all print each step. Nothing of it knows that nodes may be lost. It
/// trains until one of its ranks finds the file [`FINISH`]: they learn that from each other and end after the same step.
const PRINTS_ITS_STEPS: &str = r#"
import itertools, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("hfreduce")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in itertools.count():
    finish = torch.tensor([float(os.path.exists(sys.argv[1]))])
    dist.all_reduce(finish)
    if finish.item():
        break
    loss = model(torch.randn(8, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step={step} loss={loss.item():.6f}", flush=True)
    time.sleep(0.2)
weights = model.module.weight.detach().double().sum().item()
print(f"weights={weights!r}", flush=True)
dist.destroy_process_group()
"#;

/// In a rank's container, the file that ends the training.
const FINISH: &str = "/dev/shm/finish";

fn job(name: &str) -> TestJob {
    TestJob::digits(name, 3, 1, &[])
        .program(&["python3", "-c", PRINTS_ITS_STEPS], &[FINISH])
        .with(
            "failurePolicy",
            json!({"onPeerLoss": "Shrink", "peerLossSeconds": 5}),
        )
}

/// The last step in a rank's log.
fn last_step(log: &str) -> Option<u32> {
    let steps = log.lines().filter_map(|line| {
        let step = line.strip_prefix("step=")?.split(' ').next()?;
        step.parse().ok()
    });
    steps.max()
}

async fn steps(context: &Context, name: &str, rank: u32) -> Result<Option<u32>> {
    Ok(last_step(&context.log(name, 1, rank).await?))
}

/// Waits until a rank has reported this step.
async fn reaches_step(context: &Context, name: &str, rank: u32, step: u32) -> Result<()> {
    let what = format!("rank {rank} of {name} takes step {step}");
    context
        .eventually(&what, FIRST_STEP, || async {
            let last = steps(context, name, rank).await?;
            Ok(last.filter(|last| *last >= step).map(drop))
        })
        .await
}

/// Waits until the job says that it goes on without this node.
async fn goes_on_without(context: &Context, name: &str, node: &str) -> Result<TrainingJobStatus> {
    let said = format!("Goes on with 2 of 3 nodes: lost {node}");
    context
        .eventually(&said, NODE_LOSS, || async {
            let running = context.condition(name, "Running", "True").await?;
            let status = context.job(name).await?.status.unwrap_or_default();
            Ok((running.as_ref() == Some(&said)).then_some(status))
        })
        .await
}

/// Ended now, the job is complete in its first attempt; both that were left took the same steps, many after the loss, and
/// have the same model.
async fn completes(context: &Context, name: &str, (rank, node): (u32, &str)) -> Result<()> {
    let left: Vec<u32> = (0..3).filter(|left| *left != rank).collect();
    let before = steps(context, name, left[0]).await?.unwrap_or_default();
    reaches_step(context, name, left[0], before + 5).await?;
    let pod = crds::names::pod_name(name, 1, left[0]);
    context.exec(&pod, &format!("touch {FINISH}")).await?;
    let ended = context.reaches(name, Phase::Succeeded, ENDS).await?;
    let status = ended.status.unwrap_or_default();
    ensure!(
        (status.attempt, status.restarts, status.replans) == (1, 0, 0),
        "ended in attempt {} after {} restarts and {} replans",
        status.attempt,
        status.restarts,
        status.replans
    );
    let members = status.membership.context("status has no membership")?;
    let MembershipStatus {
        participants,
        lost_ranks,
        lost_nodes,
        ..
    } = members;
    ensure!(
        participants == 2
            && lost_ranks
                == [RankRange {
                    first: rank,
                    last: rank
                }]
            && lost_nodes == [node],
        "{participants} took part, lost {lost_ranks:?}: {lost_nodes:?}"
    );
    let mut ends = Vec::new();
    for left in left {
        let log = context.log(name, 1, left).await?;
        let own = log.lines().find_map(|line| line.strip_prefix("weights="));
        let weights = own.context("no weights in the log")?.to_owned();
        ends.push((last_step(&log).context("no step in the log")?, weights));
    }
    ensure!(ends[0] == ends[1], "steps and models differ: {ends:?}");
    ensure!(ends[0].0 >= before + 5, "ended at {ends:?} after {before}");
    let events = context.events(name).await?;
    let times = |reason: &str| events.iter().filter(|one| *one == reason).count();
    ensure!(
        (times("NodesLost"), times("Replanning"), times("Restarting")) == (1, 0, 0),
        "the Events are {events:?}"
    );
    Ok(())
}

/// Rank 0's, if that is not the leader's: where `torch.distributed` has its store. GANG-1 as well: the node is given to
/// another job only when it is back and its pod has gone.
pub async fn node_dies_and_the_others_go_on_without_a_restart(context: Context) -> Result<()> {
    context.submit(&job("shrinks")).await?;
    context.reaches("shrinks", Phase::Running, START).await?;
    reaches_step(&context, "shrinks", 0, 5).await?;
    let (rank, lost) = victim(&context, "shrinks", [0, 2]).await?;
    eprintln!("    takes rank {rank}'s node");
    context.cluster.node(&lost)?.kill()?;
    let went_on = goes_on_without(&context, "shrinks", &lost).await;
    context.cluster.node(&lost)?.restart()?;
    let status = went_on?;
    ensure!(
        (status.phase, status.attempt, status.ready_nodes) == (Phase::Running, 1, 2),
        "{:?} in attempt {} with {} nodes",
        status.phase,
        status.attempt,
        status.ready_nodes
    );
    context.node_ready(&lost, true, NODE_LOSS).await?;
    // Of six nodes two train and three are taken here, so the next job needs the one that came back.
    for (name, nodes) in [("spares", 2), ("spare", 1)] {
        context
            .start(&TestJob::shell(name, nodes, RUNS_UNTIL_ASKED))
            .await?;
    }
    context
        .submit(&TestJob::shell("next", 1, ENDS_WELL))
        .await?;
    context.reaches("next", Phase::Succeeded, NODE_LOSS).await?;
    context.reaches("shrinks", Phase::Running, START).await?;
    completes(&context, "shrinks", (rank, &lost)).await
}

/// REC-9 on real nodes: what is cut off runs on, unseen, and takes no step.
pub async fn of_a_partition_one_side_goes_on_and_the_other_takes_no_step(
    context: Context,
) -> Result<()> {
    context.submit(&job("torn")).await?;
    context.reaches("torn", Phase::Running, START).await?;
    reaches_step(&context, "torn", 0, 5).await?;
    let (rank, cut) = victim(&context, "torn", [2, 1]).await?;
    let node = context.cluster.node(&cut)?;
    node.partition()?;
    let torn = async {
        let before = steps(&context, "torn", 0).await?.unwrap_or_default();
        goes_on_without(&context, "torn", &cut).await?;
        // What a node runs can be looked at without its network.
        let script = format!("cat /var/log/pods/*_torn-1-{rank}_*/trainer/*.log");
        let look = || {
            let log = node.run(&["/bin/sh", "-c", &script])?;
            // The container runtime puts time and stream before each line.
            let lines = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
            let last = last_step(&lines.collect::<Vec<_>>().join("\n"));
            last.context("the rank that is cut off has reported no step")
        };
        let there = look()?;
        reaches_step(&context, "torn", 0, there + 20).await?;
        ensure!(
            there <= before + 2,
            "cut off at step {before} of the others, it took step {there}"
        );
        let later = look()?;
        ensure!(
            later == there,
            "cut off, it went on from step {there} to {later}"
        );
        eprintln!("    cut off after step {there}, the others went on");
        Ok(())
    };
    let torn = torn.await;
    node.heal()?;
    torn?;
    context.node_ready(&cut, true, NODE_LOSS).await?;
    context
        .eventually(
            "what is left of the lost rank is ended",
            NODE_LOSS,
            || async {
                let pods = context.pods("torn").await?;
                let name = crds::names::pod_name("torn", 1, rank);
                let left = pods
                    .iter()
                    .find(|pod| pod.metadata.name.as_ref() == Some(&name));
                Ok(left.is_none_or(crate::context::has_ended).then_some(()))
            },
        )
        .await?;
    completes(&context, "torn", (rank, &cut)).await
}
