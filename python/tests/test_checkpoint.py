"""Saving and resuming in one process: formats, choice, damage, pruning."""

import json
import logging
import math
import random
import tempfile
import unittest
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy
import torch
from fireflyer import Checkpoint, CheckpointError
from fireflyer.checkpoint import manifest, state, stop
from fireflyer.environment import Environment


class Box:
    """The smallest thing with a state."""

    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, loaded):
        self.value = loaded["value"]


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
        return Checkpoint(environment=told, clock=lambda: self.now, **given)

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

    def test_what_cannot_be_stored_is_named(self):
        cases = {
            "a set": {1},
            "an object": object(),
            "sparse": torch.zeros(2, 2).to_sparse(),
            "meta": torch.zeros(2, device="meta"),
        }
        for what, value in cases.items():
            with (
                self.subTest(what),
                self.assertRaisesRegex(CheckpointError, r"box\.value\.here.*cannot be stored"),
            ):
                self.checkpoint(box=Box({"here": value})).save(0)
            self.assertEqual(self.saved(), [])

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
        alone = Checkpoint(environment=told, box=Box(1))
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
