"""Copies in both directions overlap, and what a collective waits for stops none before it, nor the default stream.

What a stream has to wait for is seen by what it does: a collective whose tensor is ready is called, then one behind a busy
producer. The former's result, its future, and a kernel on the default stream have to come before the producer is done. PyTorch's
profiler shows whether copies to the host run beside copies to the device, and that no kernel of ours runs.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from . import device, gang
from .findings import Findings

#: How long the producer of the second collective is busy: much longer than the first takes.
_BUSY_SECONDS = 2.0
_COUNT = 2 << 20
#: What is profiled: parts of the first come back while the second, of 1 GiB, is copied to the host.
_PROFILED_COUNTS = [16 << 20, 256 << 20]
_PAUSE_SECONDS = 0.0005
#: Our kernels' names begin so.
_OURS = ("sum_", "max_", "min_")


def check(found: Findings) -> None:
    """Two ranks, which do the same."""
    seen = gang.run(__name__, "look", {})
    for rank, one in enumerate(seen):
        found.figure(f"rank_{rank}", one)
        for claim, name in (
            ("a ready collective's result comes", "result"),
            ("its future is done", "future"),
            ("the default stream goes on", "default_stream"),
        ):
            found.holds(
                f"{claim} while a later one's producer is busy (rank {rank})",
                one[name] < 0.5 * one["busy"],
                f"after {one[name]:.2f} s of {one['busy']:.2f} s that the producer was busy",
            )
        found.figure(
            "judged_by",
            "what streams do, and torch.profiler" if one["copies"] else "what streams do",
        )
        if not one["copies"]:
            found.not_judged(f"copies overlap (rank {rank})", "PyTorch's profiler saw no copies")
            continue
        found.holds(
            f"copies in both directions overlap (rank {rank})",
            one["overlap"] > 0,
            f"none of {one['copies']} copies ran beside one in the other direction",
        )
        found.holds(f"no kernel of ours runs (rank {rank})", not one["ours"], str(one["ours"]))


def look() -> dict[str, Any]:
    """In each rank: when what came, in seconds; what the profiler saw of large all-reduces."""
    dist.all_reduce(torch.ones(_COUNT, device=device.DEVICE))
    _reduce_all(_profiled())
    seen: dict[str, Any] = {}
    # Twice: what is new the first time takes time of its own.
    for _ in range(2):
        dist.barrier()
        seen.update(_beside_a_busy_producer())
    seen.update(_profile())
    return seen


def _beside_a_busy_producer() -> dict[str, float]:
    busy, ready, consumer = (torch.cuda.Stream() for _ in range(3))
    late, early = (torch.ones(_COUNT, device=device.DEVICE) for _ in range(2))
    marker = torch.zeros(8, device=device.DEVICE)
    torch.cuda.synchronize()
    started = time.monotonic()

    def since() -> float:
        return time.monotonic() - started

    with torch.cuda.stream(ready):
        first = dist.all_reduce(early, async_op=True)
        # As DDP does for each bucket.
        future = first.get_future()
    with torch.cuda.stream(busy):
        device.sleep(_BUSY_SECONDS)
        produced = torch.cuda.Event()
        produced.record()
        second = dist.all_reduce(late, async_op=True)
        second_future = second.get_future()
    # Not by waiting: that would have this thread's stream wait for the result.
    while not future.done():
        time.sleep(_PAUSE_SECONDS)
    done = since()
    marker.add_(1)
    ran = torch.cuda.Event()
    ran.record()
    with torch.cuda.stream(consumer):
        first.wait()
        waited = since()
        read = torch.cuda.Event()
        read.record()
    on_default, result = _when(ran, since), _when(read, since)
    length = _when(produced, since)
    second_future.wait()
    torch.cuda.synchronize()
    return {
        "busy": length,
        "host_waited": waited,
        "result": result,
        "future": done,
        "default_stream": on_default,
    }


def _when(event: torch.cuda.Event, since: Any) -> float:
    while not event.query():
        time.sleep(_PAUSE_SECONDS)
    return since()


def _profiled() -> list[torch.Tensor]:
    return [torch.ones(count, device=device.DEVICE) for count in _PROFILED_COUNTS]


def _reduce_all(tensors: list[torch.Tensor]) -> None:
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    torch.cuda.synchronize()


def _profile() -> dict[str, Any]:
    """What runs on the GPU in large all-reduces."""
    from torch.profiler import ProfilerActivity, profile

    tensors = _profiled()
    torch.cuda.synchronize()
    started = time.monotonic()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        _reduce_all(tensors)
    seconds = time.monotonic() - started
    # Each in microseconds, from when to when.
    to_host, to_device, ours = [], [], []
    for event in profiler.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        span = (event.time_range.start, event.time_range.end)
        if "DtoH" in event.name:
            to_host.append(span)
        elif "HtoD" in event.name:
            to_device.append(span)
        elif event.name.startswith(_OURS):
            ours.append(event.name)
    both = sum(
        max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
        for one in to_host
        for other in to_device
    )
    return {
        "copies": len(to_host) + len(to_device),
        "to_host_us": round(sum(end - start for start, end in to_host)),
        "to_device_us": round(sum(end - start for start, end in to_device)),
        "overlap": round(both),
        "ours": sorted(set(ours)),
        "seconds": round(seconds, 3),
    }
