"""Several ranks save and resume together, over gloo."""

import errno
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import unittest
from dataclasses import replace
from pathlib import Path

import gang
import torch
import torch.distributed as dist
from fireflyer import Checkpoint, CheckpointError, should_stop
from fireflyer.checkpoint import agreement, stop
from fireflyer.checkpoint.disk import Disk
from fireflyer.environment import Environment

TRIALS = 200
#: What is no state among the arguments of `checkpoint`.
OPTIONS = ("sharded", "interval_seconds", "clock", "disk")


class Own:
    """A state that differs by rank."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": torch.tensor([self.value])}

    def load_state_dict(self, loaded):
        self.value = int(loaded["value"])


def checkpoint(root, attempt=1, **given):
    settings = replace(Environment.read(), attempt=attempt, checkpoint_dir=Path(root))
    if "unmounted" in given:
        settings = replace(settings, checkpoint_dir=given.pop("unmounted"), last_checkpoint=(1, 2))
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    return Checkpoint(given, environment=settings, **options)


def stop_at_random(root, seed):
    """In each trial one or more ranks get SIGTERM at a random moment; returns the steps of the end."""
    rank = dist.get_rank()
    ends = []
    for trial in range(TRIALS):
        shared = random.Random(f"{seed}/{trial}")
        asked = {shared.randrange(dist.get_world_size()) for _ in range(shared.randrange(1, 3))}
        own = random.Random(f"{seed}/{trial}/{rank}")
        stop.forget()
        writer = checkpoint(f"{root}/{trial}", own=Own(rank), sharded=["own"], interval_seconds=1e9)
        dist.barrier()
        # Drawn by step: how many steps fit into a time depends on the machine.
        asked_at = own.randrange(12) if rank in asked else None
        for step in range(100_000):
            if step == asked_at:
                moment = own.uniform(0, 0.002)
                threading.Timer(moment, os.kill, (os.getpid(), signal.SIGTERM)).start()
            if own.random() < 0.2:
                time.sleep(own.uniform(0, 0.002))
            if writer.step(step):
                break
        saved = sorted(
            path.parent.name for path in Path(root, str(trial)).glob("*/*/manifest.json")
        )
        ends.append((step, saved))
    return ends


def stop_alone(_):
    """Without the collective: each rank looks at its own flag only."""
    stop.install()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    seen = []
    for _ in range(3):
        seen.append((stop.requested(), should_stop()))
    return seen


def stop_at_every_line():
    """SIGTERM comes before each line that a request to stop runs through; returns how many there are."""
    stop.install()
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if event == "line":
            lines += 1
            os.kill(os.getpid(), signal.SIGTERM)
        return trace

    sys.settrace(trace)
    stop.request()
    sys.settrace(None)
    return lines, stop.requested()


def what_sigterm_does():
    """In a process that has imported the package and asked nothing of it."""
    sys.exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)


def without_rights(root):
    """The folder belongs to somebody else; returns what is warned of at the start, and the error of a save."""
    gang.drop_rights()
    writer = checkpoint(root, own=Own(1), sharded=["own"])
    with unittest.TestCase().assertLogs("fireflyer") as logs:
        logging.getLogger("fireflyer").warning("so that there is one")
        first = writer.resume()
    try:
        writer.save(1)
    except CheckpointError as error:
        return first, logs.output[1:], str(error)


def without_sight(root):
    """The folder cannot be listed."""
    gang.drop_rights()
    try:
        return checkpoint(root, own=Own(1)).resume()
    except CheckpointError as error:
        return str(error)


def periodic(root):
    """Ranks whose clocks disagree; returns the steps at which each saved."""
    rank = dist.get_rank()
    now = [1000.0 * rank]

    def clock():
        now[0] += random.Random(rank).uniform(0.5, 1.5)
        return now[0]

    writer = checkpoint(root, own=Own(rank), sharded=["own"], interval_seconds=20, clock=clock)
    saved = []
    real = writer._save
    writer._save = lambda step, proof: saved.append(step) or real(step, proof)
    for step in range(60):
        writer.step(step)
    return saved


def save_and_resume(root, hurt):
    """Two checkpoints of a sharded state; `hurt` damages the newer one. Returns what each rank resumed."""
    rank = dist.get_rank()
    writer = checkpoint(root, own=Own(10 + rank), sharded=["own"], model=Own(5))
    writer.save(1)
    writer._own["own"].value = 20 + rank
    writer.save(2)
    dist.barrier()
    if rank == 0 and hurt:
        path = next(Path(root, "attempt-1/step-2").glob("shard-00002.*"))
        path.write_bytes(path.read_bytes()[:-1])
    dist.barrier()
    own, model = Own(0), Own(0)
    following = checkpoint(root, attempt=2, own=own, sharded=["own"], model=model).resume()
    return following, own.value, model.value


def fail_on_one_rank(root):
    """Rank 1 cannot store its state; returns the error and what can be resumed after it."""
    rank = dist.get_rank()
    writer = checkpoint(root, own=Own(rank), sharded=["own"])
    writer.save(1)
    if rank == 1:
        writer._own["own"].state_dict = lambda: {"value": object()}
    try:
        writer.save(2)
        error = None
    except CheckpointError as raised:
        error = str(raised)
    return error, checkpoint(root, attempt=2, own=Own(0), sharded=["own"]).resume()


class Broken(Disk):
    """A disk that fails to read, or to change, whatever has this in its path."""

    def __init__(self, error, reads=None, changes=None):
        self.error, self.reads, self.changes = error, reads, changes

    def reading(self, path):
        if self.reads is not None and self.reads in str(path):
            raise self.error

    def before(self, effect, path):
        if self.changes is not None and self.changes in str(path):
            raise self.error


def fail_to_use_the_disk_on_one_rank(root):
    """In turn each rank alone fails in one way to read or to save; returns what each attempt to do so came to."""
    rank = dist.get_rank()
    eio, stale = OSError(errno.EIO, "I/O error"), OSError(errno.ESTALE, "Stale file handle")
    checkpoint(root, own=Own(rank), sharded=["own"]).save(2)
    ways = {
        "its manifest": {"disk": Broken(eio, reads="manifest.json")},
        "a stale handle": {"disk": Broken(stale, reads="manifest.json")},
        "its shards": {"disk": Broken(eio, reads="shard-")},
        "no memory": {"disk": Broken(MemoryError(), reads="shard-")},
        "nothing mounted": {"unmounted": Path(root, "elsewhere")},
    }
    outcomes = []
    for one in range(dist.get_world_size()):
        for way, given in ways.items():
            given = dict(given) if rank == one else {}
            reader = checkpoint(root, attempt=2, own=Own(0), sharded=["own"], **given)
            try:
                outcomes.append((one, way, "resumed", str(reader.resume())))
            except CheckpointError as error:
                outcomes.append((one, way, type(error).__name__, str(error)))
        disk = Broken(eio, changes="shard-") if rank == one else Disk()
        writer = checkpoint(root, attempt=2, own=Own(rank), sharded=["own"], disk=disk)
        try:
            writer.save(9)
        except CheckpointError as error:
            outcomes.append((one, "saving", type(error).__name__, str(error)))
    following = checkpoint(root, attempt=2, own=Own(0), sharded=["own"]).resume()
    return outcomes, following


def other_world(root, save):
    """The shared state goes on with another number of ranks; a sharded one says why it cannot."""
    model = Own(7 if save else 0)
    writer = checkpoint(root, attempt=1 if save else 2, model=model)
    if save:
        writer.save(3)
        return None
    return writer.resume(), model.value


def exchange():
    rank = dist.get_rank()
    mine = {"rank": rank, "text": "x" * (rank * 1000)}
    return agreement.largest([rank, -rank]), agreement.to_first(mine), agreement.from_first(mine)


def gather_beside_a_long_one():
    """Rank 0's value is long, the others' are short; returns how many bytes each rank brought."""
    brought = []
    real = dist.reduce

    def reduce(tensor, *others, **named):
        brought.append(tensor.numel())
        return real(tensor, *others, **named)

    mine = "x" * 1_000_000 if dist.get_rank() == 0 else dist.get_rank()
    dist.reduce = reduce
    return agreement.to_first(mine), brought


def gather_from_those_who_are_left():
    """Rank 1 was lost before the exchange, and rank 2 in the midst of it: they add nothing."""
    rank = dist.get_rank()
    if rank in (1, 2):
        agreement._encode = lambda _: torch.zeros(0 if rank == 1 else 5, dtype=torch.uint8)
    agreement._SUM_BYTES = 7
    return agreement.to_first(f"value of rank {rank}")


class GangTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name

    def job(self, ranks):
        """Variables of ranks that run in a job: SIGTERM is taken for a request there."""
        run = Path(self.root, "run")
        run.mkdir()
        return [{"FIREFLYER_RUN_DIR": str(run)}] * ranks

    def test_all_ranks_save_the_same_step_whenever_any_is_asked_to_stop(self):
        # SAVE-1: an interruption saves one step, the same on all ranks, wherever it strikes.
        seed = os.environ.get("SEED", str(time.time_ns()))
        print(f"SEED={seed}", flush=True)
        ends = gang.successes(gang.run(stop_at_random, 4, self.root, seed, variables=self.job(4)))
        self.assertEqual(len(ends[0]), TRIALS)
        for trial, by_rank in enumerate(zip(*ends)):
            steps = {step for step, _ in by_rank}
            self.assertEqual(len(steps), 1, f"trial {trial}: ranks ended at {steps}")
            self.assertEqual(by_rank[0][1], [f"step-{steps.pop()}"], f"trial {trial}")
        # The moments were random: not always the same step.
        self.assertGreater(len({step for step, _ in ends[0]}), 5)

    def test_one_rank_asked_stops_all_and_the_others_were_not_asked(self):
        first, second = gang.successes(gang.run(stop_alone, 2, None, variables=self.job(2)))
        self.assertEqual(first, [(False, True)] * 3)
        self.assertEqual(second, [(True, True)] * 3)

    def test_a_signal_in_the_middle_of_a_request_does_not_block(self):
        lines, asked = gang.successes(
            gang.run(stop_at_every_line, 1, backend=None, variables=self.job(1))
        )[0]
        self.assertGreater(lines, 0)
        self.assertTrue(asked)

    def test_importing_the_package_does_not_keep_a_worker_alive(self):
        worker = gang.context.Process(target=what_sigterm_does)
        worker.start()
        worker.join(60)
        self.assertEqual(worker.exitcode, 0)

    def test_a_folder_without_the_right_to_write_fails_at_once_and_every_save(self):
        root = Path(self.root, "digits")
        root.mkdir()
        os.chmod(self.root, 0o755)
        os.chmod(root, 0o555)
        first, second = gang.successes(gang.run(without_rights, 2, root))
        self.assertEqual((first[0], second[0]), (0, 0), "it starts anew")
        self.assertRegex(
            "".join(first[1]), "cannot be saved: no permission to write to .*digits.*fsGroup"
        )
        self.assertEqual(second[1], [], "once is enough")
        self.assertEqual(first[2], second[2])
        self.assertRegex(first[2], r"step 1: rank 0: .*denied.*digits.*user \d+.*fsGroup")

    def test_a_folder_that_cannot_be_listed_is_an_error_and_not_a_fresh_start(self):
        gang.successes(gang.run(save_and_resume, 3, self.root, False))
        os.chmod(self.root, 0o311)
        self.addCleanup(os.chmod, self.root, 0o755)
        for error in gang.successes(gang.run(without_sight, 2, self.root)):
            self.assertRegex(str(error), "failed to look for checkpoints: .*denied.*fsGroup")

    def test_clocks_that_disagree_save_the_same_steps(self):
        saved = gang.successes(gang.run(periodic, 3, self.root))
        self.assertEqual(saved[0], saved[1])
        self.assertEqual(saved[0], saved[2])
        self.assertGreater(len(saved[0]), 1)

    def test_each_rank_gets_its_own_shard_back(self):
        results = gang.successes(gang.run(save_and_resume, 3, self.root, False))
        self.assertEqual(results, [(3, 20, 5), (3, 21, 5), (3, 22, 5)])

    def test_a_shard_that_one_rank_cannot_read_makes_all_take_the_one_before(self):
        results = gang.successes(gang.run(save_and_resume, 3, self.root, True))
        self.assertEqual(results, [(2, 10, 5), (2, 11, 5), (2, 12, 5)])

    def test_a_rank_that_cannot_save_fails_the_save_on_all_with_its_name(self):
        for error, following in gang.successes(gang.run(fail_on_one_rank, 2, self.root)):
            self.assertRegex(
                error, r"failed to save step 2: rank 1: .*own\.value: a object cannot be stored"
            )
            self.assertEqual(following, 2)

    def test_a_disk_that_fails_on_one_rank_alone_ends_all_alike_and_none_hangs(self):
        results = gang.successes(
            gang.run(fail_to_use_the_disk_on_one_rank, 3, self.root, variables=self.job(3))
        )
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])
        outcomes, following = results[0]
        self.assertEqual(len(outcomes), 3 * 6)
        for one, way, kind, text in outcomes:
            with self.subTest(way, rank=one):
                if way == "saving":
                    self.assertEqual(kind, "CheckpointError")
                    self.assertRegex(text, f"failed to save step 9: rank {one}: .*I/O error")
                    continue
                self.assertEqual(kind, "CheckpointUnavailable")
                looks = one == 0 and way not in ("its shards", "no memory")
                self.assertIn("failed to look for checkpoints" if looks else f"rank {one}: ", text)
        self.assertEqual(following, 3)

    def test_the_shared_state_goes_on_with_another_number_of_ranks(self):
        gang.successes(gang.run(other_world, 3, self.root, True))
        self.assertEqual(gang.successes(gang.run(other_world, 2, self.root, False)), [(4, 7)] * 2)

    def test_values_of_any_length_are_exchanged(self):
        results = gang.successes(gang.run(exchange, 3))
        sent = [{"rank": rank, "text": "x" * (rank * 1000)} for rank in range(3)]
        self.assertEqual(results[0], ([2, 0], sent, sent[0]))
        self.assertEqual(results[2], ([2, 0], None, sent[0]))

    def test_gathering_costs_what_the_others_bring_and_not_rank_0s_own(self):
        results = gang.successes(gang.run(gather_beside_a_long_one, 3))
        self.assertEqual(results[0][0], ["x" * 1_000_000, 1, 2])
        for _, brought in results:
            self.assertEqual(brought, [2])
        self.assertIsNone(results[2][0])

    def test_the_values_of_lost_ranks_are_left_out(self):
        results = gang.successes(gang.run(gather_from_those_who_are_left, 4))
        self.assertEqual(results, [["value of rank 0", "value of rank 3"], None, None, None])

    def test_manifest_lists_one_shard_for_each_rank(self):
        gang.successes(gang.run(save_and_resume, 3, self.root, False))
        content = json.loads(Path(self.root, "attempt-1/step-2/manifest.json").read_text())
        self.assertEqual(len(content["shards"]), 3)
        self.assertEqual(content["world_size"], 3)
