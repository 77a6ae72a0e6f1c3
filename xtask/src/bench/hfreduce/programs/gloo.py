"""The rival Gloo: all-reduce of PyTorch tensors, in place, under the conductor's words.

One process forks all ranks, because importing PyTorch costs seconds; each enters the network namespace of its node
before it makes its group. Usage: gloo.py CONDUCTOR MASTER INTERFACE PROCS NAMESPACE...
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

#: Elements after which inputs and sums repeat, as in the sidecar's bench.
PERIOD = 5

#: Elements that are compared at once.
BLOCK = PERIOD << 18


def weight(rank: int) -> int:
    """What a rank's numbers are multiplied with, as in the sidecar's bench."""
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

    def case(self, size: int, tensors: int, dtype: torch.dtype) -> str:
        """Prepares and runs once, with numbers whose sum is known."""
        self.tensors = []
        count = size // torch.empty(0, dtype=dtype).element_size()
        own = weight(self.rank)
        self.tensors = [numbers(own, dtype, count) for _ in range(tensors)]
        self.run()
        sums = numbers(sum(map(weight, range(self.world))), dtype)
        right = all(
            torch.equal(piece, sums[: len(piece)])
            for tensor in self.tensors
            for piece in tensor.split(BLOCK)
        )
        for tensor in self.tensors:
            # What is added over and over again stays what it is.
            tensor.zero_()
        return "ok" if right else "failed the sum is wrong"

    def go(self, times: int) -> str:
        """Runs so often; all nanoseconds, then each."""
        ends = [time.monotonic_ns()]
        for _ in range(times):
            self.run()
            ends.append(time.monotonic_ns())
        each = [end - begin for begin, end in zip(ends, ends[1:])]
        return " ".join(map(str, [sum(each), *each]))

    def obey(self, words: list[str]) -> str:
        """Does what the conductor says."""
        if words[0] == "case":
            return self.case(int(words[1]), int(words[2]), TYPES[words[3]])
        if words[0] == "go":
            return self.go(int(words[1]))
        if words[0] == "end":
            self.tensors = []
            return "ok"
        return f"failed unknown words {words}"


def serve(conductor: str, master: str, interface: str, rank: int, world: int) -> None:
    """The life of a rank."""
    os.environ |= {"GLOO_SOCKET_IFNAME": interface, "USE_LIBUV": "0"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=world)
    me = Rank(rank, world)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(conductor)
    stream = connection.makefile("rw", buffering=1)
    stream.write(f"rank {rank} {os.getpid()}\n")
    for line in stream:
        words = line.split()
        if words == ["quit"]:
            break
        try:
            answer = me.obey(words)
        except Exception as error:  # What went wrong is for the conductor to tell.
            answer = "failed " + " ".join(str(error).split())
        stream.write(answer + "\n")


def main() -> None:
    """Forks the ranks, node by node."""
    conductor, master, interface, procs, *namespaces = sys.argv[1:]
    world = int(procs) * len(namespaces)
    for rank in range(world):
        if os.fork() == 0:
            try:
                with open(namespaces[rank // int(procs)], "rb") as namespace:
                    os.setns(namespace.fileno(), os.CLONE_NEWNET)
                serve(conductor, master, interface, rank, world)
            except BaseException:  # A forked copy never goes on as its parent.
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    for _ in range(world):
        os.wait()


main()
