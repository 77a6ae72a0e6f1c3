"""Tensors on a GPU, on a stand-in for its driver that runs streams late and in a drawn order, over real sidecars.

FIREFLYER_FAKE_CUDA names the stand-in. PyTorch knows nothing of its memory, so these tests act below it, by addresses.
"""

import ctypes
import os
import sys
import threading
import types
import unittest

import fireflyer.work
import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError, gpu
from fireflyer.call import Call
from fireflyer.shared import MemoryPool
from fireflyer.work import HFReduceWork
from sidecars import Sidecars, needed

DRIVER = os.environ.get("FIREFLYER_FAKE_CUDA", "")
SEEDS = 30
COUNT = 10_000


def driver():
    """The stand-in's functions for tests."""
    fake = ctypes.CDLL(DRIVER)
    for name in ("alloc", "stream", "alive", "waits"):
        getattr(fake, f"fake_{name}").restype = ctypes.c_uint64
    return fake


def u64(number):
    return ctypes.c_uint64(number)


def read(fake, pointer):
    """The different bytes of a tensor, when all streams have done their work."""
    into = (ctypes.c_uint8 * COUNT)()
    fake.fake_read(u64(pointer), into, ctypes.c_size_t(COUNT))
    return sorted(set(into))


def open_transfers(fake, seed):
    comm = dist.group.WORLD.communicator
    fake.fake_seed(u64(seed), ctypes.c_int(seed % 2))
    comm._gpu_transfers = gpu.GpuTransfers(comm.client, None, comm._completer, 60.0, DRIVER)
    return comm._gpu_transfers


def reduce_on_gpu():
    """Sums by kernels, copies and sidecars, with calls of the host's tensors in between."""
    gpu.PART_BYTES = 4096
    fake, rank = driver(), dist.get_rank()
    for seed in range(SEEDS):
        transfers = open_transfers(fake, 1 + seed * 4 + rank)
        for _ in range(3):
            producer, consumer = fake.fake_stream(), fake.fake_stream()
            tensors = [fake.fake_alloc(ctypes.c_size_t(COUNT), 99) for _ in range(3)]
            works = []
            for at, tensor in enumerate(tensors):
                fake.fake_fill(u64(producer), u64(tensor), ctypes.c_size_t(COUNT), rank + at)
                work = HFReduceWork("allreduce", [])
                call = Call("allreduce", "u8", COUNT)
                steps = gpu.cut(call, gpu.Rank(rank, 4), [tensor], [tensor])
                gate = transfers.run(work, 0, steps, producer)
                host = torch.full((10,), float(rank))
                works.append((work, gate, dist.all_reduce(host, async_op=True), host))
            for at, (tensor, (work, gate, host_work, host)) in enumerate(zip(tensors, works)):
                work.wait()
                gate(consumer)
                out = fake.fake_alloc(ctypes.c_size_t(COUNT), 0)
                fake.fake_copy(u64(consumer), u64(tensor), u64(out), ctypes.c_size_t(COUNT))
                host_work.wait()
                assert host.eq(6).all(), host
                assert read(fake, out) == [6 + 4 * at], (seed, at, read(fake, out))
    return True


class OnGpu:
    """What the group asks of a tensor on a GPU, of bytes in the stand-in's memory."""

    is_cuda = True
    dtype = torch.uint8
    device = torch.device("cuda:0")

    def __init__(self, fake, count, pointer=None):
        self.fake, self.count = fake, count
        self.pointer = fake.fake_alloc(ctypes.c_size_t(count), 99) if pointer is None else pointer

    def data_ptr(self):
        return self.pointer

    def numel(self):
        return self.count

    def element_size(self):
        return 1

    def is_contiguous(self):
        return True

    def is_floating_point(self):
        return False

    def rows(self, size):
        """Its equal parts, one for each rank."""
        count = self.count // size
        rows = [OnGpu(self.fake, count, self.pointer + row * count) for row in range(size)]
        for row in rows:
            row.whole = self
        return rows

    def fill(self, stream, value):
        self.fake.fake_fill(u64(stream), u64(self.pointer), ctypes.c_size_t(self.count), value)

    def copy(self, stream):
        """What a kernel of this stream finds in it."""
        out = OnGpu(self.fake, self.count)
        count = ctypes.c_size_t(self.count)
        self.fake.fake_copy(u64(stream), u64(self.pointer), u64(out.pointer), count)
        return out

    def read(self):
        into = (ctypes.c_uint8 * self.count)()
        self.fake.fake_read(u64(self.pointer), into, ctypes.c_size_t(self.count))
        return sorted(set(into))


class Reused(OnGpu):
    """One whose memory PyTorch's allocator gives to the next kernel of its stream, once nobody holds it."""

    stream = 0

    def __del__(self):
        self.fake.fake_free(u64(self.stream), u64(self.pointer), ctypes.c_size_t(self.count))


def moved_on_gpu():
    """Every collective between tensors that kernels fill just before, on streams that run late."""
    gpu.PART_BYTES = 4096
    fake, rank, group = driver(), dist.get_rank(), dist.group.WORLD
    current = types.SimpleNamespace(cuda_stream=0)
    torch.cuda.current_stream = lambda device: current
    for seed in range(SEEDS):
        open_transfers(fake, 1 + seed * 4 + rank)
        # Training runs on the default stream, or on one of its own.
        producer, consumer = (0, fake.fake_stream())[:: 1 if seed % 2 else -1]
        sent, part, row = (OnGpu(fake, COUNT) for _ in range(3))
        gathered, lists, root = (OnGpu(fake, 4 * COUNT) for _ in range(3))
        small, apart, whole = (Reused(fake, size * COUNT) for size in (1, 1, 4))
        # Who did not wait for its stream would be written over by these.
        for tensor in (part, row, gathered, lists):
            tensor.fill(producer, 50)
        for tensor in (sent, small, apart, root):
            tensor.fill(producer, rank + 1)
        for place, one in enumerate(whole.rows(4)):
            one.fill(producer, place + rank)
        current.cuda_stream = producer
        small.stream = apart.stream = whole.stream = producer
        works = [
            group.broadcast([sent], root=2),
            group._allgather_base(gathered, small),
            group.allgather([lists.rows(4)], [apart]),
            group._reduce_scatter_base(part, whole),
            group.reduce_scatter([row], [whole.rows(4)]),
            group.reduce([root], root=1),
        ]
        # Whoever calls drops its inputs, which nobody has read yet.
        del small, apart, whole, one
        current.cuda_stream = consumer
        for work in works:
            work.wait()
        seen = [one.copy(consumer) for one in (sent, part, row, root)]
        rows = [one.copy(consumer) for one in (*gathered.rows(4), *lists.rows(4))]
        values = [one.read() for one in seen]
        shared, summed = [4 * rank + 6], [10] if rank == 1 else [rank + 1]
        assert values == [[3], shared, shared, summed], (seed, values)
        assert [one.read() for one in rows] == [[1], [2], [3], [4]] * 2, seed
    return {f"fireflyer.{name}" for name in ("link", "nvlink", "pairs")} & set(sys.modules)


class OnStream:
    """As `torch.cuda.stream`, of what `torch.cuda.current_stream` gives on this thread."""

    current = threading.local()

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.before, self.current.stream = getattr(self.current, "stream", None), self.stream

    def __exit__(self, *_error):
        self.current.stream = self.before


def resolved_on_gpu():
    """Futures of tensors, as DDP asks for them: how often the default stream was made to wait for one."""
    gpu.PART_BYTES = 4096
    fake, group = driver(), dist.group.WORLD
    default = types.SimpleNamespace(cuda_stream=0)
    torch.cuda.current_stream = lambda device: getattr(OnStream.current, "stream", None) or default
    torch.cuda.stream = OnStream
    torch.cuda.Stream = lambda device: types.SimpleNamespace(cuda_stream=fake.fake_stream())
    # This PyTorch knows no GPU that one could belong to.
    futures = types.SimpleNamespace(Future=lambda *, devices: torch.futures.Future())
    fireflyer.work.torch = types.SimpleNamespace(futures=futures)
    open_transfers(fake, 1 + dist.get_rank())
    before = fake.fake_waits(u64(0))
    for _ in range(SEEDS):
        tensor = OnGpu(fake, COUNT)
        tensor.fill(0, dist.get_rank())
        future = group.broadcast([tensor], root=0).get_future()
        future.wait()
        assert future.value() == [tensor]
        assert tensor.read() == [0]
    return fake.fake_waits(u64(0)) - before


def pooled():
    """Memory that is used again, and memory that is not kept."""
    pool = MemoryPool(dist.group.WORLD.communicator.client, 60.0)
    one, other = pool.take(100_000), pool.take(100_001)
    assert one is not other and one.nbytes == other.nbytes < 112_501
    pool.give_back(one)
    assert pool.take(99_000) is one
    pool.give_back(one)
    pool.give_back(other)
    large = pool.take(300_000)
    # No more than this was ever in use at once.
    pool.give_back(large)
    assert pool.take(300_000) is large
    fresh = pool.take(100_000)
    assert fresh is not one and fresh is not other
    return True


def refused_on_gpu():
    """A graph that is captured, and sizes that differ; then all agree again."""
    gpu.PART_BYTES = 1 << 20
    fake, rank = driver(), dist.get_rank()
    transfers = open_transfers(fake, 5)
    stream = fake.fake_stream()
    tensor = fake.fake_alloc(ctypes.c_size_t(COUNT), rank)

    def reduce(count):
        work = HFReduceWork("allreduce", [])
        call = Call("allreduce", "u8", count, "max")
        steps = gpu.cut(call, gpu.Rank(rank, 4), [tensor], [tensor])
        gate = transfers.run(work, 0, steps, stream)
        work.wait()
        gate(stream)

    errors = []
    for count, captures in ((COUNT, 1), (COUNT - rank % 2, 0)):
        fake.fake_capture(u64(stream), captures)
        try:
            reduce(count)
        except HFReduceError as raised:
            errors.append(str(raised))
    reduce(COUNT)
    return errors, read(fake, tensor)


@needed
@unittest.skipUnless(DRIVER, "FIREFLYER_FAKE_CUDA names no stand-in for the GPU's driver")
class GpuTest(unittest.TestCase):
    def gang(self, nodes=2, procs=2):
        return self.enterContext(Sidecars(nodes, procs))

    def test_tensors_are_summed_whatever_order_streams_run_in(self):
        self.assertEqual(gang.successes(self.gang().run(reduce_on_gpu)), [True] * 4)

    def test_every_collective_moves_tensors_whatever_order_streams_run_in(self):
        # And nothing of NVLinks is imported, which nobody has asked for.
        self.assertEqual(gang.successes(self.gang().run(moved_on_gpu)), [set()] * 4)

    def test_memory_is_used_again_and_kept_as_far_as_it_was_in_use_at_once(self):
        self.assertEqual(gang.successes(self.gang(1, 1).run(pooled)), [True])

    def test_who_resolves_a_future_does_not_make_the_default_stream_wait(self):
        self.assertEqual(gang.successes(self.gang().run(resolved_on_gpu)), [0] * 4)

    def test_what_cannot_be_is_an_error_and_the_next_call_works(self):
        for errors, values in gang.successes(self.gang().run(refused_on_gpu)):
            self.assertIn("outside of torch.cuda.graph", errors[0])
            self.assertIn("ranks disagree", errors[1])
            self.assertEqual(values, [3])


class WithoutDriverTest(unittest.TestCase):
    def test_a_machine_without_a_gpu_says_what_is_missing(self):
        from fireflyer._native import Gpu

        with self.assertRaisesRegex(
            HFReduceError, "failed to load /nonexistent.*container runtime"
        ):
            Gpu(0, "/nonexistent/libcuda.so.1")
