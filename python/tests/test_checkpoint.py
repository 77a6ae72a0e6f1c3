"""Saving and resuming in one process: formats, choice, damage, pruning."""

import errno
import json
import logging
import math
import random
import signal
import tempfile
import unittest
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy
import torch
from fireflyer import (
    Checkpoint,
    CheckpointError,
    CheckpointUnavailable,
    NoUsableCheckpoint,
    StateError,
)
from fireflyer.checkpoint import manifest, shard, state, stop
from fireflyer.checkpoint.disk import Disk
from fireflyer.checkpoint.retention import Retention
from fireflyer.environment import Environment


#: What is no state among the arguments of the tests' `checkpoint`.
OPTIONS = ("sharded", "interval_seconds", "keep_last", "disk")


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


class Versioned(torch.nn.Module):
    """A module that has changed what its state means, and must be told which meaning it gets."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def _load_from_state_dict(self, state, prefix, metadata, *others):
        if metadata.get("version") != self._version:
            raise RuntimeError(f"{prefix}: a state of version {metadata.get('version')}")
        super()._load_from_state_dict(state, prefix, metadata, *others)


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(stop.forget)
        self.root = Path(directory.name, "digits")
        self.now = 0.0
        logging.getLogger("fireflyer").setLevel(logging.ERROR)

    def checkpoint(self, attempt=1, resume=None, run_dir=None, **given):
        told = Environment.read({"FIREFLYER_RUN_DIR": "/nonexistent"})
        told = replace(
            told, attempt=attempt, resume=resume, checkpoint_dir=self.root, run_dir=run_dir
        )
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        return Checkpoint(given, environment=told, clock=lambda: self.now, **options)

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

    def test_a_run_goes_on_with_the_same_bits(self):
        def train(model, optimizer, start, end):
            for step in range(start, end):
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

    def test_every_kind_of_state_comes_back_as_it_was(self):
        kinds = {
            "numbers": [0, -1, 2**70, 0.1, 1e300, True, None],
            "text": "ä\n",
            "bytes": b"\x00\xff",
            "tuple": (1, (2, [3])),
            "keys": {0: "a", 1.5: "b", None: "c", True: "d"},
            "dict": {"tensor": 1},
            "counter": Counter({3: 2}),
            "ordered": OrderedDict(b=1, a=2),
            "size": torch.Size([2, 3]),
        }
        box = Box(kinds)
        self.checkpoint(box=box).save(0)
        box.value = None
        self.checkpoint(attempt=2, box=box).resume()
        self.assertEqual(box.value, kinds)
        self.assertIsInstance(box.value["counter"], Counter)
        self.assertIsInstance(box.value["ordered"], OrderedDict)

    def test_the_versions_of_a_modules_parts_come_back(self):
        model = torch.nn.Sequential(Versioned(), torch.nn.BatchNorm1d(2))
        torch.nn.init.ones_(model[0].weight)
        box = Box({"average": model.state_dict()})
        self.checkpoint(model=model, box=box).save(0)
        model, box = torch.nn.Sequential(Versioned(), torch.nn.BatchNorm1d(2)), Box()
        self.assertEqual(self.checkpoint(attempt=2, model=model, box=box).resume(), 1)
        self.assertEqual(model[0].weight.tolist(), [1, 1])
        self.assertEqual(box.value["average"]._metadata, model.state_dict()._metadata)

    def test_a_modules_state_of_before_versions_were_kept_is_still_read(self):
        plain = OrderedDict(torch.nn.Linear(1, 1).state_dict())
        value, tensors = state.encode(plain, "model")
        self.assertEqual(list(value), ["ordered"])
        self.assertEqual(state.decode(value, dict(tensors).__getitem__), plain)

    def test_what_is_not_finite_comes_back(self):
        box = Box([math.inf, -math.inf, math.nan])
        self.checkpoint(box=box).save(0)
        self.checkpoint(attempt=2, box=box).resume()
        self.assertEqual(box.value[:2], [math.inf, -math.inf])
        self.assertTrue(math.isnan(box.value[2]))

    def test_every_type_and_shape_of_tensor_comes_back_bit_for_bit(self):
        for name, dtype in state.DTYPES.items():
            content = torch.randint(0, 256, (2 * 3 * dtype.itemsize,), dtype=torch.uint8)
            if dtype is torch.bool:
                content &= 1
            tensor = content.view(dtype).reshape(2, 3)
            tensors = [tensor, tensor.t(), tensor[:, 1:2], tensor[0, 0], tensor[:0]]
            box = Box(list(tensors))
            with self.subTest(name):
                self.checkpoint(box=box).save(0)
                self.checkpoint(attempt=2, box=box).resume()
                for before, after in zip(tensors, box.value):
                    self.assertEqual((before.dtype, before.shape), (after.dtype, after.shape))
                    self.assertEqual(
                        before.contiguous().reshape(-1).view(torch.uint8).tolist()
                        if before.numel()
                        else [],
                        after.reshape(-1).view(torch.uint8).tolist() if after.numel() else [],
                    )
                for path in sorted(self.root.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()

    def test_names_that_meet_stay_apart(self):
        box = Box({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
        self.checkpoint(box=box).save(0)
        self.checkpoint(attempt=2, box=box).resume()
        self.assertEqual((box.value["a.b"].item(), box.value["a"]["b"].item()), (0, 1))

    def test_what_cannot_be_stored_is_named_before_the_first_step(self):
        nested = []
        for _ in range(100):
            nested = [nested]
        cases = {
            "a set": {1},
            "an object": object(),
            "a type": torch.float32,
            "an array": numpy.zeros(2),
            "sparse": torch.zeros(2, 2).to_sparse(),
            "meta": torch.zeros(2, device="meta"),
            "a number that JSON does not read back": 10**5000,
            "what is too deep for JSON": nested,
        }
        for what, value in cases.items():
            for begin in (Checkpoint.resume, lambda one: next(one.steps(3)), lambda one: one.save(0)):
                with self.subTest(what), self.assertRaisesRegex(StateError, r"box\.value\.here"):
                    begin(self.checkpoint(box=Box({"here": value})))
            self.assertEqual(self.saved(), [])

    def test_what_cannot_be_stored_any_more_ends_the_run_at_the_next_save(self):
        box = Box(1)
        checkpoint = self.checkpoint(box=box, interval_seconds=0)
        with self.assertRaisesRegex(StateError, "a set cannot be stored"):
            for step in checkpoint.steps(5):
                box.value = {step} if step == 2 else step
        self.assertEqual(self.saved(), ["attempt-1/step-0", "attempt-1/step-1"])

    def test_scalars_of_numpy_come_back_as_numbers(self):
        box = Box({"best": numpy.float64(0.25), "count": numpy.int64(3), "done": numpy.bool_(True),
                   numpy.int32(7): numpy.float32(0.5)})  # fmt: skip
        self.checkpoint(box=box).save(0)
        self.checkpoint(attempt=2, box=box).resume()
        self.assertEqual(box.value, {"best": 0.25, "count": 3, "done": True, 7: 0.5})
        self.assertEqual({type(one) for one in box.value.values()}, {float, int, bool})

    def test_a_manifest_that_nobody_could_read_is_not_written(self):
        writer = self.checkpoint(box=Box(torch.zeros(1)))
        writer.save(1)
        with (
            mock.patch.object(manifest, "LIMIT_BYTES", 2000),
            self.assertRaisesRegex(CheckpointError, r"manifest has \d+ bytes, at most 2000 can be read"),
        ):
            writer.save(2)
        self.assertEqual(self.saved(), ["attempt-1/step-1"])
        with self.assertRaisesRegex(ValueError, "step must be below"):
            writer.save(10**18)  # Its directory's name has too many digits.

    def test_names_that_would_meet_in_a_checkpoint_are_refused(self):
        for name in ("a.b", "rank-0", "", "a/b", 3):
            with self.subTest(name), self.assertRaisesRegex(ValueError, "cannot name a state"):
                Checkpoint({name: Box(1)})
        with self.assertRaisesRegex(TypeError, "must be a mapping"):
            Checkpoint([Box(1)])

    def test_any_word_may_name_a_state(self):
        names = ("disk", "clock", "environment", "directory", "states", "keep_last")
        told = replace(Environment.read({}), checkpoint_dir=self.root, run_dir=None)
        Checkpoint({name: Box(name) for name in names}, environment=told).save(0)
        boxes = {name: Box() for name in names}
        self.assertEqual(Checkpoint(boxes, environment=told).resume(), 1)
        self.assertEqual([box.value for box in boxes.values()], list(names))

    def test_a_model_is_saved_as_it_is_however_it_is_run(self):
        def build():
            return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

        def partly(model):
            model[0] = torch.compile(model[0])
            return model

        ways = {"plain": lambda model: model, "compiled": torch.compile, "partly": partly}
        for saved, wrap in ways.items():
            for loaded, wrap_again in ways.items():
                self.root = Path(self.root.parent, f"{saved}-{loaded}")
                model = build()
                torch.nn.init.constant_(model[0].weight, 3.0)
                self.checkpoint(model=wrap(model)).save(0)
                content = json.loads((self.root / "attempt-1/step-0/manifest.json").read_text())
                self.assertNotIn("_orig_mod", json.dumps(content))
                model = build()
                self.checkpoint(attempt=2, model=wrap_again(model)).resume()
                with self.subTest(saved=saved, loaded=loaded):
                    self.assertEqual(model[0].weight.tolist(), [[3.0, 3.0]] * 2)

    def test_the_manifest_says_where_each_tensor_lies(self):
        weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        self.checkpoint(box=Box([torch.zeros(1), weight])).save(7)
        directory = self.root / "attempt-1/step-7"
        entry = json.loads((directory / "manifest.json").read_text())["tensors"]["box.value.1"]
        content = (directory / entry["file"]).read_bytes()
        content = content[entry["offset"] : entry["offset"] + entry["length"]]
        self.assertEqual(content, weight.numpy().tobytes())
        self.assertEqual(
            (entry["dtype"], entry["shape"], entry["offset"] % 4096), ("float32", [2, 3], 0)
        )

    def test_the_newest_by_order_of_saving_is_resumed_whatever_its_numbers(self):
        box = Box(1)
        self.checkpoint(attempt=3, box=box).save(50)
        later = self.checkpoint(attempt=1, box=box)  # The job was made anew over the old directory.
        later.resume()
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
        self.assertIn("attempt-1/step-9, named by FIREFLYER_RESUME", logs.output[0])
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
        told = json.loads((run_dir / "cause.json").read_text())
        self.assertEqual(told["kind"], "NoUsableCheckpoint")
        self.assertEqual(told["message"][:100], str(raised.exception)[:100])
        before = self.saved()
        fresh = self.checkpoint(attempt=2, box=Box(1), run_dir=run_dir)
        self.assertEqual(fresh.resume(fresh=True), 0)
        self.assertFalse((run_dir / "cause.json").exists(), "the run goes on")
        self.assertEqual(self.saved(), before)

    def test_a_checkpoint_of_the_job_that_is_gone_is_no_fresh_start(self):
        with self.assertRaisesRegex(NoUsableCheckpoint, "attempt-1/step-9: it is not there"):
            self.checkpoint(attempt=2, resume=(1, 9), box=Box()).resume()

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
            told = json.loads((run_dir / "cause.json").read_text())
            self.assertEqual(told["kind"], "CheckpointUnavailable")
        with (
            mock.patch.object(shard.torch, "empty", side_effect=no_memory),
            self.assertRaisesRegex(CheckpointUnavailable, "failed to take memory"),
        ):
            self.checkpoint(attempt=2, box=Box()).resume()
        # The recorded one is sure to be the last: what is unclear about others does not matter.
        disk = failures["manifest"]
        following = self.checkpoint(attempt=2, box=Box(), disk=disk, resume=(1, 1)).resume()
        self.assertEqual(following, 2)

    def test_what_was_passed_over_is_told_to_the_platform(self):
        run_dir = Path(self.root.parent, "run")
        run_dir.mkdir()
        writer = self.checkpoint(box=Box(torch.zeros(1)))
        writer.save(1)
        writer.save(2)
        self.checkpoint(attempt=2, box=Box(), run_dir=run_dir).resume()
        self.assertNotIn("passedOver", json.loads((run_dir / "progress.json").read_text()))
        self.damage("attempt-1/step-2")
        self.checkpoint(attempt=2, box=Box(), run_dir=run_dir, resume=(1, 2)).resume()
        told = json.loads((run_dir / "progress.json").read_text())
        self.assertRegex(
            told["passedOver"], "resumed from attempt-1/step-1; attempt-1/step-2: .*SHA-256"
        )
        self.assertEqual(told["checkpoint"]["step"], 1)

    def test_after_a_damaged_one_the_newest_before_it_is_taken(self):
        box = Box(torch.zeros(1))
        writer = self.checkpoint(box=box, keep_last=9)
        for step in range(1, 5):
            writer.save(step)
        self.damage("attempt-1/step-3")
        self.assertEqual(self.checkpoint(attempt=2, resume=(1, 3), box=box).resume(), 3)

    def test_what_was_passed_over_is_not_removed_by_the_run_that_could_not_load_it(self):
        writer = self.checkpoint(box=Box(torch.zeros(1)))
        writer.save(1)
        writer.save(2)
        self.damage("attempt-1/step-2")
        reader = self.checkpoint(attempt=2, box=Box(), keep_last=1)
        reader.resume()
        for step in range(3, 8):
            reader.save(step)
        self.assertEqual(self.saved(), ["attempt-1/step-2", "attempt-2/step-7"])

    def test_nothing_goes_before_a_newer_one_was_read_back(self):
        self.checkpoint(box=Box(torch.zeros(1)), keep_last=5).save(1)
        disk = Failing("", OSError(errno.EIO, "Input/output error"))
        disk.fails = False
        writer = self.checkpoint(attempt=2, box=Box(torch.zeros(1)), keep_last=1, disk=disk)
        writer._look()
        disk.fails = True
        for step in range(2, 5):
            writer.save(step)
        self.assertEqual(len(self.saved()), 4)
        disk.fails = False
        writer.save(5)
        self.assertEqual(self.saved(), ["attempt-2/step-5"])

    def test_a_save_that_reads_back_as_something_else_is_an_error_and_replaces_nothing(self):
        class Lying(Disk):
            def write(self, path, chunks):
                chunks = [bytes(chunk) for chunk in chunks]
                if path.name.startswith("shard"):
                    chunks[0] = bytes(len(chunks[0]) - 1) + b"!"
                super().write(path, chunks)

        self.checkpoint(box=Box(torch.zeros(1))).save(1)
        writer = self.checkpoint(attempt=2, box=Box(torch.zeros(1)), keep_last=1, disk=Lying())
        with self.assertRaisesRegex(CheckpointError, "not read back: .*another SHA-256"):
            writer.save(2)
        self.assertIn("attempt-1/step-1", self.saved())

    def test_with_sharded_states_fewer_ranks_replace_nothing_that_all_can_load(self):
        def known(step, ranks):
            found = manifest.Manifest(1, step, step, ranks, "", "", {}, {}, {}, [{}] * ranks)
            return found, f"digest-{step}"

        # Newest first: three of two ranks after the loss of one of three.
        found = [known(5, 2), known(4, 2), known(3, 2), known(2, 3), known(1, 3)]
        kept = Retention(keep_last=2, world_size=3, verified={"digest-5", "digest-2"})
        self.assertEqual([one.step for one in kept.removable(found)], [3, 1])
        kept.verified = {"digest-5"}
        self.assertEqual([one.step for one in kept.removable(found)], [3], "of its own kind only")
        kept.world_size = None
        self.assertEqual([one.step for one in kept.removable(found)], [3, 2, 1])

    def test_old_checkpoints_go_only_after_newer_ones_are_durable(self):
        writer = self.checkpoint(box=Box(torch.zeros(4)), keep_last=2)
        for step in range(5):
            writer.save(step)
            kept = [f"attempt-1/step-{one}" for one in range(max(0, step - 1), step + 1)]
            self.assertEqual(self.saved(), kept)
        self.assertEqual(len(list((self.root / "attempt-1").iterdir())), 2, "shards went too")

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

    def test_what_an_interrupted_save_left_is_removed(self):
        left = self.root / "attempt-1/step-3"
        left.mkdir(parents=True)
        (left / "shard-00000.1.new").write_bytes(b"half")
        self.checkpoint(attempt=2, box=Box(1)).save(4)
        self.assertFalse(left.exists())

    def test_what_a_later_attempt_is_saving_is_no_leftover(self):
        saving = self.root / "attempt-2/step-9"
        saving.mkdir(parents=True)
        self.checkpoint(attempt=1, box=Box(1)).save(4)
        self.assertTrue(saving.exists(), "attempt 1 is void and does not know")
        self.checkpoint(attempt=2, box=Box(1)).save(10)
        self.assertFalse(saving.exists())

    def test_what_a_later_attempt_has_saved_is_not_removed_by_a_void_one(self):
        void = self.checkpoint(attempt=1, box=Box(1), keep_last=2)
        void.save(10)
        self.checkpoint(attempt=2, box=Box(1), keep_last=2).save(12)
        for step in range(13, 17):
            void.save(step)
        self.assertEqual(
            self.saved(), ["attempt-1/step-15", "attempt-1/step-16", "attempt-2/step-12"]
        )
        self.checkpoint(attempt=2, box=Box(1), keep_last=2).save(17)
        self.assertEqual(self.saved(), ["attempt-1/step-16", "attempt-2/step-17"])

    def test_what_a_job_of_before_left_under_a_later_attempt_is_removed(self):
        for resumes in (False, True):
            before = self.checkpoint(attempt=5, box=Box(1))
            before.save(50)
            before.save(51)
            made_anew = self.checkpoint(attempt=1, box=Box(1), keep_last=1)
            if resumes:
                made_anew.resume()
            made_anew.save(60)
            self.assertEqual(self.saved(), ["attempt-1/step-60"])

    def test_a_later_attempt_may_save_again_what_was_there_at_the_start(self):
        self.checkpoint(attempt=2, box=Box(1)).save(5)
        void = self.checkpoint(attempt=1, box=Box(1), keep_last=1)
        void.resume()
        self.checkpoint(attempt=2, box=Box(1)).save(5)
        void.save(6)
        void.save(7)
        self.assertEqual(self.saved(), ["attempt-1/step-7", "attempt-2/step-5"])

    def test_saving_a_step_again_replaces_it_as_a_whole(self):
        box = Box(torch.zeros(1))
        self.checkpoint(box=box).save(1)
        box.value = torch.ones(1)
        self.checkpoint(box=box).save(1)
        self.assertEqual(
            len(list((self.root / "attempt-1/step-1").iterdir())), 2, "one shard, one manifest"
        )
        box.value = None
        self.assertEqual(self.checkpoint(attempt=2, box=box).resume(), 2)
        self.assertEqual(box.value.item(), 1)

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
        self.assertEqual([list(checkpoint.steps(4)), list(checkpoint.steps(6))], [[1, 2, 3], [4, 5]])

    def test_outside_a_job_sigterm_does_what_it_did_before(self):
        before = signal.getsignal(signal.SIGTERM)
        with mock.patch.dict("os.environ", {"FIREFLYER_RUN_DIR": "/nonexistent"}):
            stop.install()
            self.checkpoint(box=Box(1))
        self.assertIs(signal.getsignal(signal.SIGTERM), before)

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

    def test_without_a_directory_nothing_is_saved_and_a_stop_is_still_heard(self):
        told = Environment.read({"FIREFLYER_RUN_DIR": "/nonexistent"})
        alone = Checkpoint({"box": Box(1)}, environment=told)
        self.assertFalse(alone.enabled)
        self.assertEqual(alone.resume(), 0)
        self.assertFalse(alone.step(0))
        stop.request()
        self.assertTrue(alone.step(1))
        with self.assertRaisesRegex(CheckpointError, "spec.checkpoint"):
            alone.save(1)

    def test_a_model_that_does_not_fit_is_the_callers_error_and_not_damage(self):
        self.checkpoint(model=torch.nn.Linear(2, 2)).save(1)
        with self.assertRaisesRegex(RuntimeError, "size mismatch"):
            self.checkpoint(attempt=2, model=torch.nn.Linear(3, 2)).resume()
        with self.assertRaisesRegex(CheckpointError, r"does not hold \['optimizer'\]"):
            self.checkpoint(attempt=2, model=torch.nn.Linear(2, 2), optimizer=Box()).resume()

    def test_a_part_without_a_state_is_refused_at_once(self):
        with self.assertRaisesRegex(TypeError, "epoch is a int without state_dict"):
            self.checkpoint(epoch=3)
        with self.assertRaisesRegex(ValueError, "not given"):
            self.checkpoint(sharded=["model"])
