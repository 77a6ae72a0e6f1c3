"""Checkpoints of those that are left after a loss: who can go on from them, and what they replace."""

import dataclasses
import os
import shutil
import unittest
from pathlib import Path

import gang
import torch
import torch.distributed as dist
from checkpoints import Box, Case
from fireflyer import Checkpoint, CheckpointError
from fireflyer.checkpoint import loading, manifest
from fireflyer.checkpoint.disk import Disk
from fireflyer.environment import Environment
from sidecars import needed
from test_restart import OPERATOR, Restarted

#: Written by the release that did not know who had taken part: step 1 by ranks 0 and 1, step 2 by ranks 1 and 2 of three.
OLD = Path(__file__).parent / "data/old-checkpoints"
RANKS = 3
#: Saved by all ranks; the five after it by those that are left.
LAST_OF_ALL = 1
LAST = LAST_OF_ALL + 5


def checkpoint(root, box, attempt, sharded=()):
    """A job's checkpoint of a rank."""
    os.environ["FIREFLYER_ATTEMPT"] = str(attempt)
    return Checkpoint(
        {"box": box, **{name: Box() for name in sharded}},
        sharded=sharded,
        directory=root,
        environment=Environment.read(),
    )


def save_through_a_loss(root, sharded):
    """All save, the first rank is lost, and the others save five times more."""
    box = Box(torch.zeros(3))
    saver = checkpoint(root, box, attempt=1, sharded=sharded)
    for step in range(LAST + 1):
        if step > LAST_OF_ALL and dist.get_rank() == 0:
            os._exit(1)
        # Carried over the loss, after which a save is whole.
        dist.all_reduce(torch.ones(1))
        box.value = torch.full((3,), float(step))
        saver.save(step)
    return saver.last.step


def resume(root, sharded=()):
    """Where a new attempt begins, with what, and whether it has the random numbers of the one before."""
    box = Box()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    step = checkpoint(root, box, attempt=2, sharded=sharded).resume()
    return step, box.value.tolist(), not torch.equal(torch.get_rng_state(), before)


class SurvivorsTest(Case):
    def old(self):
        shutil.copytree(OLD, self.root)
        return self.root

    def rewritten(self, change):
        """An old checkpoint whose manifest was changed by somebody who knows its sum."""
        shutil.rmtree(self.root, ignore_errors=True)
        directory = self.old() / "attempt-1/step-2"
        found, _ = manifest.read(directory)
        change(found)
        (directory / manifest.NAME).write_bytes(found.encode()[0])
        return directory

    def test_checkpoints_of_the_release_before_load_also_those_of_who_was_left(self):
        for size, restored in ((1, False), (2, False), (3, False)):
            with self.subTest(size):
                ends = gang.successes(gang.run(resume, size, self.old()))
                self.assertEqual(ends, [(3, [2.0] * 3, restored)] * size)
                shutil.rmtree(self.root)
        shutil.rmtree(self.old() / "attempt-1/step-2")
        ends = gang.successes(gang.run(resume, 2, self.root))
        self.assertEqual(ends, [(2, [1.0] * 3, True)] * 2)

    def test_who_took_part_is_read_from_the_manifest(self):
        self.old()
        for step, members in ((1, [0, 1]), (2, [1, 2])):
            found, _ = manifest.read(self.root / f"attempt-1/step-{step}")
            self.assertEqual((found.members, found.world_size), (members, 2))
        self.assertIn("2 ranks that were left (1, 2)", found.whose)

    def test_the_first_ranks_of_a_larger_gang_are_no_whole_gang(self):
        self.old()
        directory = self.root / "attempt-1/step-1"
        whole, _ = manifest.read(directory)
        self.assertTrue(whole.is_of_gang(2))
        left = dataclasses.replace(whole, gang_size=4)
        (directory / manifest.NAME).write_bytes(left.encode()[0])
        found, _ = manifest.read(directory)
        self.assertEqual(found.members, [0, 1])
        self.assertFalse(found.is_of_gang(2))
        self.assertEqual(found.whose, "2 ranks that were left (0, 1)")

    def test_a_manifest_whose_ranks_make_no_sense_is_damaged_and_says_why(self):
        def renamed(name):
            def rename(found):
                found.tensors[name] = found.tensors.pop("rank-2.random.torch")

            return rename

        cases = {
            "below 0": (renamed("rank--1.random.torch"), "is of no rank"),
            "no number": (renamed("rank-two.random.torch"), "is of no rank"),
            "written otherwise": (renamed("rank-02.random.torch"), "is of no rank"),
            "huge": (renamed(f"rank-{'9' * 5000}.random.torch"), "is of no rank"),
            "twice": (renamed("rank-1.random.again"), "states of 2 ranks, and tensors of 1"),
            "one too many": (
                lambda found: found.ranks.append(found.ranks[0]),
                "3 ranks of 2",
            ),
            "one too few": (lambda found: found.ranks.pop(), "1 ranks of 2"),
            "another one": (
                lambda found: found.tensors.update({"rank-7.x": found.tensors["box.value"]}),
                "states of 2 ranks, and tensors of 3",
            ),
        }
        for what, (change, said) in cases.items():
            with self.subTest(what), self.assertRaisesRegex(CheckpointError, said):
                manifest.read(self.rewritten(change))

    def test_states_that_belong_to_other_ranks_are_damage_and_not_loaded(self):
        def exchange(found):
            for rank in (1, 2):
                entry = found.tensors.pop(f"rank-{rank}.random.torch")
                found.tensors[f"rank-{rank - 1}.random.torch"] = entry

        directory = self.rewritten(exchange)
        digest = manifest.read(directory)[1]
        _, problem = loading.load(Disk(), self.root, "attempt-1/step-2", digest, 0, 2, [])
        self.assertTrue(problem["damaged"])
        self.assertIn("inconsistent", problem["text"])

    def test_a_cut_manifest_of_who_was_left_is_passed_over(self):
        path = self.old() / "attempt-1/step-2" / manifest.NAME
        path.write_bytes(path.read_bytes()[:-100])
        with self.assertLogs("fireflyer", "WARNING"):
            self.assertEqual(self.checkpoint(attempt=2, box=Box()).resume(), 2)

    def saved_through_a_loss(self, sharded=()):
        with Restarted(RANKS, 1) as sidecars:
            ends = sidecars.run(save_through_a_loss, self.root, sharded)
        self.assertIsInstance(ends[0], gang.Died)
        self.assertEqual(gang.successes(ends[1:]), [LAST] * (RANKS - 1))

    @needed
    @unittest.skipUnless(Path(OPERATOR).exists(), "there is no operator beside the sidecar")
    def test_what_those_who_are_left_saved_is_resumed_at_the_newest_by_gangs_of_any_size(self):
        self.saved_through_a_loss()
        newest = (LAST + 1, [float(LAST)] * 3, False)
        for size in (1, RANKS - 1, RANKS):
            with self.subTest(size):
                ends = gang.successes(gang.run(resume, size, self.root))
                self.assertEqual(ends, [newest] * size)

    @needed
    @unittest.skipUnless(Path(OPERATOR).exists(), "there is no operator beside the sidecar")
    def test_sharded_states_of_all_ranks_stay_when_those_who_are_left_save(self):
        self.saved_through_a_loss(("data",))
        ends = gang.successes(gang.run(resume, RANKS, self.root, ("data",)))
        self.assertEqual(ends, [(LAST_OF_ALL + 1, [float(LAST_OF_ALL)] * 3, True)] * RANKS)
        # Not those of the ranks 1 and 2 as if they were 0 and 1.
        for end in gang.run(resume, RANKS - 1, self.root, ("data",)):
            self.assertIsInstance(end, gang.Raised)
            self.assertEqual(end.kind, "NoUsableCheckpoint")
            self.assertIn("2 ranks that were left (1, 2), there are 2 now", end.text)
