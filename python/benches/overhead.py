"""What a bucket costs the trainer's processor: ``cargo xtask bench calls``, or this file with FIREFLYER_SIDECAR set.

Two ranks of one node call small operations, some dozens at a time as DDP does, and wait for them afterwards. Printed is
processor time, user and system, of rank 0: it grows less when others use the machine than time on a clock does, and is
the median of rounds that take turns. The bar is for the call alone, in the thread that computes; the whole process
includes waiting, copying and the thread that completes handles.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fireflyer
import gang
from sidecars import Sidecars

#: The bar, in microseconds of the calling thread.
BAR_MICROSECONDS = 30.0
BUCKETS = 32
ROUNDS, WARM = 200, 20
#: Elements of a bucket: 4 KiB.
COUNT = 1024


class Way:
    """A way to reduce the buckets: calls all of them, then waits for them. Keeps what each round has cost."""

    def __init__(self, call: Callable[[], None], wait: Callable[[], None]) -> None:
        self._call, self._wait = call, wait
        self._seen: list[tuple[float, float]] = []

    def round(self) -> None:
        """Runs once."""
        before, start = time.process_time(), time.thread_time()
        self._call()
        called = time.thread_time() - start
        self._wait()
        self._seen.append((called, time.process_time() - before))

    def medians(self) -> tuple[float, float]:
        """Microseconds of each bucket: the calling thread's in `call`, and the process's in all."""
        calling, process = zip(*self._seen[WARM:])
        return statistics.median(calling) * 1e6 / BUCKETS, statistics.median(
            process
        ) * 1e6 / BUCKETS


def run() -> dict[str, tuple[float, float]]:
    """The measurements of this rank."""
    tensors = [torch.ones(COUNT) for _ in range(BUCKETS)]
    works: list[dist.Work] = []
    futures: list[torch.futures.Future] = []
    group = dist.group.WORLD

    def call() -> None:
        works.extend(dist.all_reduce(tensor, async_op=True) for tensor in tensors)

    def call_group() -> None:
        works.extend(group.allreduce([tensor]) for tensor in tensors)

    def wait() -> None:
        for work in works:
            work.wait()
        works.clear()

    def call_for_futures() -> None:
        works.extend(group.allreduce([tensor]) for tensor in tensors)
        futures.extend(work.get_future() for work in works)

    def wait_for_futures() -> None:
        torch.futures.wait_all(futures)
        futures.clear()
        works.clear()

    layers = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(COUNT)) for _ in range(BUCKETS))
    arena = fireflyer.Arena(layers, bucket_bytes=1)
    arena.zero_grad()

    def ready() -> None:
        for index in range(BUCKETS):
            arena._ready(index, 0)

    def done() -> None:
        arena.wait()
        arena.zero_grad()

    ways = {
        "torch.distributed.all_reduce": Way(call, wait),
        "group.allreduce": Way(call_group, wait),
        "group.allreduce, its futures, as DDP": Way(call_for_futures, wait_for_futures),
        "fireflyer.Arena": Way(ready, done),
    }
    for _ in range(ROUNDS + WARM):
        for way in ways.values():
            way.round()
    return {name: way.medians() for name, way in ways.items()}


def main() -> None:
    """Prints a table."""
    with Sidecars(1, 2) as sidecars:
        seen = gang.successes(sidecars.run(run))[0]
    print(f"{'microseconds of a bucket of 4 KiB':40} {'call':>8} {'process':>8}")
    for name, (calling, process) in seen.items():
        mark = "" if calling <= BAR_MICROSECONDS else f"  above the bar of {BAR_MICROSECONDS:g}"
        print(f"{name:40} {calling:8.1f} {process:8.1f}{mark}")


if __name__ == "__main__":
    main()
