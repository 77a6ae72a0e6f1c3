"""Handles of operations in flight, and what a forked child may do with them: 2 nodes of 2 ranks on the loopback."""

import gc
import os
import signal
import time
import unittest
from datetime import timedelta

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError
from fireflyer.call import Call
from sidecars import Sidecars, needed


def error_of(do):
    """What `do` raises, or nothing."""
    try:
        do()
    except (HFReduceError, RuntimeError) as raised:
        return f"{type(raised).__name__}: {raised}"
    return None


def in_flight():
    """Rank 3 calls later than the others: their handles say so."""
    rank = dist.get_rank()
    tensor = torch.ones(1000)
    if rank == 3:
        # All others have looked at theirs.
        dist.distributed_c10d._get_default_store().wait(["looked-0", "looked-1", "looked-2"])
    work = dist.all_reduce(tensor, async_op=True)
    seen = []
    future = work.get_future().then(lambda value: value.value()[0].sum().item())
    if rank != 3:
        seen = [
            work.is_completed(),
            work.is_success(),
            work.exception(),
            error_of(lambda: work.wait(timedelta(milliseconds=20))),
        ]
        dist.distributed_c10d._get_default_store().set(f"looked-{rank}", "1")
    # A wait that ran out of time takes nothing away.
    waited = work.wait(timedelta(seconds=60))
    after = [work.is_completed(), work.is_success(), work.exception(), work.result()[0] is tensor]
    return seen, waited, after, future.wait(), tensor[7].item()


def failed():
    """A call that fails, as each part of its handle raises it."""
    tensor = torch.ones(4 + dist.get_rank() % 2)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    errors = [
        error_of(work.wait),
        error_of(work.wait),
        error_of(future.wait),
        str(work.exception()),
    ]
    return errors, work.is_completed(), work.is_success()


def left_alone():
    """Small operations that nobody waits for one by one: of a later one's end all are over, and handles that are only
    asked, or that have a future, come to theirs by themselves."""
    tensors = [torch.full((3,), float(at)) for at in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    works[-1].wait()
    sums = [tensor[0].item() for tensor in tensors]
    asked, promised = torch.ones(1), torch.ones(1)
    work = dist.all_reduce(asked, async_op=True)
    future = dist.all_reduce(promised, async_op=True).get_future()
    total = future.then(lambda value: value.value()[0].item()).wait()
    end = time.monotonic() + 60
    while not work.is_completed():
        if time.monotonic() > end:
            raise AssertionError("an operation that is only asked for never ends")
    return sums, all(one.is_completed() for one in works), asked.item(), total


class Interrupted(Exception):
    """What the handler of a signal raises."""


def interrupted():
    """Rank 1 calls when a signal's handler has run in rank 0, which waits for it."""
    tensor, store = torch.ones(3), dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["handled"])
        dist.all_reduce(tensor)
        return tensor.tolist()

    def handle(number, frame):
        store.set("handled", "1")
        raise Interrupted

    signal.signal(signal.SIGALRM, handle)
    work = dist.all_reduce(tensor, async_op=True)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        work.wait()
    except Interrupted:
        work.wait()  # What was interrupted is waited for again.
        return tensor.tolist()
    raise AssertionError("nobody was interrupted")


class Samples(torch.utils.data.Dataset):
    """A data set whose workers try what they must not, once each."""

    def __init__(self, tries):
        self._tries = tries

    def __len__(self):
        return 16

    def __getitem__(self, at):
        errors = [error_of(one) or "nothing" for one in self._tries]
        gc.collect()
        return torch.full((3,), float(at)), errors


def beside_workers():
    """Trains with the workers of a DataLoader, forked while an operation is in flight and a group lives."""
    layers = torch.nn.Linear(3, 2)
    arena = fireflyer.Arena(layers)
    client = dist.group.WORLD.communicator.client
    before = dist.all_reduce(torch.ones(5), async_op=True)
    samples = Samples(
        [
            lambda: dist.all_reduce(torch.ones(1)),
            lambda: dist.broadcast(torch.ones(1, dtype=torch.complex64), src=0),
            dist.barrier,
            before.wait,
            arena.wait,
            arena.zero_grad,
            lambda: client.call(Call("barrier"), None, timeout=1.0),
            client.close,
        ]
    )
    errors, steps = set(), 0
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            samples, batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        for batch, texts in loader:
            arena.zero_grad()
            layers(batch).sum().backward()
            arena.wait()
            assert layers.bias.grad.eq(4).all()
            errors |= {(at, text) for at, one in enumerate(texts) for text in one}
            steps += 1
    before.wait()
    # Workers have come and gone; one more child ends as an interpreter does, with all that is registered.
    child = os.fork()
    if child == 0:
        try:
            del arena, client, samples, before
            gc.collect()
            import sys

            sys.exit(0)
        except SystemExit:
            import atexit

            atexit._run_exitfuncs()
            os._exit(7)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return sorted(errors), steps, ended, tensor.item()


@needed
class AsyncTest(unittest.TestCase):
    def gang(self, nodes=2, procs=2):
        return self.enterContext(Sidecars(nodes, procs))

    def test_a_handle_says_before_and_after_and_a_wait_can_run_out_of_time(self):
        results = gang.successes(self.gang().run(in_flight))
        for rank, (seen, waited, after, future, value) in enumerate(results):
            if rank != 3:
                self.assertEqual(seen[:3], [False, False, None])
                self.assertRegex(seen[3], "HFReduceError: .*timed out after 0.02 s")
            self.assertTrue(waited)
            self.assertEqual(after, [True, True, None, True])
            self.assertEqual((future, value), (4000.0, 4.0))

    def test_a_failure_is_raised_by_every_part_of_a_handle_and_every_time(self):
        for errors, completed, success in gang.successes(self.gang().run(failed)):
            for text in errors:
                self.assertIn("ranks disagree", text)
            self.assertIn("HFReduceError", errors[2])
            self.assertEqual((completed, success), (True, False))

    def test_who_waits_for_one_ends_those_before_it_and_what_is_only_asked_for_ends_by_itself(self):
        for sums, over, asked, promised in gang.successes(self.gang().run(left_alone)):
            self.assertEqual(sums, [4.0 * at for at in range(200)])
            self.assertEqual((over, asked, promised), (True, 4.0, 4.0))

    def test_a_signal_is_handled_while_a_rank_waits_and_it_can_wait_again(self):
        for value in gang.successes(self.gang(1, 2).run(interrupted)):
            self.assertEqual(value, [2.0] * 3)

    def test_workers_of_a_data_loader_get_an_error_and_their_parent_trains_on(self):
        for errors, steps, ended, value in gang.successes(self.gang().run(beside_workers)):
            by_try = dict(errors)
            self.assertEqual(len(by_try), 8)
            self.assertEqual(steps, 8)
            for at, text in by_try.items():
                self.assertRegex(text, "HFReduceError: failed to .* in process", f"try {at}")
                self.assertRegex(text, "DataLoader workers|after fork", f"try {at}")
            self.assertEqual((ended, value), (7, 4.0))
