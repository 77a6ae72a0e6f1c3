"""A training run and its checkpoints: the loop, its stops and its result."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import torch
from checkpoints import Box, Case
from fireflyer import Checkpoint, CheckpointError
from fireflyer.checkpoint import manifest, stop
from fireflyer.environment import Environment


class CheckpointTest(Case):
    def test_a_run_goes_on_with_the_same_bits(self):
        def train(model, optimizer, start, end):
            for _ in range(start, end):
                batch = torch.randn(8, 4) + random.random() + numpy.random.rand()
                optimizer.zero_grad()
                torch.nn.functional.dropout(model(batch), 0.3).square().sum().backward()
                optimizer.step()

        def build():
            torch.manual_seed(1)
            random.seed(1)
            numpy.random.seed(1)
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
            )
            return model, torch.optim.AdamW(model.parameters(), lr=0.01)

        model, optimizer = build()
        train(model, optimizer, 0, 10)
        whole = model.state_dict()

        model, optimizer = build()
        train(model, optimizer, 0, 5)
        self.checkpoint(model=model, optimizer=optimizer).save(4)
        model, optimizer = build()
        torch.randn(100)
        start = self.checkpoint(attempt=2, model=model, optimizer=optimizer).resume()
        self.assertEqual(start, 5)
        train(model, optimizer, start, 10)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, whole[name]), name)

    def test_numbers_that_make_no_sense_are_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, "keep_last must be at least 1"):
            self.checkpoint(box=Box(), keep_last=0)
        for wrong in (-1, math.nan):
            with self.assertRaisesRegex(ValueError, "interval_seconds must be at least 0"):
                self.checkpoint(box=Box(), interval_seconds=wrong)
        with self.assertRaisesRegex(ValueError, "step must be at least 0, not -1"):
            self.checkpoint(box=Box()).save(-1)
        with self.assertRaisesRegex(TypeError, "float"):
            self.checkpoint(box=Box()).step(0.5)

    def test_a_step_may_be_counted_in_other_numbers(self):
        saved = self.checkpoint(box=Box()).save(numpy.int64(3))
        self.assertEqual(saved.name, "attempt-1/step-3")
        self.assertEqual(self.checkpoint(attempt=2, box=Box()).resume(), 4)

    def test_it_saves_when_the_interval_is_over_and_not_before(self):
        writer = self.checkpoint(box=Box(1), interval_seconds=10)
        for step in range(25):
            self.assertFalse(writer.step(step))
            self.now += 1
        self.assertEqual(self.saved(), ["attempt-1/step-10", "attempt-1/step-20"])

    def test_a_request_to_stop_saves_acknowledges_and_ends_the_loop(self):
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        writer = self.checkpoint(box=Box(1), run_dir=run_dir)
        self.assertFalse(writer.step(0, 0.5))
        self.assertFalse((run_dir / "ack.json").exists())
        stop.request()
        self.assertTrue(writer.step(1, 0.4))
        _, digest = manifest.read(self.root / "attempt-1/step-1")
        wanted = {"attempt": 1, "step": 1, "digest": digest}
        self.assertEqual(json.loads((run_dir / "ack.json").read_text()), wanted)
        self.assertEqual(json.loads((run_dir / "progress.json").read_text())["checkpoint"], wanted)

    def test_a_stopped_run_saves_nothing_that_it_did_not_train(self):
        checkpoint = self.checkpoint(box=Box(1))
        for step in range(checkpoint.resume(), 1000):
            if step == 3:
                stop.request()
            if checkpoint.step(step):
                break
        with self.assertLogs("fireflyer", "WARNING") as logs:
            self.assertEqual(checkpoint.save(999).name, "attempt-1/step-3")
        self.assertIn("step 999 is not saved: the run had to stop after step 3", logs.output[0])
        self.assertEqual(self.saved(), ["attempt-1/step-3"])
        self.assertEqual(self.checkpoint(attempt=2, box=Box()).resume(), 4)

    def test_a_loop_that_is_left_early_saves_no_step_that_was_not_trained(self):
        checkpoint = self.checkpoint(box=Box(1))
        for step in checkpoint.steps(1000):
            if step == 3:
                break  # In the midst of it.
        self.assertEqual(self.saved(), [])
        with self.assertRaisesRegex(ValueError, "step 999: it was not trained, the last one was 2"):
            checkpoint.save(999)
        self.assertEqual(checkpoint.save(2).name, "attempt-1/step-2")

    def test_a_run_that_is_past_its_end_saves_nothing_under_an_earlier_step(self):
        checkpoint = self.checkpoint(box=Box(1), interval_seconds=0)
        for step in range(9):
            checkpoint.step(step)
        # The job goes on with a smaller total, in a loop of its own: it has nothing to train.
        checkpoint = self.checkpoint(attempt=2, box=Box())
        self.assertEqual(checkpoint.resume(), 9)
        with self.assertLogs("fireflyer", "WARNING") as logs:
            self.assertEqual(checkpoint.save(4).name, "attempt-1/step-8")
        self.assertIn("step 4 is not saved: the run is past it, at step 8", logs.output[0])
        checkpoint.step(9)
        with self.assertRaisesRegex(
            ValueError, "failed to save step 4: the run is past it, at step 9"
        ):
            checkpoint.save(4)
        self.assertEqual(self.saved(), [f"attempt-1/step-{step}" for step in (6, 7, 8)])

    def test_the_steps_of_a_run_end_with_its_result_saved(self):
        box = Box(0)
        for attempt, wanted in ((1, [0, 1, 2]), (2, [3, 4]), (3, [])):
            checkpoint = self.checkpoint(attempt=attempt, box=box)
            trained = []
            for step in checkpoint.steps(5):
                trained.append(step)
                box.value = step
                checkpoint.report(0.5)
                if (attempt, step) == (1, 2):
                    stop.request()
            self.assertEqual(trained, wanted)
            self.assertEqual(checkpoint.stopped, attempt == 1)
            stop.forget()
        self.assertEqual(self.saved(), ["attempt-1/step-2", "attempt-2/step-4"])
        self.assertEqual(box.value, 4)

    def test_the_steps_go_on_where_the_run_is(self):
        checkpoint = self.checkpoint(box=Box(1))
        self.assertEqual(checkpoint.resume(first=1), 1)
        self.assertEqual(
            [list(checkpoint.steps(4)), list(checkpoint.steps(6))], [[1, 2, 3], [4, 5]]
        )

    def test_outside_a_job_sigterm_does_what_it_did_before(self):
        # In an interpreter of its own: importing the package may change that, too.
        script = """
import os, signal, fireflyer, torch
fireflyer.Checkpoint({"model": torch.nn.Linear(1, 1)}, directory="/nonexistent").resume()
fireflyer.should_stop()
os.kill(os.getpid(), signal.SIGTERM)
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "FIREFLYER_RUN_DIR": "/nonexistent"},
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, -signal.SIGTERM, done.stderr)

    def test_a_stop_that_could_not_be_saved_is_not_acknowledged(self):
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        self.root.write_text("a file where the directory should be")
        writer = self.checkpoint(box=Box(1), run_dir=run_dir)
        stop.request()
        with self.assertLogs("fireflyer", "ERROR") as logs:
            self.assertTrue(writer.step(1))
        self.assertIn("step 1 was not saved", logs.output[0])
        self.assertFalse((run_dir / "ack.json").exists())

    def test_without_a_directory_nothing_is_saved_and_a_stop_is_still_noticed(self):
        settings = Environment.read({"FIREFLYER_RUN_DIR": "/nonexistent"})
        alone = Checkpoint({"box": Box(1)}, environment=settings)
        self.assertFalse(alone.enabled)
        self.assertEqual(alone.resume(), 0)
        self.assertFalse(alone.step(0))
        stop.request()
        self.assertTrue(alone.step(1))
        with self.assertRaisesRegex(CheckpointError, "spec.checkpoint"):
            alone.save(1)

    def test_a_part_without_a_state_is_refused_at_once(self):
        with self.assertRaisesRegex(TypeError, "epoch is a int without state_dict"):
            self.checkpoint(epoch=3)
        with self.assertRaisesRegex(ValueError, "which states does not have"):
            self.checkpoint(sharded=["model"])
