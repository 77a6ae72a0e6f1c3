"""A save that ends at any of its effects on the disk leaves something to resume.

Two ends are tried at every effect: the process is killed (what it wrote stays), and the machine loses
power (what was not synced is lost or torn).
"""

import logging
import os
import shutil
import signal
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

import torch
from fireflyer import Checkpoint
from fireflyer.checkpoint.disk import Disk
from fireflyer.environment import Environment
from gang import context


class Counting:
    """A state that knows the step it belongs to: a mix of two steps is seen."""

    def __init__(self, step=0):
        self.step = step

    def state_dict(self):
        return {
            "step": self.step,
            "tensors": [torch.full((100,), self.step), torch.full((3,), self.step)],
        }

    def load_state_dict(self, loaded):
        self.step = loaded["step"]
        for tensor in loaded["tensors"]:
            assert set(tensor.tolist()) == {self.step}, f"step {self.step} with tensors of {tensor}"


class KillingDisk(Disk):
    """Kills the process before effect number `at`."""

    def __init__(self, at):
        self.left = at

    def before(self, effect, path):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


class PowerLoss(BaseException):
    """The machine is off."""


class ForgetfulDisk(Disk):
    """A disk that keeps only what was synced. Loses power before effect number `at`."""

    def __init__(self, at):
        self.left = at
        self.unsynced = set()
        self.entries = []  # (directory, undo) of renames and removals whose directory is not synced

    def before(self, effect, path):
        if self.left == 0:
            self.lose_power()
            raise PowerLoss
        self.left -= 1
        if effect == "create":
            self.unsynced.add(path)
        elif effect == "sync" and path.is_dir():
            self.entries = [one for one in self.entries if one[0] != path]
        elif effect == "sync":
            self.unsynced.discard(path)
        elif effect in ("rename", "remove") and path.is_file():
            old = path.read_bytes()
            self.entries.append((path.parent, lambda: path.write_bytes(old)))
        elif effect == "rename":
            self.entries.append((path.parent, lambda: path.unlink(missing_ok=True)))

    def lose_power(self):
        for path in self.unsynced:
            if path.exists():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        for directory, undo in reversed(self.entries):
            if directory.is_dir():
                undo()


def checkpoint(root, attempt, state, disk=None):
    settings = Environment.read({"FIREFLYER_RUN_DIR": "/nonexistent"})
    settings = replace(settings, attempt=attempt, checkpoint_dir=root, keep_last=1)
    return Checkpoint({"counting": state}, environment=settings, disk=disk)


def save(root, disk):
    """Resumes step 1, saves steps 2 and, again, 2 and 3 into the same directory: all kinds of effects."""
    writer = checkpoint(root, 1, Counting(), disk)
    writer.resume()
    writer._shared["counting"].step = 2
    writer.save(2)
    again = checkpoint(root, 1, Counting(2), disk)
    again.save(2)
    again._shared["counting"].step = 3
    again.save(3)


class CrashTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        logging.getLogger("fireflyer").setLevel(logging.ERROR)
        checkpoint(self.directory / "before", 1, Counting(1)).save(1)

    def start(self):
        root = self.directory / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.directory / "before", root)
        return root

    def check(self, root, at, least):
        """What can be resumed is whole, and not older than what was once seen to be durable."""
        state = Counting()
        following = checkpoint(root, 2, state).resume()
        self.assertEqual(following, state.step + 1, f"crash at effect {at}")
        self.assertGreaterEqual(state.step, least, f"crash at effect {at}")
        # And the next attempt saves as if nothing had been.
        state.step = 9
        checkpoint(root, 2, state).save(9)
        state = Counting()
        self.assertEqual(checkpoint(root, 3, state).resume(), 10, f"after a crash at effect {at}")
        return following - 1

    def test_a_process_killed_at_any_effect_leaves_a_whole_checkpoint(self):
        # SAVE-1: what was once durable is never lost.
        least, at, codes = 1, 0, set()
        while 0 not in codes:
            root = self.start()
            process = context.Process(target=save, args=(root, KillingDisk(at)))
            process.start()
            process.join(30)
            codes.add(process.exitcode)
            least = self.check(root, at, least)
            at += 1
        self.assertEqual(codes, {-signal.SIGKILL, 0})
        self.assertEqual(least, 3)
        self.assertGreater(at, 40, "the effects were counted")

    def test_a_machine_that_loses_power_at_any_effect_keeps_a_whole_checkpoint(self):
        least, at = 1, 0
        while True:
            root = self.start()
            try:
                save(root, ForgetfulDisk(at))
                break
            except PowerLoss:
                least = self.check(root, at, least)
            at += 1
        self.assertEqual(self.check(root, at, least), 3)
        self.assertGreater(at, 40)

    def test_the_test_sees_a_disk_that_renames_before_it_syncs(self):
        class Careless(ForgetfulDisk):
            def write(self, path, chunks):
                new = path.with_name(path.name + ".new")
                self.before("create", new)
                new.write_bytes(b"".join(bytes(chunk) for chunk in chunks))
                self.before("rename", path)
                os.replace(new, path)
                self.unsynced.discard(new)
                self.unsynced.add(path)

        with self.assertRaises(AssertionError):
            for at in range(100):
                root = self.start()
                try:
                    save(root, Careless(at))
                    return
                except PowerLoss:
                    self.check(root, at, 1)
