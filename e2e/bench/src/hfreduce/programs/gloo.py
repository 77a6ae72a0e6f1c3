"""The rival Gloo: all-reduce of PyTorch tensors, in place, under the conductor's words.

Usage: gloo.py CONDUCTOR MASTER INTERFACE PROCS NODE...
"""

from __future__ import annotations

import os
import sys

import ranks
import torch
import torch.distributed as dist

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

#: Elements after which inputs and sums repeat.
PERIOD = 5

#: Elements that are compared at once.
BLOCK = PERIOD << 18


def weight(rank: int) -> int:
    """What a rank's numbers are multiplied with."""
    return rank % 3 + 1


def numbers(factor: int, dtype: torch.dtype, count: int = BLOCK) -> torch.Tensor:
    """Elements that differ, times a factor."""
    once = torch.tensor([at * factor for at in range(PERIOD)], dtype=dtype)
    return once.repeat(-(-count // PERIOD))[:count]


class Rank:
    """One rank and the tensors of its case."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.tensors: list[torch.Tensor] = []

    def run(self) -> None:
        """Calls all tensors at once and waits for every result."""
        if len(self.tensors) == 1:
            dist.all_reduce(self.tensors[0])
            return
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in self.tensors]:
            work.wait()

    def case(self, size: int, tensors: int, dtype: str) -> str:
        """Prepares and runs once, with numbers whose sum is known."""
        self.end()
        kind = TYPES[dtype]
        own = numbers(weight(self.rank), kind, size // kind.itemsize)
        self.tensors = [own.clone() for _ in range(tensors)]
        self.run()
        sums = numbers(sum(map(weight, range(self.world))), kind)
        right = all(
            torch.equal(piece, sums[: len(piece)])
            for tensor in self.tensors
            for piece in tensor.split(BLOCK)
        )
        for tensor in self.tensors:
            # What is added over and over again stays what it is.
            tensor.zero_()
        return "ok" if right else "failed the sum is wrong"

    def end(self) -> None:
        """Frees the tensors."""
        self.tensors = []


def main() -> None:
    """Forks the ranks."""
    conductor, master, interface, procs, *nodes = sys.argv[1:]

    def make(rank: int, world: int) -> Rank:
        os.environ |= {"GLOO_SOCKET_IFNAME": interface, "USE_LIBUV": "0"}
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=world)
        return Rank(rank, world)

    ranks.fork(conductor, int(procs), nodes, make)


main()
