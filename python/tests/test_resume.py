"""What a run goes on from: the choice among checkpoints, damage, and disks that cannot be read now."""

import errno
import json
from pathlib import Path
from unittest import mock

import torch
from checkpoints import Box, Case, Failing
from fireflyer import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
from fireflyer.checkpoint import manifest, shard


class ResumeTest(Case):
    def test_the_newest_by_order_of_saving_is_resumed_whatever_its_numbers(self):
        box = Box(1)
        self.checkpoint(attempt=3, box=box).save(50)
        later = self.checkpoint(attempt=1, box=box)  # The job was made anew over the old directory.
        later.resume(fresh=True)
        box.value = 2
        later.save(10)
        self.assertEqual(self.checkpoint(attempt=2, box=box).resume(), 11)
        self.assertEqual(box.value, 2)

    def test_without_a_checkpoint_the_run_starts_at_its_first_step(self):
        self.assertEqual(self.checkpoint(box=Box()).resume(), 0)
        self.assertEqual(self.checkpoint(box=Box()).resume(first=1), 1)

    def test_a_damaged_checkpoint_is_passed_over_with_a_warning(self):
        def shorten(directory):
            shard = next(directory.glob("shard-*"))
            shard.write_bytes(shard.read_bytes()[:-1])

        def grow(directory):
            found, _ = manifest.read(directory)
            for entry in found.tensors.values():
                entry["shape"] = [1_000_000_000_000]
            (directory / "manifest.json").write_bytes(found.encode()[0])

        def count_wrong(directory):
            path = directory / "manifest.json"
            path.write_text(path.read_text().replace('"sequence":2', '"sequence":3'))

        cases = {
            "bit": (lambda directory: self.damage("attempt-1/step-2"), "another SHA-256"),
            "short shard": (shorten, "ends inside"),
            "no shard": (
                lambda directory: next(directory.glob("shard-*")).unlink(),
                "No such file",
            ),
            "manifest": (
                lambda directory: (directory / "manifest.json").write_text("{"),
                "failed to parse",
            ),
            "other manifest": (
                lambda d: (d / "manifest.json").write_bytes(
                    (d.parent / "step-1/manifest.json").read_bytes()
                ),
                "describes attempt-1/step-1",
            ),
            "huge": (grow, "not its shape"),
            "a bit that is no tensor's": (count_wrong, "its content has another SHA-256"),
        }
        for what, (hurt, said) in cases.items():
            self.root = Path(self.root.parent, what)
            box = Box(torch.zeros(1))
            writer = self.checkpoint(box=box)
            writer.save(1)
            box.value = torch.ones(1)
            writer.save(2)
            hurt(self.root / "attempt-1/step-2")
            with self.subTest(what), self.assertLogs("fireflyer", "WARNING") as logs:
                self.assertEqual(self.checkpoint(attempt=2, box=box).resume(), 2)
                self.assertEqual(box.value.item(), 0)
                self.assertIn(said, "\n".join(logs.output))

    def test_the_checkpoint_that_the_operator_recorded_is_taken_before_a_newer_one(self):
        box = Box(1)
        writer = self.checkpoint(box=box)
        writer.save(1)
        box.value = 2
        writer.save(2)
        self.assertEqual(self.checkpoint(attempt=2, resume=(1, 1), box=box).resume(), 2)
        self.assertEqual(box.value, 1)

    def test_when_the_recorded_one_is_gone_or_damaged_the_newest_is_taken_and_it_is_said(self):
        box = Box(torch.zeros(1))
        writer = self.checkpoint(box=box)
        writer.save(1)
        writer.save(2)
        with self.assertLogs("fireflyer", "WARNING") as logs:
            self.assertEqual(self.checkpoint(attempt=2, resume=(1, 9), box=box).resume(), 3)
        self.assertIn("attempt-1/step-9, which the job has saved", logs.output[0])
        self.damage("attempt-1/step-1")
        with self.assertLogs("fireflyer", "WARNING"):
            self.assertEqual(self.checkpoint(attempt=2, resume=(1, 1), box=box).resume(), 3)

    def test_checkpoints_that_cannot_be_loaded_end_the_run_and_stay(self):
        writer = self.checkpoint(box=Box(torch.zeros(1)))
        writer.save(1)
        writer.save(2)
        self.damage("attempt-1/step-1")
        (self.root / "attempt-1/step-2/manifest.json").write_text("{")
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        with self.assertRaisesRegex(NoUsableCheckpoint, "step-2: .*step-1: .*fresh=True") as raised:
            self.checkpoint(attempt=2, box=Box(), run_dir=run_dir).resume()
        written = json.loads((run_dir / "cause.json").read_text())
        self.assertEqual(written["kind"], "NoUsableCheckpoint")
        self.assertEqual(written["message"][:100], str(raised.exception)[:100])
        before = self.saved()
        fresh = self.checkpoint(attempt=2, box=Box(1), run_dir=run_dir)
        self.assertEqual(fresh.resume(fresh=True), 0)
        self.assertFalse((run_dir / "cause.json").exists(), "the run goes on")
        self.assertEqual(self.saved(), before)

    def test_an_empty_folder_is_no_fresh_start_while_the_job_knows_a_checkpoint(self):
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        folders = {"no folder": self.root.parent, "an empty one": self.root,
                   "leftovers of saves": self.root / "attempt-1/step-9"}  # fmt: skip
        known = {"acknowledged": {"resume": (1, 9)}, "reported": {"last": "attempt-1/step-9"}}
        for what, folder in folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            for how, one in known.items():
                reader = self.checkpoint(attempt=2, box=Box(1), run_dir=run_dir, **one)
                with (
                    self.subTest(what, how=how),
                    self.assertRaisesRegex(CheckpointUnavailable, "attempt-1/step-9") as raised,
                ):
                    reader.resume()
                text = str(raised.exception)
                for said in (f"in {self.root}", "volume", "resume(fresh=True)"):
                    self.assertIn(said, text)
                written = json.loads((run_dir / "cause.json").read_text())
                self.assertEqual(written, {"kind": "CheckpointUnavailable", "message": text})
                self.assertEqual(reader.resume(fresh=True), 0)

    def test_an_empty_folder_of_the_scripts_own_is_a_fresh_start(self):
        own = Path(
            self.root.parent, "second-phase"
        )  # What the job's status has lies in the job's folder.
        reader = self.checkpoint(attempt=2, box=Box(1), last="attempt-1/step-9", directory=own)
        self.assertEqual(reader.resume(), 0)

    def test_where_only_older_ones_are_left_of_what_the_job_knows_it_is_said(self):
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        self.checkpoint(box=Box(1)).save(1)
        last = "attempt-1/step-9"
        reader = self.checkpoint(attempt=2, box=Box(), run_dir=run_dir, last=last)
        self.assertEqual(reader.resume(), 2)
        written = json.loads((run_dir / "progress.json").read_text())
        self.assertEqual(
            written["passedOver"],
            "resumed from attempt-1/step-1; attempt-1/step-9: it is not there, and the job has saved it",
        )
        # One that replaced it is as good.
        writer = self.checkpoint(attempt=2, box=Box(1))
        writer.save(3)
        reader = self.checkpoint(attempt=3, box=Box(), run_dir=run_dir, last=last)
        self.assertEqual(reader.resume(), 4)
        self.assertNotIn("passedOver", json.loads((run_dir / "progress.json").read_text()))

    def test_what_cannot_be_read_now_ends_the_attempt_and_is_not_passed_over(self):
        writer = self.checkpoint(box=Box(torch.zeros(1)))
        writer.save(1)
        writer.save(2)
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        no_memory = RuntimeError("DefaultCPUAllocator: can't allocate memory")
        failures = {
            "folder": Failing("attempt-1", OSError(errno.EIO, "Input/output error")),
            "manifest": Failing("step-2/manifest.json", OSError(errno.ESTALE, "Stale file handle")),
            "shard": Failing("step-2/shard-00000.2", OSError(errno.EIO, "Input/output error")),
            "right": Failing("step-2/manifest.json", PermissionError(errno.EACCES, "denied")),
            "memory": Failing("step-2/shard-00000.2", MemoryError()),
        }
        for what, disk in failures.items():
            with self.subTest(what), self.assertRaises(CheckpointUnavailable):
                self.checkpoint(attempt=2, box=Box(), disk=disk, run_dir=run_dir).resume()
            written = json.loads((run_dir / "cause.json").read_text())
            self.assertEqual(written["kind"], "CheckpointUnavailable")
        with (
            mock.patch.object(shard.torch, "empty", side_effect=no_memory),
            self.assertRaisesRegex(CheckpointUnavailable, "failed to take memory"),
        ):
            self.checkpoint(attempt=2, box=Box()).resume()
        # The recorded one is sure to be the last: what is unclear about others does not matter.
        disk = failures["manifest"]
        following = self.checkpoint(attempt=2, box=Box(), disk=disk, resume=(1, 1)).resume()
        self.assertEqual(following, 2)

    def test_what_was_passed_over_is_reported_to_the_platform(self):
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        writer = self.checkpoint(box=Box(torch.zeros(1)))
        writer.save(1)
        writer.save(2)
        self.checkpoint(attempt=2, box=Box(), run_dir=run_dir).resume()
        self.assertNotIn("passedOver", json.loads((run_dir / "progress.json").read_text()))
        self.damage("attempt-1/step-2")
        self.checkpoint(attempt=2, box=Box(), run_dir=run_dir, resume=(1, 2)).resume()
        written = json.loads((run_dir / "progress.json").read_text())
        self.assertRegex(
            written["passedOver"], "resumed from attempt-1/step-1; attempt-1/step-2: .*SHA-256"
        )
        self.assertEqual(written["checkpoint"]["step"], 1)

    def test_after_a_damaged_one_the_newest_before_it_is_taken(self):
        box = Box(torch.zeros(1))
        writer = self.checkpoint(box=box, keep_last=9)
        for step in range(1, 5):
            writer.save(step)
        self.damage("attempt-1/step-3")
        self.assertEqual(self.checkpoint(attempt=2, resume=(1, 3), box=box).resume(), 3)

    def test_a_model_that_does_not_fit_is_the_callers_error_and_not_damage(self):
        self.checkpoint(model=torch.nn.Linear(2, 2)).save(1)
        with self.assertRaisesRegex(RuntimeError, "size mismatch"):
            self.checkpoint(attempt=2, model=torch.nn.Linear(3, 2)).resume()
        with self.assertRaisesRegex(CheckpointError, r"does not hold \['optimizer'\]"):
            self.checkpoint(attempt=2, model=torch.nn.Linear(2, 2), optimizer=Box()).resume()
