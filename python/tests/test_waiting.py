"""What waits lets others go on meanwhile: signal handlers of the script, and its other threads."""

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError, _native, connection
from fireflyer.call import Call
from sidecars import Sidecars, needed

#: A handler that comes later has waited for what it was to interrupt, in seconds.
_SOON_SECONDS = 2.0
#: How long a call may take that nobody interrupts.
_LONG_SECONDS = 20.0
#: Bytes whose copy takes long.
_LARGE_BYTES = 64 << 20
#: Turns that another thread has at least during a copy of as many bytes, which takes ten thousand times as long as a turn.
_TURNS = 100
#: Copies of which one must leave another thread its turns: on a busy machine it may not get a processor.
_ATTEMPTS = 200


def interrupted(call):
    """Whether a call that would wait for long ends soon after Ctrl-C."""
    # Whoever has started this may have made it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - start < 0.3 + _SOON_SECONDS
    finally:
        timer.join()
    return False


def fill_the_queue():
    """Rank 0 calls more than may be in flight, and is interrupted; then all go on as if it had not."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    tensors = [torch.full((4,), float(rank + step)) for step in range(100)]
    works = []

    def call():
        while len(works) < len(tensors):
            works.append(dist.all_reduce(tensors[len(works)], async_op=True))

    is_soon = interrupted(call) if rank == 0 else True
    in_flight = len(works)
    if rank == 0:
        store.set("interrupted", "1")
    store.wait(["interrupted"])
    call()
    for work in works:
        work.wait()
    right = all(tensor.eq(2 * step + 1).all() for step, tensor in enumerate(tensors))
    return is_soon, right, 0 < in_flight < len(tensors) or rank > 0


def open_alone():
    """Rank 0 opens a group that rank 1 does not open before it was interrupted."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    client = dist.group.WORLD.communicator.client
    if rank == 0:
        is_soon = interrupted(lambda: client.open(7, [0, 1], False, _LONG_SECONDS))
        store.set("interrupted", "1")
    else:
        store.wait(["interrupted"])
        # It was asked for once, so it stands.
        is_soon = client.open(7, [0, 1], False, _LONG_SECONDS).size == 2
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return is_soon, tensor.item()


def ask_who_is_frozen(process):
    """Memory is asked for of a sidecar that does not answer."""
    client = dist.group.WORLD.communicator.client
    os.kill(process, signal.SIGSTOP)
    try:
        tensor = torch.ones(1 << 20)
        soon = [
            interrupted(lambda: dist.all_reduce(tensor)),
            interrupted(lambda: client.arena(3 << 20, _LONG_SECONDS)),
        ]
    finally:
        os.kill(process, signal.SIGCONT)
    dist.all_reduce(tensor)
    return soon, bool(tensor.eq(1).all()), len(client.arena(3 << 20, _LONG_SECONDS)) >= 3 << 20


def attach_to_nobody():
    """A socket on which nobody answers, and one that is not there."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener,
    ):
        path = Path(folder) / "hfreduce.sock"
        listener.bind(str(path))
        listener.listen(1)
        paths = path, Path(folder) / "missing"
        return [
            interrupted(lambda path=path: _native.Client.attach(path, 0, _LONG_SECONDS))
            for path in paths
        ]


class Turns:
    """Another thread, whose turns are counted."""

    def __enter__(self):
        self.count, self.is_over = 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *raised):
        self.is_over = True
        self.thread.join()

    def run(self):
        while not self.is_over:
            self.count += 1
            time.sleep(0)


def fill_the_queue_of_a_gpu():
    """The error of one turn more than may wait while the thread has another, and turns that were had at the end."""
    queue = _native.GpuQueue(dist.group.WORLD.communicator.client)
    began, release, had = threading.Event(), threading.Event(), []

    def hold():
        began.set()
        release.wait()

    queue.run(hold, _LONG_SECONDS)
    began.wait()
    for number in range(256):
        queue.run(lambda number=number: had.append(number), _LONG_SECONDS)
    try:
        queue.run(lambda: had.append("one more"), 0.05)
        error = ""
    except HFReduceError as raised:
        error = str(raised)
    release.set()
    is_over = threading.Event()
    queue.run(is_over.set, _LONG_SECONDS)
    is_over.wait()
    return error, had == list(range(256))


def attach_too_long():
    """The error where nobody answers in time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener,
        mock.patch.object(connection, "ATTACH_SECONDS", 0.05),
        mock.patch.dict(os.environ, FIREFLYER_RUN_DIR=folder),
    ):
        listener.bind(f"{folder}/{connection.SOCKET}")
        listener.listen(1)
        try:
            connection.attach(0, 1)
        except HFReduceError as error:
            return str(error)


def copy_beside_a_thread():
    """The most turns of another thread during a copy to the sidecar, and during one from it."""
    client = dist.group.WORLD.communicator.client
    tensor = torch.ones(_LARGE_BYTES, dtype=torch.uint8)
    content = memoryview(tensor.numpy())
    call, most = Call("allreduce", "u8", _LARGE_BYTES), [0, 0]
    with Turns() as turns:
        for attempt in range(_ATTEMPTS):
            before = turns.count
            ticket = client.call(call, content, timeout=_LONG_SECONDS)
            most[0] = max(most[0], turns.count - before if attempt > 0 else 0)
            while not client.test(ticket):
                time.sleep(0.001)
            before = turns.count
            client.wait(ticket, content, timeout=_LONG_SECONDS)
            most[1] = max(most[1], turns.count - before)
            if min(most) >= _TURNS:
                break
    return most, bool(tensor.eq(1).all())


@needed
class InterruptTest(unittest.TestCase):
    def test_a_call_that_finds_no_room_is_interrupted_and_none_is_lost_or_made_twice(self):
        with Sidecars(1, 2) as sidecars:
            results = gang.successes(sidecars.run(fill_the_queue))
        self.assertEqual(results, [(True, True, True)] * 2)

    def test_who_opens_a_group_alone_is_interrupted_and_has_asked_for_it_once(self):
        with Sidecars(1, 2) as sidecars:
            results = gang.successes(sidecars.run(open_alone))
        self.assertEqual(results, [(True, 2.0)] * 2)

    def test_who_asks_a_frozen_sidecar_for_memory_is_interrupted_and_gets_it_later(self):
        with Sidecars(1, 1) as sidecars:
            process = sidecars.processes[0].pid
            results = gang.successes(sidecars.run(ask_who_is_frozen, process))
        self.assertEqual(results, [([True, True], True, True)])

    def test_who_waits_for_a_sidecar_to_answer_is_interrupted(self):
        results = gang.successes(gang.run(attach_to_nobody, 1, backend=None))
        self.assertEqual(results, [[True, True]])


@needed
class QueueTest(unittest.TestCase):
    def test_who_begins_more_than_may_wait_for_a_gpu_waits(self):
        with Sidecars(1, 1) as sidecars:
            ((error, is_whole),) = gang.successes(sidecars.run(fill_the_queue_of_a_gpu))
        self.assertIn("failed to call a collective of tensors on a GPU: timed out", error)
        self.assertTrue(is_whole)


class AttachTest(unittest.TestCase):
    def test_a_sidecar_that_does_not_answer_is_an_error(self):
        (error,) = gang.successes(gang.run(attach_too_long, 1, backend=None))
        self.assertIn("no answer from the sidecar after ", error)


@needed
class CopyTest(unittest.TestCase):
    def test_other_threads_run_while_large_tensors_are_copied(self):
        with Sidecars(1, 1) as sidecars:
            most, is_right = gang.successes(sidecars.run(copy_beside_a_thread))[0]
        self.assertTrue(is_right)
        self.assertGreaterEqual(min(most), _TURNS, most)


if __name__ == "__main__":
    unittest.main()
