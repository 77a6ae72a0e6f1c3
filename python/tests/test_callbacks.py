"""Callbacks of futures that wait for others, and PyTorch's own hooks of DistributedDataParallel, which do."""

import os
import tempfile
import threading
import time
import unittest
from pathlib import Path

import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError, callbacks, run
from sidecars import PROGRAM, Sidecars, needed
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def chained(depth):
    """A callback that waits for a future whose callback waits for one, and so on."""
    order = []

    def go_on(left):
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        if left == 0:
            return future

        def then(done):
            value = done.value()[0][0].item()
            inner = go_on(left - 1).wait()
            order.append(left)
            return [torch.full((3,), value + (inner[0][0].item()))]

        return future.then(then)

    total = go_on(depth).wait()[0][0].item()
    return total, order


def chains(depths):
    """A chain of each depth."""
    return [chained(depth) for depth in depths]


def chained_messages():
    """The callback of a message waits for the next message, and for a collective."""
    other = 1 - dist.get_rank()
    first, second = torch.zeros(2), torch.zeros(2)
    dist.isend(torch.ones(2), other, tag=1)
    dist.isend(torch.full((2,), 2.0), other, tag=2)
    message = dist.irecv(first, other, tag=1)

    def then(done):
        dist.irecv(second, other, tag=2).get_future().wait()
        message.wait()
        return dist.all_reduce(done.value()[0] + second, async_op=True).get_future().wait()

    return message.get_future().then(then).wait()[0].tolist()


def in_order():
    """Callbacks of one future are called in the order in which they were attached, and one that raises stops none."""
    order = []
    future = dist.all_reduce(torch.ones(1 << 18), async_op=True).get_future()
    for number in range(20):
        future.add_done_callback(lambda _, number=number: order.append(number))

    def fails(done):
        raise ValueError("of the script")

    failed = future.then(fails)
    last = failed.then(lambda done: len(order))
    try:
        failed.wait()
    except Exception as error:
        text = str(error)
    dist.barrier()
    return order, text, last.wait()


def ended_within():
    """A group is destroyed while a callback waits for what never comes."""
    group = dist.new_group(backend="hfreduce")
    never, inside = torch.futures.Future(), threading.Event()

    def wait(done):
        inside.set()
        return never.wait()

    dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().then(wait)
    inside.wait()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group(group)
    child = os.fork()
    if child == 0:
        os._exit(0 if callbacks.drain(1.0) is None else 1)
    forked = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    dist.destroy_process_group()
    never.set_result([])
    return tensor.item(), forked


WAITS_FOR_EVER = """
import sys, threading
import torch, torch.distributed as dist
dist.init_process_group("hfreduce")
never, inside = torch.futures.Future(), threading.Event()

def wait(done):
    inside.set()
    return never.wait()

dist.all_reduce(torch.ones(1), async_op=True).get_future().then(wait)
inside.wait()
dist.barrier()
open(f"{sys.argv[1]}/left-{dist.get_rank()}", "w").close()
"""


class Model(torch.nn.Module):
    """Large enough for PowerSGD to compress it, in one bucket: over gloo, too, hooks that reduce inside callbacks take turns with other buckets by chance."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 128),
            torch.nn.Tanh(),
            torch.nn.Linear(128, 64),
            torch.nn.Linear(64, 8),
        )

    def forward(self, given):
        return self.layers(given)


def power(hook, **options):
    def register(model):
        # What it orthogonalizes is drawn from the seed.
        state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=2, start_powerSGD_iter=2, **options
        )
        model.register_comm_hook(state, hook)

    return register


def plain(hook):
    return lambda model: model.register_comm_hook(dist.group.WORLD, hook)


def local(model):
    subgroup, _ = dist.new_subgroups(group_size=dist.get_world_size())
    state = post_localSGD_hook.PostLocalSGDState(dist.group.WORLD, subgroup, start_localSGD_iter=3)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)


#: Not PyTorch's batched PowerSGD, which fails over gloo, too.
HOOKS = {
    "allreduce": plain(default_hooks.allreduce_hook),
    "fp16": plain(default_hooks.fp16_compress_hook),
    "bf16": plain(default_hooks.bf16_compress_hook),
    "wrapped fp16": plain(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    "wrapped bf16": plain(default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)),
    "noop": plain(debugging_hooks.noop_hook),
    "powerSGD": power(powerSGD_hook.powerSGD_hook),
    "powerSGD warm": power(powerSGD_hook.powerSGD_hook, warm_start=False, use_error_feedback=False),
    "post-local SGD": local,
    "quantized by tensor": plain(quantization_hooks.quantization_pertensor_hook),
    "quantized by channel": plain(quantization_hooks.quantization_perchannel_hook),
}


def train(names):
    """The gradients of each step under each hook, or the text of its error."""
    results = {}
    for name in names:
        try:
            results[name] = train_with(HOOKS[name])
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results


def train_with(register):
    model = DistributedDataParallel(Model(), bucket_cap_mb=25)
    register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gradients = []
    for step in range(STEPS):
        torch.manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        gradients.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
        optimizer.step()
    return torch.stack(gradients).numpy()


class CallbacksTest(unittest.TestCase):
    def test_a_callback_that_runs_for_long_is_passed_and_at_the_bound_futures_become_errors(self):
        level = callbacks.Level(0, beside=2, patience_seconds=0.05)
        release, refused, told = threading.Event(), [], threading.Event()

        def blocked(error):
            release.wait()

        def late(error):
            refused.append(error)
            if len(refused) == 3:
                told.set()

        with self.assertLogs("fireflyer", "WARNING") as logs:
            for resolve in (blocked, blocked, late, late, late):
                level.run(resolve)
            self.assertTrue(told.wait(60))
        self.assertIn("the next one begins beside it", logs.output[0])
        for error in refused:
            self.assertIsInstance(error, HFReduceError)
            self.assertRegex(
                str(error), "2 callbacks of futures run, and none has ended for 0.05 s"
            )
        release.set()
        level.drain(time.monotonic() + 60)
        after = []
        level.run(after.append)
        level.drain(time.monotonic() + 60)
        self.assertEqual(after, [None])

    def test_callbacks_inside_sixteen_others_take_turns(self):
        depths, is_over = [], threading.Event()

        def go_on(error):
            depths.append(callbacks.depth())
            if len(depths) == 18:
                is_over.set()
            else:
                callbacks.run(go_on, callbacks.depth())

        callbacks.run(go_on, callbacks.depth())
        self.assertTrue(is_over.wait(60))
        self.assertEqual(depths, [*range(1, 17), 16, 16])

    def test_callbacks_of_a_depth_run_one_after_another_in_order(self):
        level, order = callbacks.Level(0, patience_seconds=60), []
        inside = threading.Lock()

        def resolve(number):
            def called(error):
                self.assertTrue(inside.acquire(blocking=False))
                order.append(number)
                inside.release()

            return called

        for number in range(500):
            level.run(resolve(number))
        level.drain(time.monotonic() + 60)
        self.assertEqual(order, list(range(500)))

    @needed
    def test_callbacks_that_wait_for_others_end_to_any_depth(self):
        depths = (1, 2, 3, 12)
        with Sidecars(2, 1) as sidecars:
            for ends in gang.successes(sidecars.run(chains, depths)):
                for depth, (total, order) in zip(depths, ends):
                    self.assertEqual(total, 2.0 * (depth + 1))
                    self.assertEqual(order, list(range(1, depth + 1)))

    @needed
    def test_callbacks_of_messages_wait_for_others(self):
        with Sidecars(2, 1) as sidecars:
            for value in gang.successes(sidecars.run(chained_messages)):
                self.assertEqual(value, [6.0, 6.0])

    @needed
    def test_callbacks_of_a_future_keep_their_order_and_one_that_raises_stops_none(self):
        with Sidecars(2, 1) as sidecars:
            for order, text, seen in gang.successes(sidecars.run(in_order)):
                self.assertEqual((order, seen), (list(range(20)), 20))
                self.assertIn("of the script", text)

    @needed
    def test_a_callback_that_waits_for_ever_keeps_neither_a_group_nor_a_child_nor_an_end(self):
        with Sidecars(2, 1) as sidecars:
            for ends in gang.successes(sidecars.run(ended_within)):
                self.assertEqual(ends, (2.0, 0))

    @needed
    def test_a_process_ends_while_a_callback_waits_for_ever(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(WAITS_FOR_EVER)
            status = run.main(["run", "-n", "2", "--sidecar", PROGRAM, str(script), folder])
            self.assertEqual(status, 0)
            self.assertEqual(len(list(Path(folder).glob("left-*"))), 2)

    @needed
    def test_every_hook_of_pytorch_comes_to_what_it_comes_to_over_gloo(self):
        names = list(HOOKS)
        with Sidecars(2, 1) as sidecars:
            ours = gang.successes(sidecars.run(train, names))
        theirs = gang.successes(gang.run(train, 2, names))
        worked = 0
        for name in names:
            for mine, other in zip(ours, theirs):
                if isinstance(other[name], str):
                    continue  # Older versions of PyTorch quantize on a GPU only.
                worked += 1
                with self.subTest(name):
                    self.assertNotIsInstance(mine[name], str, mine[name])
                    torch.testing.assert_close(
                        torch.from_numpy(mine[name]),
                        torch.from_numpy(other[name]),
                        rtol=2e-2,
                        atol=1e-5,
                    )
        # The least that any version with tests can do over gloo.
        self.assertGreaterEqual(worked, 2 * 7)
