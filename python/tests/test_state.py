"""What a checkpoint holds: which states can be stored, and that they come back as they were."""

import json
import math
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy
import torch
import torch.distributed as dist
from checkpoints import Box, Case
from fireflyer import Checkpoint, CheckpointError, StateError
from fireflyer.checkpoint import manifest, state
from fireflyer.environment import Environment
from torch.nn.parallel import DistributedDataParallel


class Versioned(torch.nn.Module):
    """A module that has changed what its state means, and must be given the meaning that it gets."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def _load_from_state_dict(self, state, prefix, metadata, *others):
        if metadata.get("version") != self._version:
            raise RuntimeError(f"{prefix}: a state of version {metadata.get('version')}")
        super()._load_from_state_dict(state, prefix, metadata, *others)


class StateTest(Case):
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

    def test_names_that_collide_stay_apart(self):
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
            for begin in (
                Checkpoint.resume,
                lambda one: next(one.steps(3)),
                lambda one: one.save(0),
            ):
                with self.subTest(what), self.assertRaisesRegex(StateError, r"box\.value\.here"):
                    begin(self.checkpoint(box=Box({"here": value})))
            self.assertEqual(self.saved(), [])

    def test_a_state_may_be_64_levels_deep(self):
        def nested(levels):
            return [nested(levels - 1)] if levels > 0 else "here"

        # Its box is a level, too.
        box = Box(nested(63))
        self.checkpoint(box=box).save(0)
        self.checkpoint(attempt=2, box=box).resume()
        self.assertEqual(box.value, nested(63))
        with self.assertRaisesRegex(StateError, "nested more than 64 levels deep"):
            self.checkpoint(box=Box(nested(64))).save(1)

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
        size = (self.root / "attempt-1/step-1/manifest.json").stat().st_size
        with (
            mock.patch.object(manifest, "MANIFEST_LIMIT_BYTES", size - 1),
            self.assertRaisesRegex(
                CheckpointError, rf"manifest has {size} bytes, at most {size - 1} can be read"
            ),
        ):
            writer.save(2)
        self.assertEqual(self.saved(), ["attempt-1/step-1"])
        with self.assertRaisesRegex(ValueError, "step must be below"):
            writer.save(10**18)  # Its directory's name has too many digits.

    def test_names_that_would_collide_in_a_checkpoint_are_refused(self):
        for name in ("a.b", "rank-0", "", "a/b", 3):
            with self.subTest(name), self.assertRaisesRegex(ValueError, "cannot name a state"):
                Checkpoint({name: Box(1)})
        with self.assertRaisesRegex(TypeError, "must be a mapping"):
            Checkpoint([Box(1)])

    def test_any_word_may_name_a_state(self):
        names = ("disk", "clock", "environment", "directory", "states", "keep_last")
        settings = replace(Environment.read({}), checkpoint_dir=self.root, run_dir=None)
        Checkpoint({name: Box(name) for name in names}, environment=settings).save(0)
        boxes = {name: Box() for name in names}
        self.assertEqual(Checkpoint(boxes, environment=settings).resume(), 1)
        self.assertEqual([box.value for box in boxes.values()], list(names))

    def test_a_model_is_saved_as_it_is_however_it_is_run(self):
        def build():
            return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

        def in_part(wrapper):
            def wrap(model):
                model[0] = wrapper(model[0])
                return model

            return wrap

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        ways = {
            "plain": lambda model: model,
            "compiled": torch.compile,
            "compiled in part": in_part(torch.compile),
            "distributed": DistributedDataParallel,
            "distributed in part": in_part(DistributedDataParallel),
            "compiled and distributed": lambda model: DistributedDataParallel(torch.compile(model)),
            "distributed and compiled": lambda model: torch.compile(DistributedDataParallel(model)),
        }
        for saved, wrap in ways.items():
            self.root = Path(self.root.parent, saved)
            model = build()
            torch.nn.init.constant_(model[0].weight, 3.0)
            self.checkpoint(model=wrap(model)).save(0)
            content = json.loads((self.root / "attempt-1/step-0/manifest.json").read_text())
            self.assertIn("model.0.weight", content["tensors"])
            self.assertNotRegex(json.dumps(content), r"_orig_mod|\bmodule\.|\.module\b")
            for loaded, wrap_again in ways.items():
                model = build()
                layer = model[0]
                self.checkpoint(attempt=2, model=wrap_again(model)).resume()
                with self.subTest(saved=saved, loaded=loaded):
                    self.assertEqual(layer.weight.tolist(), [[3.0, 3.0]] * 2)

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
