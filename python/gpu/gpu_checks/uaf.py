"""The input of an asynchronous collective is read before its memory goes to another kernel.

The script drops the input at once, and the next tensor of its size may get its memory. What the sidecars reduce must be what
the input held. 1,000 rounds each of reduce_scatter and all_gather.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from . import device, gang, kit
from .findings import Findings

_ROUNDS, _REHEARSED_ROUNDS = 1000, 10
#: 2 MiB, beyond what PyTorch's allocator cuts from small blocks.
_COUNT = 1 << 19
_COLLECTIVES = ("reduce_scatter", "all_gather")


def check(found: Findings) -> None:
    """Two ranks do all rounds."""
    rounds = _REHEARSED_ROUNDS if kit.current().rehearses else _ROUNDS
    seen = gang.run(__name__, "drop_inputs", {"rounds": rounds})
    for collective in _COLLECTIVES:
        wrong = [one[collective]["wrong"] for one in seen]
        found.figure(f"{collective}_reused", [one[collective]["reused"] for one in seen])
        found.holds(
            f"{collective} reads its input in time, {rounds} rounds",
            not any(wrong),
            f"wrong in {wrong} rounds by rank",
        )


def drop_inputs(rounds: int) -> dict[str, Any]:
    """In each rank: how many rounds gave other numbers, and how often the memory of the input was given away."""
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = {}
    for collective in _COLLECTIVES:
        wrong = torch.zeros((), dtype=torch.int64, device=device.DEVICE)
        reused = 0
        for number in range(rounds):
            # Numbers that f32 adds exactly.
            value = float(number % 1000)
            if collective == "reduce_scatter":
                given = torch.full((size * _COUNT,), value + rank, device=device.DEVICE)
                result = torch.empty(_COUNT, device=device.DEVICE)
                work = dist.reduce_scatter_tensor(result, given, async_op=True)
                expected = [size * value + sum(range(size))]
            else:
                given = torch.full((_COUNT,), value + rank, device=device.DEVICE)
                result = torch.empty(size * _COUNT, device=device.DEVICE)
                work = dist.all_gather_into_tensor(result, given, async_op=True)
                expected = [value + one for one in range(size)]
            place, shape = given.data_ptr(), given.shape
            del given
            taken = torch.empty(shape, device=device.DEVICE).fill_(9e9)
            reused += taken.data_ptr() == place
            work.wait()
            for part, number_there in zip(result.chunk(len(expected)), expected):
                wrong += part.ne(number_there).any()
            del taken
        seen[collective] = {"wrong": int(wrong), "reused": reused}
    return seen
