"""What a bucket costs the trainer's processor: ``python3 python/benches/overhead.py``, with FIREFLYER_SIDECAR set.

Two ranks of one node call small operations, some dozens at a time as DDP does, and wait for them afterwards. Printed is
processor time, user and system, of rank 0: it does not grow when others use the machine, as time on a clock would.
The bar is for the call alone, in the thread that computes; the whole process includes waiting, copying and the thread
that completes handles.
"""

from __future__ import annotations

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
ROUNDS = 100
#: Elements of a bucket: 4 KiB.
COUNT = 1024


def measure(call: Callable[[], None], wait: Callable[[], None]) -> tuple[float, float]:
    """Microseconds of each bucket: the calling thread's in `call`, and the process's in all."""
    calling = 0.0
    for round_ in range(ROUNDS + 10):
        if round_ == 10:
            calling, before = 0.0, time.process_time()
        start = time.thread_time()
        call()
        calling += time.thread_time() - start
        wait()
    buckets = ROUNDS * BUCKETS / 1e6
    return calling / buckets, (time.process_time() - before) / buckets


def run() -> dict[str, tuple[float, float]]:
    """The measurements of this rank."""
    tensors = [torch.ones(COUNT) for _ in range(BUCKETS)]
    works: list[dist.Work] = []
    seen = {}

    def call() -> None:
        works.extend(dist.all_reduce(tensor, async_op=True) for tensor in tensors)

    def wait() -> None:
        for work in works:
            work.wait()
        works.clear()

    seen["torch.distributed.all_reduce"] = measure(call, wait)

    def group() -> None:
        world = dist.group.WORLD
        works.extend(world.allreduce([tensor]) for tensor in tensors)

    seen["group.allreduce, as DDP calls it"] = measure(group, wait)

    layers = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(COUNT)) for _ in range(BUCKETS))
    arena = fireflyer.Arena(layers, bucket_bytes=1)
    arena.zero_grad()

    def ready() -> None:
        for index in range(BUCKETS):
            arena._ready(index, 0)

    def done() -> None:
        arena.wait()
        arena.zero_grad()

    seen["fireflyer.Arena"] = measure(ready, done)
    return seen


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
