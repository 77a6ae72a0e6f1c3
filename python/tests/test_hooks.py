"""Communication hooks: what they do to the numbers, alone and under DDP, over sidecars and without."""

import math
import unittest

import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError, hooks
from sidecars import Sidecars, needed

#: Of each hook: the relative rounding, and what is lost of the largest value.
LOSSES = {
    "allreduce": (0.0, 0.0),
    "bf16": (2**-8, 0.0),
    "e4m3": (2**-4, 2**-17),
    "e5m2": (2**-3, 2**-31),
}
FLOAT32 = 2**-22
STEPS = 60


class Bucket:
    """A bucket of DDP's, as a hook sees it."""

    def __init__(self, tensor, index=0, last=True):
        self._all = tensor, index, last

    def buffer(self):
        return self._all[0]

    def index(self):
        return self._all[1]

    def is_last(self):
        return self._all[2]


def reduced(name, tensors):
    """What a hook makes of a step's buckets."""
    state = hooks.State()
    hook = getattr(hooks, name)
    for _ in range(2):
        buckets = [
            Bucket(tensor.clone(), index, index == len(tensors) - 1)
            for index, tensor in enumerate(tensors)
        ]
        futures = [hook(state, bucket) for bucket in buckets]
        results = [future.wait() for future in futures]
    return results


def errors(nodes):
    """By hook, the largest error in units of what is allowed; and whether all ranks hold the same bits."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    tensors = [
        torch.randn(5000, generator=generator),
        torch.randn(70_001, generator=generator) * 1e-6,
        # Of all magnitudes, and sums in which most is lost.
        torch.randn(5000, generator=generator) * torch.logspace(-12, 3, 5000),
        torch.full((100,), 3e38 if rank else -3e38),
        torch.zeros(3),
    ]
    seen = {}
    for name, (unit, floor) in LOSSES.items():
        worst = 0.0
        for tensor, result in zip(tensors, reduced(name, tensors)):
            everything = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(everything, tensor)
            everything = torch.stack(everything).double()
            mean, size_of = everything.mean(0), everything.abs().mean(0)
            roundings = 2 + math.ceil(math.log2(nodes))
            allowed = ((1 + unit) ** roundings - 1 + FLOAT32 * size) * size_of
            allowed += (nodes + 1) * floor * everything.abs().max() + 1e-45
            if tensor[0].abs() > 1e38:
                continue  # Sums of these leave float32; averages of 8 and 16 bits are divided before.
            worst = max(worst, ((result.double() - mean).abs() / allowed).max().item())
            same = [torch.empty_like(result) for _ in range(size)]
            dist.all_gather(same, result)
            assert all(torch.equal(one, result) for one in same), name
        seen[name] = worst
    return seen


def not_finite():
    """One rank has what no sum may hide."""
    seen = {}
    for name in LOSSES:
        for wrong in (math.inf, math.nan):
            tensor = torch.ones(10)
            if dist.get_rank() == 1:
                tensor[3] = wrong
            result = reduced(name, [tensor])[0]
            seen[name, wrong] = bool(result[3].isfinite())
    return seen


def train(name, steps=STEPS, view=False):
    """A small model under DDP; returns its losses and weights, and what the client copied."""
    torch.manual_seed(dist.get_rank())
    layers = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)
    )
    model = torch.nn.parallel.DistributedDataParallel(
        layers, bucket_cap_mb=0.01, gradient_as_bucket_view=view
    )
    state = None
    if name is not None:
        state = hooks.State()
        model.register_comm_hook(state, getattr(hooks, name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        batch = torch.randn(32, 16, generator=data)
        loss = torch.nn.functional.cross_entropy(model(batch), batch[:, :4].argmax(1))
        optimizer.zero_grad()
        client = state.group.communicator.client if state else None
        copied = client.copied_in if client else 0
        loss.backward()
        if client and not name.startswith("e"):
            assert client.copied_in == copied, "it is written where it is sent from"
        optimizer.step()
        with torch.no_grad():
            loss = loss.detach().clone()
            dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses, [one.tolist() for one in model.parameters()]


def train_each(cases):
    """As `train`, case by case."""
    return [train(*case) for case in cases]


def over_gloo():
    """As `train`, where the model's own group is gloo's, without a hook and with one."""
    used = dist.get_backend(), hooks.State().group.uses_sidecar
    return used, train_each([(None,), ("bf16",)])


def another_groups():
    try:
        hooks.State(dist.group.WORLD)
    except HFReduceError as raised:
        return str(raised)


def dies_in_a_hook():
    """Ranks whose models differ, under a hook with a scale."""
    tensor = torch.ones(8 if dist.get_rank() else 4)
    future = hooks.e4m3(hooks.State(), Bucket(tensor))
    try:
        future.wait()
    except RuntimeError as raised:
        return str(raised)


class ScaleTest(unittest.TestCase):
    def test_a_scale_brings_the_largest_into_the_upper_half_of_the_range(self):
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            top = torch.finfo(dtype).max
            for largest in (1e-30, 0.3, 1.0, top / 2, top, 1e30):
                scaled = hooks.scale_of(largest, dtype) * largest
                self.assertLessEqual(scaled, top)
                self.assertGreater(scaled, top / 2)
            for none in (0.0, math.inf, math.nan):
                self.assertEqual(hooks.scale_of(none, dtype), 1.0)

    def test_without_a_sidecar_hooks_work_too(self):
        cases = [(name,) for name in (None, *LOSSES)]
        results = gang.successes(gang.run(train_each, 2, cases, backend="hfreduce"))
        for (losses, weights), (_, theirs) in zip(*results):
            self.assertEqual(weights, theirs)
            self.assertAlmostEqual(losses[-1], results[0][0][0][-1], delta=0.1)

    def test_a_group_of_another_backend_is_refused(self):
        for message in gang.successes(gang.run(another_groups, 1)):
            self.assertIn('new_group(backend="hfreduce")', message)


@needed
class HooksTest(unittest.TestCase):
    def gang(self, nodes=2, procs=2):
        return self.enterContext(Sidecars(nodes, procs))

    def test_errors_stay_within_what_is_documented(self):
        for nodes, procs in ((1, 3), (2, 2), (4, 1)):
            for seen in gang.successes(self.gang(nodes, procs).run(errors, nodes)):
                for name, error in seen.items():
                    self.assertLessEqual(error, 1.0, f"{name} on {nodes} nodes")
                self.assertGreater(seen["e4m3"], 0.1, "the bound is no formality")

    def test_what_is_not_finite_is_seen_on_all_ranks(self):
        for seen in gang.successes(self.gang().run(not_finite)):
            self.assertFalse(any(seen.values()), seen)

    def test_ddp_learns_with_every_hook(self):
        cases = [(None,)] + [(name, STEPS, view) for name in LOSSES for view in (False, True)]
        results = gang.successes(self.gang().run(train_each, cases))
        plain = results[0][0][0]
        for at, (name, *_) in enumerate(cases):
            losses, weights = results[0][at]
            for others in results[1:]:
                self.assertEqual(others[at][1], weights, f"COLL-1: {name}")
            self.assertLess(losses[-1], losses[0] / 1.5)
            far = max(abs(a - b) for a, b in zip(losses, plain))
            self.assertLess(far, 1e-4 if name in (None, "allreduce") else 0.1, name)

    def test_gradients_go_through_us_where_the_models_group_is_another(self):
        variables = self.gang().variables()
        ours = gang.successes(gang.run(over_gloo, 4, backend="gloo", variables=variables))
        for used, ((plain, _), (losses, weights)) in ours:
            self.assertEqual(used, ("gloo", True))
            self.assertEqual(weights, ours[0][1][1][1])
            self.assertLess(max(abs(a - b) for a, b in zip(losses, plain)), 0.05)

    def test_buckets_that_differ_are_an_error_on_all_ranks(self):
        for message in gang.successes(self.gang().run(dies_in_a_hook)):
            self.assertIn("ranks disagree", message)
            self.assertIn("bucket 0", message)
