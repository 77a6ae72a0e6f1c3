"""Collectives wait for their producer's stream, and consumers for them: the bits are those of the way over the CPU.

The producer is kept busy before it writes the tensor, the consumer before it reads; producer and consumer run on two side streams
or on the default stream. Five collectives, six types, from one element to 186 MiB, and one all-reduce of 5 GiB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import device, gang, kit, machine
from .findings import Findings

_KIB, _MIB = 1 << 10, 1 << 20
_DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}
#: Bytes, and one element more or less.
_SIZES = [(0, 1), (4 * _KIB, 1), (4 * _MIB, -1), (4 * _MIB, 1)]
_LARGE = (186 * _MIB, 0)
_HUGE_BYTES = (5 << 30) + 1
#: What a gang of two ranks takes of the host's memory for it: segments and results, powers of two.
_HUGE_HOST_BYTES = 48 << 30
#: And of the GPU's, with what the result is compared with.
_HUGE_GPU_BYTES = 40 << 30
_QUICK_SIZES = [(4 * _KIB, 1), (4 * _MIB, 1)]
_BUSY_SECONDS = 0.01
#: Where the producer and the consumer run.
_STREAMS = [("side", "side"), ("default", "side"), ("side", "default")]


def check(found: Findings) -> None:
    """Two ranks go through all cases."""
    rehearses = kit.current().rehearses
    _judge(found, gang.run(__name__, "all_cases", {"quick": rehearses}))
    if rehearses:
        return
    if machine.available_bytes() < _HUGE_HOST_BYTES or device.free_bytes() < _HUGE_GPU_BYTES:
        found.not_judged("all_reduce of 5 GiB", "the host or the GPU has too little free memory")
    else:
        wrong = gang.run(__name__, "huge_all_reduce", {})
        found.holds("all_reduce of 5 GiB", not any(wrong), f"wrong elements by rank: {wrong}")


def quick(found: Findings, before: list[str]) -> None:
    """Few sizes, with ranks that are started under another program."""
    _judge(found, gang.run(__name__, "all_cases", {"quick": True}, before=before))


def _judge(found: Findings, seen: list[dict[str, list[str]]]) -> None:
    for case in seen[0]:
        wrong = [one for rank in seen for one in rank[case]]
        found.holds(f"{case} has the bits of the CPU's", not wrong, "; ".join(wrong[:4]))


def all_cases(quick: bool) -> dict[str, list[str]]:
    """In each rank: the cases that differ, by collective and type."""
    streams = {"side": device.stream(), "other": device.stream()}
    seen = {}
    for collective, run in _COLLECTIVES.items():
        for name, dtype in _DTYPES.items():
            sizes = list(_QUICK_SIZES if quick else _SIZES)
            if not quick and name in ("f32", "bf16"):
                sizes.append(_LARGE)
            wrong = []
            for nbytes, more in sizes:
                count = max(nbytes // dtype.itemsize + more, 1)
                for producer, consumer in _STREAMS if nbytes < _MIB else _STREAMS[:1]:
                    on = (
                        streams["side"] if producer == "side" else device.default_stream(),
                        streams["other"] if consumer == "side" else device.default_stream(),
                    )
                    if not _case(run, f"{collective} {name} {count}", dtype, count, on):
                        wrong.append(f"{count} elements, {producer} to {consumer} stream")
            seen[f"{collective} of {name}"] = wrong
    return seen


#: A collective: between tensors that hold one rank's part, and as many parts as there are ranks.
Run = Callable[[torch.Tensor, torch.Tensor], Any]

_COLLECTIVES: dict[str, Run] = {
    "all_reduce": lambda part, whole: dist.all_reduce(part, async_op=True),
    "reduce": lambda part, whole: dist.reduce(part, 1, async_op=True),
    "broadcast": lambda part, whole: dist.broadcast(part, 1, async_op=True),
    "all_gather": lambda part, whole: dist.all_gather_into_tensor(whole, part, async_op=True),
    "reduce_scatter": lambda part, whole: dist.reduce_scatter_tensor(part, whole, async_op=True),
}


def _case(run: Run, name: str, dtype: torch.dtype, count: int, on: tuple[Any, Any]) -> bool:
    """Whether the GPU's result has the bits of the CPU's."""
    rank, size = dist.get_rank(), dist.get_world_size()
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()) + rank)
    expected = [_random(dtype, length, random) for length in (count, size * count)]
    filled = [one.to(device.DEVICE) for one in expected]
    tensors = [torch.full_like(one, 99) for one in filled]
    device.synchronize()
    producer, consumer = on
    with device.on(producer):
        device.sleep(_BUSY_SECONDS)
        for tensor, content in zip(tensors, filled):
            tensor.copy_(content)
        work = run(tensors[0], tensors[1])
    with device.on(consumer):
        work.wait()
        device.sleep(_BUSY_SECONDS)
        seen = [tensor.clone() for tensor in tensors]
    # What comes next on the producer's stream may write to the tensors once the consumer has read them.
    producer.wait_stream(consumer)
    with device.on(producer):
        for tensor in tensors:
            tensor.fill_(77)
    run(expected[0], expected[1]).wait()
    device.synchronize()
    if name.startswith("reduce ") and rank != 1:
        return True
    return all(_same_bits(one.cpu(), other) for one, other in zip(seen, expected))


def _random(dtype: torch.dtype, count: int, random: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(count, generator=random).to(dtype)
    return torch.randint(0, 100, (count,), generator=random).to(dtype)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.view(torch.uint8).equal(other.view(torch.uint8))


def huge_all_reduce() -> int:
    """In each rank: how many elements of a sum of bytes are wrong."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(251, dtype=torch.uint8, device=device.DEVICE)
    tensor = tensor.repeat(-(-_HUGE_BYTES // len(tensor)))[:_HUGE_BYTES].contiguous()
    before = tensor.clone()
    tensor += rank
    dist.all_reduce(tensor)
    before *= size
    before += sum(range(size))
    return int(tensor.ne(before).sum())
