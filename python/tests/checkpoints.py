"""What the tests of checkpoints share: a job's checkpoint in a folder of its own, and disks that fail."""

import logging
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from fireflyer import Checkpoint
from fireflyer.checkpoint import stop
from fireflyer.checkpoint.disk import Disk
from fireflyer.environment import Environment

#: What is no state among the arguments of the tests' `checkpoint`.
OPTIONS = ("sharded", "interval_seconds", "keep_last", "disk", "directory")


class Box:
    """The smallest thing with a state."""

    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, loaded):
        self.value = loaded["value"]


class Failing(Disk):
    """A disk that cannot read what is called so."""

    def __init__(self, what, error):
        self.what, self.error, self.fails = what, error, True

    def reading(self, path):
        if self.fails and str(path).endswith(self.what):
            raise self.error


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(stop.forget)
        self.root = Path(directory.name, "digits")
        self.now = 0.0
        logging.getLogger("fireflyer").setLevel(logging.ERROR)

    def checkpoint(self, attempt=1, resume=None, run_dir=None, last="", **given):
        settings = Environment.read(
            {"FIREFLYER_RUN_DIR": "/nonexistent", "FIREFLYER_LAST_CHECKPOINT": last}
        )
        settings = replace(
            settings, attempt=attempt, resume=resume, checkpoint_dir=self.root, run_dir=run_dir
        )
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        return Checkpoint(given, environment=settings, clock=lambda: self.now, **options)

    def saved(self):
        return sorted(
            f"{path.parent.parent.name}/{path.parent.name}"
            for path in self.root.glob("*/*/manifest.json")
        )

    def damage(self, name):
        shard = next((self.root / name).glob("shard-*"))
        content = bytearray(shard.read_bytes())
        content[3] ^= 1
        shard.write_bytes(content)
