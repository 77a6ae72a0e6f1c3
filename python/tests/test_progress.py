"""What is reported to the platform."""

import json
import tempfile
import unittest
from pathlib import Path

from fireflyer.progress import CheckpointRef, Progress


class ProgressTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.run_dir = Path(directory.name)
        self.now = 100.0
        self.progress = Progress(self.run_dir, clock=lambda: self.now)

    def written(self):
        return json.loads((self.run_dir / "progress.json").read_text())

    def test_steps_are_reported_at_most_once_a_second(self):
        seen = []
        for step in range(40):  # Ten a second.
            self.progress.step(step, 0.5)
            if not seen or seen[-1] != self.written():
                seen.append(self.written())
            self.now += 0.1
        self.assertIn(len(seen), (4, 5))
        self.assertEqual(seen[0], {"step": 0, "loss": 0.5})

    def test_a_loss_between_writes_is_not_even_read(self):
        class Counting(float):
            reads = 0

            def __float__(self):
                Counting.reads += 1
                return 1.0

        for step in range(5):
            self.progress.step(step, Counting())
        self.assertEqual(Counting.reads, 1)

    def test_a_diverged_run_is_still_seen_to_move(self):
        self.progress.step(7, float("nan"))
        self.assertEqual(self.written(), {"step": 7})

    def test_a_durable_checkpoint_is_reported_at_once_and_stays(self):
        self.progress.step(3, 0.5)
        self.progress.durable(CheckpointRef(1, 4, "ab"))
        wanted = {"attempt": 1, "step": 4, "digest": "ab"}
        self.assertEqual(self.written(), {"step": 4, "checkpoint": wanted})
        self.now += 2
        self.progress.step(9, None)
        self.assertEqual(self.written(), {"step": 9, "checkpoint": wanted})

    def test_the_acknowledgement_names_the_checkpoint_and_leaves_nothing_else_behind(self):
        self.progress.acknowledge(CheckpointRef(2, 4, "cd"))
        ack = json.loads((self.run_dir / "ack.json").read_text())
        self.assertEqual(ack, {"attempt": 2, "step": 4, "digest": "cd"})
        self.assertEqual([path.name for path in self.run_dir.iterdir()], ["ack.json"])

    def test_a_text_of_more_than_five_hundred_characters_is_cut(self):
        for length, told in ((500, "x" * 500), (501, "x" * 499 + "…")):
            self.progress.ending("NoUsableCheckpoint", "x" * length)
            cause = json.loads((self.run_dir / "cause.json").read_text(encoding="utf-8"))
            self.assertEqual(cause["message"], told)

    def test_telling_never_fails_the_training(self):
        with self.assertLogs("fireflyer.progress") as logs:
            lost = Progress(self.run_dir / "gone")
            lost.durable(CheckpointRef(1, 1, ""))
            lost.durable(CheckpointRef(1, 2, ""))
        self.assertEqual(len(logs.output), 1, "warned once")
        Progress(None).step(1, 1.0)
