"""Memory that is shared with a sidecar can be registered with the GPU, by two processes at once, without a right.

(a) A sealed memfd that is mapped for reading and writing; (b) one that this process may only read, with the driver's flag
for it, where the GPU has the attribute; (c) not without that flag, or the GPU could write what the process cannot. Each from
64 KiB to 4 GiB, with a limit on locked memory of 64 KiB and under the system calls that containers are left by default.
A copy through it arrives. Memory is unregistered before it is unmapped.
"""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from typing import Any

from . import machine, seccomp, segment
from .cuda import PORTABLE, READ_ONLY, READ_ONLY_HOST_REGISTER, Cuda, CudaError
from .findings import Findings
from .processes import Process

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_SIZES = [64 * KIB, 4 * MIB, 256 * MIB, 4 * GIB]
_STAND_IN_SIZES = [64 * KIB, 4 * MIB]
#: So much is copied at either end of a segment, and there is a place for each process beside that.
_COPIED = 8 * KIB
_LOCKED_BYTES = 64 * KIB


def check(found: Findings) -> None:
    """Two processes register the same segments."""
    sizes = _STAND_IN_SIZES if Cuda().is_stand_in else _SIZES
    most = machine.available_bytes() // 3
    for nbytes in [one for one in sizes if one > most]:
        found.not_judged(f"registers {nbytes >> 20} MiB", "the machine has too little free memory")
    sizes = [one for one in sizes if one <= most]
    segments = [(nbytes, segment.create(nbytes), segment.create(nbytes)) for nbytes in sizes]
    for nbytes, both, reads in segments:
        for fd in (both, reads):
            whole = segment.Mapping(fd, nbytes)
            whole.touch(0)
            for offset in _ends(nbytes):
                whole.fill(offset, _pattern(offset))
            whole.close()
        segment.seal(both, read_only=False)
        segment.seal(reads, read_only=True)
    fds = [fd for _, *pair in segments for fd in pair]
    with ExitStack() as ends:
        for fd in fds:
            ends.callback(os.close, fd)
        processes = [
            ends.enter_context(
                Process(
                    __name__, "register", {"segments": segments, "number": number}, pass_fds=fds
                )
            )
            for number in range(2)
        ]
        for number, process in enumerate(processes):
            _judge(found, process.value(), number)


def _judge(found: Findings, seen: dict[str, Any], number: int) -> None:
    found.figure("reads_only_attribute", seen["attribute"])
    found.figure("seccomp", seen["seccomp"])
    if not seen["seccomp"]:
        found.not_judged("works under a container's seccomp", "only x86-64's numbers are known")
    for one in seen["segments"]:
        which = f"{one['nbytes'] >> 10} KiB in process {number}"
        found.holds(f"(a) registers {which}", not one["both"], one["both"])
        if seen["attribute"]:
            found.holds(f"(b) registers {which} for reading", not one["reads"], one["reads"])
        else:
            found.not_judged(f"(b) {which}", "the GPU lacks attribute 113, so we copy instead")
        if seen["is_stand_in"]:
            found.not_judged(f"(c) {which}", "the stand-in does not look at mappings")
        else:
            found.holds(
                f"(c) is refused without the flag, {which}",
                bool(one["without"]),
                "the driver took memory that is mapped for reading as if it could be written",
            )


def register(segments: list[tuple[int, int, int]], number: int) -> dict[str, Any]:
    """In each process: registers all of them, copies there and back, and lets them go."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (_LOCKED_BYTES, _LOCKED_BYTES))
    restricted = seccomp.restrict()
    cuda = Cuda()
    stream, device = cuda.stream(), cuda.allocate(_COPIED)
    seen = []
    for nbytes, both, reads in segments:
        whole = segment.Mapping(both, nbytes)
        view = segment.Mapping(reads, nbytes, read_only=True)
        seen.append(
            {
                "nbytes": nbytes,
                "both": _tried(cuda, whole, PORTABLE, stream, device, number),
                "without": _refused(cuda, view),
                "reads": _tried(cuda, view, PORTABLE | READ_ONLY, stream, device, number),
            }
        )
        whole.close()
        view.close()
    cuda.free(device)
    attribute = cuda.attribute(READ_ONLY_HOST_REGISTER)
    return {
        "segments": seen,
        "attribute": attribute,
        "is_stand_in": cuda.is_stand_in,
        "seccomp": restricted,
    }


def _refused(cuda: Cuda, view: segment.Mapping) -> str:
    """Why memory for reading cannot be registered without the flag; empty if it can."""
    if cuda.is_stand_in:
        return ""
    try:
        cuda("cuMemHostRegister_v2", view.start, view.nbytes, PORTABLE)
    except CudaError as error:
        return str(error)
    cuda("cuMemHostUnregister", view.start)
    return ""


def _tried(
    cuda: Cuda, mapping: segment.Mapping, flags: int, stream: int, device: int, number: int
) -> str:
    """Registers a mapping, copies both ends of it to the GPU and, where it may be written, back to a place of this
    process's; what went wrong."""
    try:
        cuda("cuMemHostRegister_v2", mapping.start, mapping.nbytes, flags)
    except CudaError as error:
        return str(error)
    wrong = ""
    for offset in _ends(mapping.nbytes):
        cuda("cuMemcpyHtoDAsync_v2", device, mapping.start + offset, _COPIED, stream)
        cuda.wait(stream)
        if cuda.read(device, _COPIED, stream) != _pattern(offset):
            wrong = f"a copy from {offset} brought other bytes"
        if not flags & READ_ONLY:
            place = offset + _COPIED * (1 + number) * (1 if offset == 0 else -1)
            cuda("cuMemcpyDtoHAsync_v2", mapping.start + place, device, _COPIED, stream)
            cuda.wait(stream)
            if mapping.read(place, _COPIED) != _pattern(offset):
                wrong = f"a copy to {place} wrote other bytes"
    cuda("cuMemHostUnregister", mapping.start)
    return wrong


def _ends(nbytes: int) -> list[int]:
    return sorted({0, nbytes - _COPIED})


def _pattern(offset: int) -> bytes:
    return bytes((offset // _COPIED + at * 7) % 251 for at in range(_COPIED))
