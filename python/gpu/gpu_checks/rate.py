"""Copies between the GPU and memory as the sidecar shares it are as fast as those of memory that the driver allocates.

Host to device, device to host, and both at once, in parts of 1 to 32 MiB, from one segment and from 4 and 8; from memory that
is mapped for reading, too. A share is the rate beside that of pinned memory of the driver in the same interleaved rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack

from . import segment
from .cuda import PORTABLE, READ_ONLY, READ_ONLY_HOST_REGISTER, Cuda
from .findings import Findings

_MIB = 1 << 20
_BYTES = 256 * _MIB
_PARTS = [1 * _MIB, 4 * _MIB, 32 * _MIB]
_SEGMENTS = [1, 4, 8]
_ROUNDS = 7
_LEAST_SHARE = 0.95

#: Begins to copy all of some memory to or from the device.
Begin = Callable[[], None]


def check(found: Findings) -> None:
    """Measures each case beside pinned memory."""
    cuda = Cuda()
    if not cuda.has("cuMemHostAlloc"):
        found.not_judged("rates", "a stand-in has none")
        return
    reads_only = bool(cuda.attribute(READ_ONLY_HOST_REGISTER))
    with ExitStack() as ends:
        pinned = [cuda.host(_BYTES)]
        ends.callback(cuda, "cuMemFreeHost", pinned[0])
        device = [cuda.allocate(_BYTES) for _ in range(2)]
        for place in device:
            ends.callback(cuda.free, place)
        streams = [cuda.stream() for _ in range(2)]
        shared = {count: _shared(cuda, ends, count, PORTABLE) for count in _SEGMENTS}
        views = _shared(cuda, ends, 1, PORTABLE | READ_ONLY) if reads_only else []
        for part in _PARTS:

            def copies(starts: list[int], which: str, part: int = part) -> Begin:
                return lambda: _begin(cuda, starts, device, streams, which, part)

            for which in ("to_device", "to_host", "both"):
                cases = {
                    f"{count}_segments": copies(starts, which) for count, starts in shared.items()
                }
                if views and which == "to_device":
                    cases["mapped_for_reading"] = copies(views, which)
                _judge(
                    found, cuda, streams, f"{which}_{part // _MIB}mib", cases, copies(pinned, which)
                )


def _shared(cuda: Cuda, ends: ExitStack, count: int, flags: int) -> list[int]:
    """Addresses of segments that make up `_BYTES`, registered."""
    starts = []
    for _ in range(count):
        fd = segment.create(_BYTES // count)
        whole = segment.Mapping(fd, _BYTES // count)
        whole.touch(1)
        mapping = whole
        if flags & READ_ONLY:
            segment.seal(fd, read_only=True)
            mapping = segment.Mapping(fd, _BYTES // count, read_only=True)
            whole.close()
        os.close(fd)
        cuda("cuMemHostRegister_v2", mapping.start, mapping.nbytes, flags)
        ends.callback(mapping.close)
        ends.callback(cuda, "cuMemHostUnregister", mapping.start)
        starts.append(mapping.start)
    return starts


def _begin(
    cuda: Cuda, starts: list[int], device: list[int], streams: list[int], which: str, part: int
) -> None:
    """Gives the streams copies of all segments, in parts, by turns."""
    each = _BYTES // len(starts)
    for offset in range(0, each, part):
        nbytes = min(part, each - offset)
        for number, start in enumerate(starts):
            there = number * each + offset
            if which != "to_host":
                cuda("cuMemcpyHtoDAsync_v2", device[0] + there, start + offset, nbytes, streams[0])
            if which != "to_device":
                cuda("cuMemcpyDtoHAsync_v2", start + offset, device[1] + there, nbytes, streams[1])


def _judge(
    found: Findings,
    cuda: Cuda,
    streams: list[int],
    name: str,
    cases: dict[str, Begin],
    pinned: Begin,
) -> None:
    best = dict.fromkeys(["pinned", *cases], float("inf"))
    for _ in range(_ROUNDS):
        for case, begin in {"pinned": pinned, **cases}.items():
            started = time.perf_counter()
            begin()
            for stream in streams:
                cuda.wait(stream)
            best[case] = min(best[case], time.perf_counter() - started)
    moved = _BYTES * (2 if name.startswith("both") else 1)
    found.figure(f"{name}_pinned_gbps", round(moved / best["pinned"] / 1e9, 2))
    for case in cases:
        share = best["pinned"] / best[case]
        found.figure(f"{name}_{case}_share", round(share, 3))
        found.holds(
            f"{name} from {case} is at least {_LEAST_SHARE:.0%} of pinned",
            share >= _LEAST_SHARE,
            f"{share:.1%}",
        )
