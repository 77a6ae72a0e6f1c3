"""Allreduce over pairs of GPUs that share an NVLink, on a stand-in for the driver whose streams run late and in a drawn
order: two real processes for each pair, and real sidecars.

PyTorch knows nothing of the stand-in's memory, so these tests act below it, by addresses.
"""

import ctypes
import os
import signal
import socket
import threading
import types
import unittest
import unittest.mock

import gang
import numpy
import test_gpu
import torch
import torch.distributed as dist
from fireflyer import HFReduceError, Options, creation, gpu, link, nvlink, pairs
from fireflyer.call import Call
from fireflyer.pairs import GpuRecord, Policy, match
from fireflyer.work import HFReduceWork
from sidecars import Sidecars, needed
from test_gpu import DRIVER, driver, u64

SEEDS = 12
#: The stand-in's words for element types, and NumPy's for what holds them.
TYPES = {"f32": numpy.float32, "i64": numpy.int64, "u8": numpy.uint8}


class Rank:
    """A process with a GPU of the stand-in's."""

    def __init__(self, part_bytes=1024, linked=True, least_bytes=0):
        gpu.PART_BYTES = part_bytes
        self.fake, self.group = driver(), dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local = int(os.environ["LOCAL_RANK"])
        node = hash_of(os.environ["FIREFLYER_RUN_DIR"])
        self.fake.fake_links(u64(node), ctypes.c_int(8 if linked else 1))
        self.ordinal = self.local if linked else 0
        policy = Policy(least_bytes, list(range(self.size)), (71, 72), True)
        self.comm = comm = self.group.communicator
        self.transfers = gpu.GpuTransfers(
            comm.client, None, comm._completer, 60.0, DRIVER, policy=policy
        )

    def seed(self, seed):
        self.fake.fake_seed(u64(1 + seed * self.size + self.rank), ctypes.c_int(seed % 2))

    def tensor(self, stream, content):
        """A tensor that a kernel writes late."""
        raw = numpy.ascontiguousarray(content).view(numpy.uint8)
        start = self.fake.fake_alloc(ctypes.c_size_t(raw.size), 99)
        place = raw.ctypes.data_as(ctypes.c_void_p)
        self.fake.fake_write(u64(stream), u64(start), place, ctypes.c_size_t(raw.size))
        return start

    def begin(self, start, count, dtype, stream, **said):
        """An allreduce, as the transfers take it; none where it does not go over an NVLink."""
        call = Call("allreduce", dtype, count, **said)
        bridge = self.transfers._crosses(call, self.ordinal)
        if bridge is None:
            return None
        work = HFReduceWork("allreduce", [])
        return work, self.transfers.run_over(work, bridge, call, start, stream)

    def end(self, begun, start, count, dtype):
        """What a kernel of another stream finds, that waits as PyTorch has it wait."""
        work, gate = begun
        work.wait()
        consumer = self.fake.fake_stream()
        gate(consumer)
        nbytes = ctypes.c_size_t(count * numpy.dtype(TYPES[dtype]).itemsize)
        out = self.fake.fake_alloc(nbytes, 0)
        self.fake.fake_copy(u64(consumer), u64(start), u64(out), nbytes)
        into = numpy.empty(count, TYPES[dtype])
        self.fake.fake_read(u64(out), into.ctypes.data_as(ctypes.c_void_p), nbytes)
        return into

    def reduce(self, content, dtype, **said):
        stream = self.fake.fake_stream()
        start = self.tensor(stream, content)
        begun = self.begin(start, len(content), dtype, stream, **said)
        return self.end(begun, start, len(content), dtype)


def hash_of(text):
    return int.from_bytes(text.encode()[-7:], "little")


def content(rank, count, dtype, salt):
    """Small whole numbers, whose sums are exact in every type, different at every place."""
    return ((numpy.arange(count) * 7 + rank * 3 + salt) % 11).astype(TYPES[dtype])


def sums():
    """Several tensors at once, of sizes that halves and parts do not divide, in every order that seeds draw."""
    one = Rank()
    for seed in range(SEEDS):
        one.seed(seed)
        for dtype in TYPES:
            begun = []
            for salt, count in enumerate((2, 3, 255, 513, 4999)):
                stream = one.fake.fake_stream()
                start = one.tensor(stream, content(one.rank, count, dtype, salt))
                begun.append((start, count, one.begin(start, count, dtype, stream)))
            for salt, (start, count, work) in enumerate(begun):
                found = one.end(work, start, count, dtype)
                expected = sum(content(rank, count, dtype, salt) for rank in range(one.size))
                assert (found == expected).all(), (seed, dtype, count, found, expected)
    return True


def operators():
    """The same numbers as without an NVLink."""
    one = Rank()
    one.seed(3)
    own = [content(rank, 1000, "f32", 5) for rank in range(one.size)]
    total = sum(own)
    assert numpy.array_equal(one.reduce(own[one.rank], "f32", reduction="avg"), total / one.size)
    assert numpy.array_equal(one.reduce(own[one.rank], "f32", reduction="max"), numpy.max(own, 0))
    assert numpy.array_equal(one.reduce(own[one.rank], "f32", reduction="min"), numpy.min(own, 0))
    scaled = one.reduce(own[one.rank], "f32", reduction="premul_sum", factor=0.25)
    assert numpy.array_equal(scaled, total * 0.25)
    return True


class OnGpu(test_gpu.OnGpu):
    """A tensor as the group sees it, on the GPU of this rank."""

    @property
    def device(self):
        return torch.device(f"cuda:{os.environ['LOCAL_RANK']}")


def called_by_the_group():
    """As a script calls it, one after the other and below each other's least size."""
    one = Rank(least_bytes=1000)
    one.comm._gpu_transfers = one.transfers
    current = types.SimpleNamespace(cuda_stream=0)
    torch.cuda.current_stream = lambda device: current
    for seed in range(SEEDS):
        one.seed(seed)
        producer, consumer = one.fake.fake_stream(), one.fake.fake_stream()
        tensors = [OnGpu(one.fake, count) for count in (5000, 10, 3001)]
        for at, tensor in enumerate(tensors):
            tensor.fill(producer, one.rank + at)
        current.cuda_stream = producer
        works = [one.group.allreduce([tensor]) for tensor in tensors]
        host = torch.full((10,), float(one.rank))
        dist.all_reduce(host)
        assert host.eq(6).all(), host
        current.cuda_stream = consumer
        for at, (tensor, work) in enumerate(zip(tensors, works)):
            work.wait()
            found = tensor.copy(consumer).read()
            assert found == [6 + 4 * at], (seed, at, found)
    return one.transfers._bridge is not None


class Reused(OnGpu):
    """One whose memory PyTorch's allocator gives to the next kernel of the stream that it was made on, once nobody holds it."""

    stream = 0

    def __del__(self):
        self.fill(self.stream, 77)


def dropped_when_waited_for():
    """Whoever waits on another stream than a tensor was made on, and drops it. What is in its memory in the end."""
    one = Rank(least_bytes=1000)
    one.comm._gpu_transfers = one.transfers
    current = types.SimpleNamespace(cuda_stream=0)
    torch.cuda.current_stream = lambda device: current
    sizes = (5000, 3001, 10)
    for seed in range(SEEDS):
        one.seed(seed)
        producer, consumer = one.fake.fake_stream(), one.fake.fake_stream()
        tensors = [Reused(one.fake, count) for count in sizes]
        places = [OnGpu(one.fake, tensor.count, tensor.pointer) for tensor in tensors]
        for tensor in tensors:
            tensor.stream = producer
            tensor.fill(producer, one.rank)
        current.cuda_stream = producer
        works = [one.group.allreduce([tensor]) for tensor in tensors]
        current.cuda_stream = consumer
        del tensor
        while tensors:
            works.pop(0).wait()
            tensors.pop(0)
        # The next one on each way finds what it is to wait for.
        for count in sizes[1:]:
            one.group.allreduce([OnGpu(one.fake, count)]).wait()
        found = [place.read() for place in places]
        assert found == [[77]] * 3, (seed, found)
    return one.transfers._bridge is not None


def unlinked():
    one = Rank(linked=False)
    return one.begin(0, 1000, "f32", 0)


def small():
    """Below the least size, and of a type without a kernel, nothing is agreed and the ordinary way is taken."""
    one = Rank(least_bytes=4096)
    calls = [
        Call("allreduce", "f32", 1023),
        Call("allreduce", "e4m3", 9000),
        Call("allreduce", "f32", 1 << 18, numerics="bitwise"),
    ]
    return [one.transfers._crosses(call, one.ordinal) for call in calls]


def disagree():
    """Two of a pair call different sizes, then all agree."""
    one = Rank()
    one.seed(1)
    errors = []
    for count in (1000 if one.local == 0 else 999, 1000):
        try:
            found = one.reduce(content(one.rank, count, "f32", 0), "f32")
        except HFReduceError as error:
            errors.append(str(error))
    expected = sum(content(rank, 1000, "f32", 0) for rank in range(one.size))
    return errors, bool((found == expected).all())


def other_dies():
    """The other one of a pair ends; nobody of its node waits for it."""
    one = Rank()
    one.seed(1)
    one.reduce(content(one.rank, 100, "f32", 0), "f32")
    if one.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    errors = []
    for _ in range(2):
        try:
            one.reduce(content(one.rank, 5000, "f32", 0), "f32")
        except HFReduceError as error:
            errors.append(str(error))
    return errors


class MatchTest(unittest.TestCase):
    def cards(self, *links):
        def name(number):
            return bytes([number + 1]) * 16

        return [
            GpuRecord(name(at), frozenset(map(name, linked))) for at, linked in enumerate(links)
        ]

    def test_those_that_are_linked_are_pairs(self):
        self.assertEqual(match(self.cards({1}, {0}, {3}, {2})), [(0, 1), (2, 3)])
        self.assertEqual(match(self.cards({2}, {3}, {0}, {1})), [(0, 2), (1, 3)])
        everybody = [{0, 1, 2, 3} - {one} for one in range(4)]
        self.assertEqual(match(self.cards(*everybody)), [(0, 1), (2, 3)])

    def test_where_one_is_left_over_nobody_is_paired(self):
        self.assertEqual(match(self.cards({1}, {0}, set())), [])
        self.assertEqual(match(self.cards({1}, set())), [])
        self.assertEqual(match(self.cards(set())), [])

    def test_a_card_is_what_it_was(self):
        (card, *_) = self.cards({1, 2}, {0}, {0})
        self.assertEqual(GpuRecord.unpack(card.pack()), card)


class LinkTest(unittest.TestCase):
    def listen(self):
        """A process that waits for its other one, and the key."""
        keys = link.keys()
        listener = link.listen(keys)
        self.addCleanup(listener.close)
        return listener, keys

    def closed(self, connections):
        """They are, after the test."""
        for connection in connections:
            self.addCleanup(connection.close)
        return connections

    def stranger(self, keys):
        """A connection of somebody who has only seen the name."""
        stranger = self.enterContext(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        stranger.connect(link._address(keys))
        return stranger

    def test_sixty_four_strangers_are_turned_away_and_no_more(self):
        def accepted(strangers):
            listener, keys = self.listen()

            def connect():
                for _ in range(strangers):
                    stranger = self.stranger(keys)
                    stranger.send(b"?")
                    stranger.recv(1)  # Nothing, once it is turned away.
                self.closed(link.connect(keys, 2, 60))

            others = threading.Thread(target=connect)
            others.start()
            try:
                return len(self.closed(link.accept(listener, keys, 2, 60)))
            finally:
                others.join()

        self.assertEqual(accepted(64), 2)
        with self.assertRaisesRegex(OSError, "too many connections without the key"):
            accepted(65)

    def test_who_does_not_come_or_greet_in_time_is_not_waited_for(self):
        listener, keys = self.listen()
        silent = self.stranger(keys)
        self.closed(link.connect(keys, 2, 60))
        with unittest.mock.patch.object(link, "GREETING_SECONDS", 0.05):
            self.assertEqual(len(self.closed(link.accept(listener, keys, 2, 60))), 2)
        self.assertEqual(silent.recv(1), b"")
        with self.assertLogs("fireflyer", "WARNING") as logs:
            self.assertIsNone(pairs._tried(lambda: link.accept(listener, keys, 2, 0.05), 3))
        self.assertIn("rank 3 and its peer cannot use the NVLink", logs.output[0])


class PolicyTest(unittest.TestCase):
    def policy(self, **options):
        return creation.nvlink_policy([0, 2], "7", True, Options(**options))

    def test_nvlinks_are_used_only_where_a_group_or_its_environment_asks_for_it(self):
        self.assertIsNone(self.policy())
        asked = self.policy(nvlink="auto", replicated=True, priority=3)
        self.assertEqual((asked.ranks, asked.replicated, asked.priority), ([0, 2], True, 3))
        with unittest.mock.patch.dict(os.environ, {"FIREFLYER_NVLINK": "Auto"}):
            self.assertEqual(self.policy().ranks, [0, 2])
            self.assertIsNone(self.policy(nvlink="never"))
        with self.assertRaisesRegex(HFReduceError, "nvlink must be never or auto"):
            self.policy(nvlink="off")

    def test_the_numbers_of_halves_are_used_once(self):
        policies = [self.policy(nvlink="auto") for _ in range(3)]
        numbers = [number for policy in policies for number in policy.numbers]
        self.assertEqual(len(set(numbers)), 6)


class CutTest(unittest.TestCase):
    def test_halves_cover_a_tensor_once_and_none_is_empty(self):
        for total in (2, 3, 9, 100, 101, 1023):
            for itemsize, half in ((4, 64), (8, 16), (1, 33)):
                first = nvlink.cut(1000, total, itemsize, half, True)
                second = nvlink.cut(1000, total, itemsize, half, False)
                places = []
                for one, other in zip(first, second):
                    self.assertEqual((one.own, one.other), (other.other, other.own))
                    places += [one.own, one.other]
                end = 1000
                for start, nbytes in places:
                    self.assertEqual(start, end)
                    self.assertTrue(0 < nbytes <= half, (total, itemsize, half, nbytes))
                    self.assertEqual(nbytes % itemsize, 0)
                    end += nbytes
                self.assertEqual(end, 1000 + total * itemsize)


@needed
@unittest.skipUnless(DRIVER, "FIREFLYER_FAKE_CUDA names no stand-in for the GPU's driver")
class NvlinkTest(unittest.TestCase):
    def gang(self, nodes=2, procs=2):
        return self.enterContext(Sidecars(nodes, procs))

    def test_pairs_sum_tensors_whatever_order_streams_run_in(self):
        self.assertEqual(gang.successes(self.gang().run(sums)), [True] * 4)

    def test_two_pairs_of_one_node_sum_too(self):
        self.assertEqual(gang.successes(self.gang(1, 4).run(sums)), [True] * 4)

    def test_a_group_calls_large_tensors_over_an_nvlink_and_small_ones_as_before(self):
        self.assertEqual(gang.successes(self.gang().run(called_by_the_group)), [True] * 4)

    def test_a_result_that_is_dropped_is_written_before_its_memory_is_used_again(self):
        self.assertEqual(gang.successes(self.gang().run(dropped_when_waited_for)), [True] * 4)

    def test_averages_and_operators_are_those_of_all_ranks(self):
        self.assertEqual(gang.successes(self.gang().run(operators)), [True] * 4)

    def test_gpus_without_a_link_take_the_ordinary_way(self):
        self.assertEqual(gang.successes(self.gang().run(unlinked)), [None] * 4)

    def test_what_does_not_pay_or_must_keep_its_order_takes_the_ordinary_way(self):
        self.assertEqual(gang.successes(self.gang().run(small)), [[None] * 3] * 4)

    def test_a_pair_that_disagrees_is_an_error_for_all_and_the_next_call_works(self):
        for errors, is_right in gang.successes(self.gang().run(disagree)):
            self.assertEqual(len(errors), 1, errors)
            self.assertIn("disagree", errors[0])
            self.assertTrue(is_right)

    def test_a_rank_whose_other_has_died_gets_an_error_and_does_not_wait(self):
        results = self.gang().run(other_dies)
        self.assertIsInstance(results[1], gang.Died)
        for rank in (0, 2, 3):
            self.assertEqual(len(results[rank]), 2, results)
        self.assertIn("the NVLink peer of this rank", results[0][0])


if __name__ == "__main__":
    unittest.main()
