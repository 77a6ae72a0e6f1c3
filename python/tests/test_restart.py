"""A sidecar is killed under a training script and started again, as the kubelet does: the script notices nothing but time."""

import gzip
import json
import subprocess
import threading
import time
import unittest
from pathlib import Path

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer.sidecars import free_port
from sidecars import PROGRAM, Sidecars, needed
from torch.nn.parallel import DistributedDataParallel

#: What is left when all who had a result have forgotten it.
LOST = "was lost with those who had it"
#: Serves the rendezvous of one attempt without a cluster.
OPERATOR = Path(PROGRAM).parent / "operator"
#: Kills of a sidecar while the script trains.
KILLS = 6
STEPS = 60
#: Calls in a row.
CALLS = 3000


class Restarted(Sidecars):
    """Sidecars that are led by the operator and may be killed; nobody is given up within a minute."""

    peer_loss_seconds = 60
    on_peer_loss = "Shrink"

    def __enter__(self):
        self._port = free_port(1 + self.nodes)
        self._operator = None
        return super().__enter__()

    def __exit__(self, *raised):
        if self._operator is not None:
            self._operator.kill()
            self._operator.wait()
        super().__exit__(*raised)

    def command(self, rank):
        if self._operator is None:
            self._lead()
        command = [PROGRAM, "serve", f"--run-dir={self.run_dir(rank)}", f"--rank={rank}"]
        command += [f"--rendezvous=127.0.0.1:{self._port}", "--address=127.0.0.1"]
        command += [f"--assignment={self.folder}/assignment", f"--key={self.folder}/key"]
        return [*command, f"--port={self._port + 1 + rank}", "--metrics-listen=127.0.0.1:0"]

    def _lead(self):
        assignment = {
            "version": 1,
            "job": {"namespace": "default", "name": "restarted", "uid": "1"},
            "attempt": 1,
            "algorithm": 1,
            "procsPerNode": self.procs,
            "nodes": [{"name": f"n{rank}", "zone": "a", "leaf": ""} for rank in range(self.nodes)],
            "crossing": False,
            "masterPort": 29500,
            "onPeerLoss": self.on_peer_loss,
            "peerLossSeconds": self.peer_loss_seconds,
        }
        packed = gzip.compress(json.dumps(assignment).encode())
        (self.folder / "assignment").write_bytes(packed)
        (self.folder / "key").write_bytes(bytes(range(32)))
        command = [OPERATOR, "rendezvous", "--standalone", f"--listen=127.0.0.1:{self._port}"]
        command += [f"--assignment={self.folder}/assignment", f"--key={self.folder}/key"]
        with open(self.folder / "operator.log", "wb") as log:
            self._operator = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def restart(self, node):
        """Kills a sidecar and starts another in its place."""
        self.processes[node].kill()
        self.processes[node].wait()
        self.start(node)


def train(folder):
    """Trains with DDP; the losses, and who took part."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ranks = set()
    losses = []
    for step in range(STEPS):
        torch.manual_seed(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        work = dist.all_reduce(torch.tensor([float(step)]), async_op=True)
        work.wait()
        ranks.add(work.participants())
        if dist.get_rank() == 0:
            Path(folder, "step").write_text(str(step))
        # Training takes its time, so that kills find it at work.
        time.sleep(0.02)
    return losses, sorted(ranks), fireflyer.members().epoch


def reduce_on(folder):
    """Reduces without pause; how often until an error, and the error."""
    for step in range(CALLS):
        try:
            dist.all_reduce(torch.ones(4096))
        except fireflyer.HFReduceError as error:
            return step, str(error)
        Path(folder, f"at-{dist.get_rank()}").write_text(str(step))
    return CALLS, None


def disturbed(sidecars, disturb, function):
    """What the ranks give, while `disturb` is at work until they are over or it is done."""
    over = threading.Event()
    disturber = threading.Thread(target=disturb, args=[over])
    disturber.start()
    try:
        return gang.successes(sidecars.run(function, sidecars.folder))
    finally:
        over.set()
        disturber.join()


@needed
@unittest.skipUnless(OPERATOR.exists(), "there is no operator beside the sidecar")
class RestartTest(unittest.TestCase):
    def test_training_under_killed_sidecars_learns_what_it_learns_without(self):
        with Restarted(2, 2) as sidecars:
            quiet = gang.successes(sidecars.run(train, sidecars.folder))
        with Restarted(2, 2) as sidecars:
            killed = []

            def kill(over):
                step, after = sidecars.folder / "step", 0
                while len(killed) < KILLS and not over.wait(0.3):
                    # Two without their memory are more than can be survived: the one before must be at work again, and
                    # what it takes part in. A step or two may end without.
                    at = int(step.read_text() or 0) if step.exists() else 0
                    if at > after:
                        sidecars.restart(len(killed) % 2)
                        killed.append(time.monotonic())
                        after = at + 3

            trained = disturbed(sidecars, kill, train)
        self.assertGreater(len(killed), 1, "it was over before it was disturbed")
        for (losses, ranks, _), (wanted, _, _) in zip(trained, quiet):
            self.assertEqual(losses, wanted)
            self.assertEqual(ranks, [4])
        self.assertEqual({epoch for _, _, epoch in quiet}, {1})
        self.assertTrue(all(epoch > 1 for _, _, epoch in trained), trained)

    def test_all_sidecars_killed_at_once_end_in_results_or_in_an_error_that_says_why(self):
        with Restarted(2, 2) as sidecars:

            def kill(over):
                at = [sidecars.folder / f"at-{rank}" for rank in range(4)]
                for _ in range(KILLS):
                    for path in at:
                        path.unlink(missing_ok=True)
                    while not all(path.exists() for path in at):
                        if over.wait(0.05):
                            return
                    for process in sidecars.processes:
                        process.kill()
                    for node, process in enumerate(sidecars.processes):
                        process.wait()
                        sidecars.start(node)

            ends = disturbed(sidecars, kill, reduce_on)
        if any(error for _, error in ends):
            for _, error in ends:
                self.assertIn(LOST, error or "")
        else:
            self.assertEqual({steps for steps, _ in ends}, {CALLS})
