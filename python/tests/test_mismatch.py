"""Ranks that call different things: an error on all of them that names both sides, whoever would have done it."""

import math
import time
import unittest

import gang
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from fireflyer import naming
from sidecars import Sidecars, needed

#: A rank that waits longer for an error hangs, in seconds; the group's own limit is half an hour.
_DEADLINE_SECONDS = 30.0


def sum_of(dtype, op="SUM", count=4, **options):
    return dist.all_reduce(torch.ones(count).to(dtype), getattr(dist.ReduceOp, op), **options)


def gather(count=4, dst=0, dtype=torch.float32):
    size = dist.get_world_size()
    parts = [torch.zeros(count).to(dtype) for _ in range(size)] if dist.get_rank() == dst else None
    dist.gather(torch.ones(count).to(dtype), parts, dst=dst)
    return [part.tolist() for part in parts or []]


def exchange(send, receive):
    output, part = torch.zeros(sum(receive)), torch.ones(sum(send))
    dist.all_to_all_single(output, part, receive, send)


def scatter(count=4):
    size, part = dist.get_world_size(), torch.zeros(count)
    dist.scatter(part, [torch.ones(count)] * size if dist.get_rank() == 0 else None)


def broadcast(count, dtype):
    dist.broadcast(torch.ones(count).to(dtype), src=0)


def all_gather(dtype):
    dist.all_gather(
        [torch.zeros(4).to(dtype) for _ in range(dist.get_world_size())], torch.ones(4).to(dtype)
    )


#: What rank 1 does, what the others do, and how the error names each.
DIFFERENCES = {
    "element type, sidecar and gloo": (
        lambda: sum_of(torch.int16),
        lambda: sum_of(torch.float32),
        "allreduce(sum, 4 x int16) over gloo",
        "allreduce(sum, 4 x f32)",
    ),
    "collective": (
        lambda: sum_of(torch.float32),
        gather,
        "allreduce(sum, 4 x f32)",
        "gather(4 x f32, root 0)",
    ),
    "collective of parts": (
        scatter,
        gather,
        "scatter(4 x f32, root 0)",
        "gather(4 x f32, root 0)",
    ),
    "collective, called by C++": (
        lambda: functional.all_gather_tensor(torch.ones(2), 0, dist.group.WORLD).wait(),
        lambda: functional.all_to_all_single(
            torch.ones(4), [1] * 4, [1] * 4, dist.group.WORLD
        ).wait(),
        "allgather(2 x f32)",
        "alltoall(f32)",
    ),
    "reduction": (
        lambda: sum_of(torch.float32, "PRODUCT"),
        lambda: sum_of(torch.float32),
        "allreduce(product, 4 x float32) over gloo",
        "allreduce(sum, 4 x f32)",
    ),
    "reduction, both over gloo": (
        lambda: sum_of(torch.int16, "MAX"),
        lambda: sum_of(torch.int16),
        "allreduce(max, 4 x int16) over gloo",
        "allreduce(sum, 4 x int16) over gloo",
    ),
    "size of a part": (
        lambda: gather(8),
        gather,
        "gather(8 x f32, root 0)",
        "gather(4 x f32, root 0)",
    ),
    "root of a gathering": (
        lambda: gather(dst=1),
        gather,
        "gather(4 x f32, root 1)",
        "gather(4 x f32, root 0)",
    ),
    "splits": (
        lambda: exchange([1, 1, 1, 1], [2, 1, 1, 1]),
        lambda: exchange([1, 1, 1, 1], [1, 1, 1, 1]),
        "alltoall(2 x f32 with rank 0)",
        "alltoall(1 x f32 with rank 1)",
    ),
    "types of the same bytes": (
        lambda: broadcast(32, torch.bool),
        lambda: broadcast(16, torch.int16),
        "broadcast(32 x u8, root 0, the bytes of 32 x bool)",
        "broadcast(32 x u8, root 0, the bytes of 16 x int16)",
    ),
    "a type of the sidecar and one that is its size": (
        lambda: all_gather(torch.uint8),
        lambda: all_gather(torch.bool),
        "allgather(4 x u8)",
        "allgather(4 x u8, the bytes of 4 x bool)",
    ),
    "booleans and bytes that are combined alike": (
        lambda: sum_of(torch.bool),
        lambda: sum_of(torch.uint8, "MAX"),
        "allreduce(max, 4 x u8, the bytes of 4 x bool)",
        "allreduce(max, 4 x u8)",
    ),
}


def differ(what):
    """Rank 1 does something else; then all agree again, over both. Returns the error, a product and a sum."""
    first, others, _, _ = DIFFERENCES[what]
    if "C++" in what:
        # The first of these imports the compiler: seconds that are not the error's.
        functional.all_gather_tensor(torch.ones(1), 0, dist.group.WORLD).wait()
    start = time.monotonic()
    try:
        (first if dist.get_rank() == 1 else others)()
        error = None
    except RuntimeError as raised:  # C++ makes it one of its own.
        error = str(raised)
    took = time.monotonic() - start
    after = [torch.full((1,), 2.0) for _ in range(2)]
    for tensor, op in zip(after, (dist.ReduceOp.PRODUCT, dist.ReduceOp.SUM)):
        dist.all_reduce(tensor, op)
    return error, took, [tensor.item() for tensor in after], gather()


def in_flight():
    """Collectives over gloo that other ranks call later: what is between has to come through."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor, received = torch.full((3,), float(rank + 1)), torch.zeros(1)
    if rank == 1:
        dist.recv(received, src=0)
    work = dist.all_reduce(tensor, dist.ReduceOp.PRODUCT, async_op=True)
    if rank == 0:
        dist.send(torch.ones(1), dst=1)
    works = [work]
    tensors = [torch.full((100,), float(rank + step)) for step in range(40)]
    operators = [(dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT)[step % 2] for step in range(40)]
    works += [dist.all_reduce(one, op, async_op=True) for one, op in zip(tensors, operators)]
    for work in reversed(works):
        work.wait()
    assert tensor.tolist() == [math.factorial(size)] * 3, tensor
    for step, one in enumerate(tensors):
        brought = range(step, step + size)
        wanted = math.prod(brought) if step % 2 else sum(brought)
        assert one.eq(wanted).all(), (step, one)
    return received.item()


def modes_of_the_caller():
    """Parameters are changed in place where that is allowed, and so are tensors of the inference mode."""

    def exchange(**options):
        tensors = [torch.zeros(1, **options) for _ in range(dist.get_world_size())]
        dist.gather(torch.ones(1), tensors if dist.get_rank() == 0 else None)
        return [tensor.item() for tensor in tensors]

    with torch.no_grad():
        parameters = exchange(requires_grad=True)
    with torch.inference_mode():
        return parameters, exchange()


def refused():
    """What gloo refuses on every rank; returns its words."""
    try:
        dist.all_reduce(torch.ones(4, dtype=torch.int32), dist.ReduceOp.AVG)
    except RuntimeError as raised:
        return type(raised).__name__, str(raised)


class NamingTest(unittest.TestCase):
    def test_a_name_says_what_it_stands_for(self):
        options = dist.GatherOptions()
        options.rootRank = 3
        two = [torch.ones(2, 3, dtype=torch.complex64)]
        name = naming.of_call("gather", [[], two, options], {})
        self.assertEqual(naming.words(name), "gather(6 x complex64, root 3) over gloo")
        by_name = {"opts": options, "input_tensors": two, "output_tensors": [two * 4]}
        self.assertEqual(naming.of_call("gather", [], by_name), name)

    def test_names_differ_where_calls_differ_and_nowhere_else(self):
        def allreduce(count, dtype, op):
            options = dist.AllreduceOptions()
            options.reduceOp = op
            return naming.of_call("allreduce", [[torch.ones(count, dtype=dtype)], options], {})

        operations = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.BXOR)
        calls = [
            (count, dtype, op)
            for count in (0, 1, 2**20)
            for dtype in (torch.float64, torch.int8, torch.bool)
            for op in operations
        ]
        names = {allreduce(*call) for call in calls}
        self.assertEqual(len(names), len(calls))
        self.assertEqual(names, {allreduce(*call) for call in calls})
        self.assertTrue(all(0 < name < 2**64 for name in names))
        # The sidecar compares these as well: a name is for one call only.
        self.assertNotIn(naming.of_bytes(torch.ones(1, dtype=torch.float64)), names)

    def test_exchanges_of_different_sizes_are_one_call(self):
        def exchange(mine, theirs):
            return naming.of_call(
                "alltoall_base", [torch.ones(mine), torch.ones(theirs), [], []], {}
            )

        self.assertEqual(exchange(3, 4), exchange(5, 0))
        self.assertEqual(naming.words(exchange(3, 4)), "alltoall_base(float32) over gloo")

    def test_what_does_not_fit_is_the_most_that_does(self):
        most = naming.of_bytes(torch.ones(1).as_strided((1 << 33,), (0,)))
        self.assertEqual(naming.words(most), f"the bytes of {(1 << 33) - 1} x float32")

    def test_numbers_in_a_text_become_words_and_the_rest_stays(self):
        name = naming.of_bytes(torch.ones(4, dtype=torch.float64))
        self.assertEqual(
            naming.explain(f"rank 0 called broadcast(32 x u8, root 0, name {name:016x}), name 00"),
            "rank 0 called broadcast(32 x u8, root 0, the bytes of 4 x float64), name 00",
        )
        self.assertEqual(naming.explain(f"name {2**64 - 1:016x}"), f"name {2**64 - 1:016x}")


@needed
class MismatchTest(unittest.TestCase):
    def gang(self):
        return self.enterContext(Sidecars(2, 2))

    def test_any_difference_is_an_error_on_all_ranks_that_names_both_sides(self):
        for what, (_, _, first, others) in DIFFERENCES.items():
            with self.subTest(what), Sidecars(2, 2) as sidecars:
                results = gang.successes(
                    sidecars.run(differ, what, deadline_seconds=_DEADLINE_SECONDS)
                )
                for rank, (error, took, after, gathered) in enumerate(results):
                    self.assertIsNotNone(error, f"rank {rank}")
                    self.assertIn(f"rank 1 called {first}", error)
                    self.assertRegex(error, r"rank [023] called ")
                    self.assertIn(f"called {others}", error)
                    self.assertLess(took, 5)
                    self.assertEqual(after, [16, 8], "the next operations run")
                    self.assertEqual(gathered, [[1] * 4] * 4 if rank == 0 else [])

    def test_collectives_over_gloo_do_not_wait_for_the_others_when_called(self):
        results = self.gang().run(in_flight, deadline_seconds=_DEADLINE_SECONDS)
        self.assertEqual(gang.successes(results), [0, 1, 0, 0])

    def test_gradients_and_inference_are_as_the_caller_has_them(self):
        self.assertEqual(
            gang.successes(self.gang().run(modes_of_the_caller))[0], ([1] * 4, [1] * 4)
        )

    def test_what_gloo_refuses_is_refused_in_its_words(self):
        for kind, said in gang.successes(self.gang().run(refused)):
            self.assertEqual(kind, "HFReduceError")
            self.assertRegex(
                said, r"allreduce\(avg, 4 x int32\) over gloo failed: .*([Rr]educe|can.t be cast)"
            )
