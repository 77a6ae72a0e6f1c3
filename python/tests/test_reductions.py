"""What is added up and combined, of every type and operator: the same as over gloo, which the sidecars' group never needs."""

import unittest

import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError
from sidecars import Sidecars, needed

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
NUMBERS = ("SUM", "MAX", "MIN")
BITS = ("BAND", "BOR", "BXOR")
BOOLEANS = ("SUM", "PRODUCT", "MAX", "MIN", *BITS)
#: Every type with the operators that the sidecar has for it.
KNOWN = [
    *((dtype, NUMBERS) for dtype in FLOATS),
    *((dtype, NUMBERS + BITS) for dtype in INTEGERS),
    (torch.bool, BOOLEANS),
]


def content(dtype, rank):
    """Elements of either sign whose sums are exact in every type; of booleans every combination over four ranks."""
    if dtype == torch.bool:
        return torch.tensor([bool(combination >> rank & 1) for combination in range(16)])
    generator = torch.Generator().manual_seed(rank)
    low = 0 if dtype == torch.uint8 else -30
    return torch.randint(low, 31, (16,), generator=generator).to(dtype)


def compare():
    """Over the sidecars and over gloo; how many of the former's calls went over gloo."""
    reference = dist.new_group(backend="gloo")
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    for dtype, operators in KNOWN:
        for name in operators:
            op, what = getattr(dist.ReduceOp, name), (dtype, name)
            wanted = content(dtype, rank)
            dist.all_reduce(wanted, op, reference)
            tensor = content(dtype, rank)
            dist.all_reduce(tensor, op)
            assert tensor.tolist() == wanted.tolist(), (what, tensor, wanted)
            tensor = content(dtype, rank)
            dist.reduce(tensor, 2, op)
            assert rank != 2 or tensor.tolist() == wanted.tolist(), (what, tensor, wanted)
            part = torch.zeros(16 // size, dtype=dtype)
            dist.reduce_scatter_tensor(part, content(dtype, rank), op)
            assert part.tolist() == wanted.split(16 // size)[rank].tolist(), (what, part, wanted)
            if dtype == torch.bool:
                assert part.view(torch.uint8).le(1).all(), (what, part)
        if dtype.is_floating_point:
            wanted = content(dtype, rank)
            dist.all_reduce(wanted, group=reference)
            tensor = content(dtype, rank)
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            assert tensor.equal(wanted / size), (dtype, tensor, wanted)
            tensor = content(dtype, rank)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
            assert tensor.equal(wanted / 2), (dtype, tensor, wanted)
    # Added up in 64 bits: in 32 the thirds would be lost.
    tensor = torch.tensor([1e9 if rank == 0 else 1 / 3], dtype=torch.float64)
    dist.all_reduce(tensor)
    assert abs(tensor.item() - 1e9 - 1) < 1e-6, tensor
    return group.uses_sidecar, group.gloo_calls


def left_to_gloo():
    """What no sidecar does, one after another: the errors, and a product; and how many of them went over gloo."""
    errors = []
    for dtype, op in (
        (torch.float32, dist.ReduceOp.BXOR),
        (torch.float64, dist._make_nccl_premul_sum(0.1)),
        (torch.int8, dist.ReduceOp.AVG),
        (torch.bool, dist.ReduceOp.AVG),
        (torch.int16, dist.ReduceOp.SUM),
    ):
        try:
            dist.all_reduce(torch.ones(2).to(dtype), op)
        except HFReduceError as error:
            errors.append(str(error))
    tensor = torch.full((2,), 2, dtype=torch.int8)
    dist.all_reduce(tensor, dist.ReduceOp.PRODUCT)
    return errors, tensor.tolist(), dist.group.WORLD.gloo_calls


@needed
class ReductionsTest(unittest.TestCase):
    def gang(self):
        return self.enterContext(Sidecars(2, 2))

    def test_every_type_and_operator_gives_what_gloo_gives_without_gloo(self):
        self.assertEqual(gang.successes(self.gang().run(compare)), [(True, 0)] * 4)

    def test_what_a_type_does_not_have_is_gloos_to_do_or_to_refuse(self):
        for errors, product, calls in gang.successes(self.gang().run(left_to_gloo)):
            for error, call in zip(
                errors,
                (
                    "bxor, 2 x float32",
                    "premul_sum, 2 x float64",
                    "avg, 2 x int8",
                    "avg, 2 x bool",
                    "sum, 2 x int16",
                ),
                strict=True,
            ):
                self.assertIn(f"allreduce({call}) over gloo failed: ", error)
            self.assertEqual((product, calls), ([16, 16], 6))
