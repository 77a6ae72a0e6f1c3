"""Memory of one GPU between two processes, as pairs over NVLink use it: what one writes the other reads, and when either is
killed in the middle of a copy the other goes on and the memory comes back.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from .cuda import Cuda, CudaError
from .findings import Findings
from .processes import Process, ProcessError, wait_until

_BYTES = 8 << 20
_ROUNDS = 100
#: How often each side is killed: a process takes about a second to open the GPU.
_KILLS = 4
#: Copies that are under way when a process is killed; the stand-in makes each of them itself.
_UNDER_WAY, _UNDER_WAY_THERE = 2000, 20
#: What a driver may keep for itself, for all processes together.
_SLACK_BYTES = 64 << 20
#: By when memory of a process that is gone has come back, in seconds.
_BACK_SECONDS = 10.0
_DAY_SECONDS = 86_400.0


def check(found: Findings) -> None:
    """Exports memory to other processes and kills them, then imports it from one that is killed."""
    cuda = Cuda()
    stream = cuda.stream()
    inbox = cuda.allocate(_BYTES)
    handle = cuda.export(inbox).hex()
    with Process(__name__, "write_rounds", {"handle": handle}) as writer:
        found.holds(f"opens, writes and closes {_ROUNDS} times", writer.value() == _ROUNDS)
    found.holds(
        "reads what another process wrote",
        cuda.read(inbox, _BYTES, stream) == bytes([_ROUNDS]) * _BYTES,
    )
    before = cuda.used_bytes()
    with tempfile.TemporaryDirectory(prefix="fireflyer-gpu-") as folder:
        for number in range(_KILLS):
            busy = Path(folder) / f"busy-{number}"
            arguments = {"handle": handle, "busy": str(busy)}
            with Process(__name__, "write_for_ever", arguments) as writer:
                _wait_for(busy, writer)
                writer.kill()
    cuda.write(inbox, b"\x07" * _BYTES, stream)
    found.holds(
        "goes on when the writer is killed in a copy",
        cuda.read(inbox, _BYTES, stream) == b"\x07" * _BYTES,
    )
    _comes_back(found, cuda, before, "killed writers")
    seen = []
    for _ in range(_KILLS):
        # A process of its own: what an error in its context breaks ends with it.
        with Process(__name__, "outlive_owner", {}) as importer:
            seen.append(importer.value())
    found.figure("copies_to_memory_of_a_killed_process", sorted(set(seen)))
    # Whichever answer is right: the memory may stay for as long as somebody has it open.
    found.holds(f"gets an answer when the owner is killed, {_KILLS} times", len(seen) == _KILLS)
    _comes_back(found, cuda, before, "killed owners")


def _comes_back(found: Findings, cuda: Cuda, before: int | None, whose: str) -> None:
    claim = f"memory of {whose} comes back"
    if before is None:
        found.not_judged(claim, "the stand-in does not say what is in use")
        return

    def is_back() -> bool:
        now = cuda.used_bytes()
        return now is not None and now <= before + _SLACK_BYTES

    try:
        wait_until(is_back, "the memory", _BACK_SECONDS)
    except ProcessError:
        found.holds(claim, False, f"{before} bytes in use before, {cuda.used_bytes()} after")
    else:
        found.holds(claim, True)


def _wait_for(place: Path, process: Process) -> None:
    """Waits until a process has made a file."""
    wait_until(
        lambda: place.exists() or process.popen.poll() is not None, f"{place.name} of a process"
    )
    if not place.exists():
        process.value()  # Raises what it raised.
        raise ProcessError(f"{process.what} has ended by itself")


def _say(place: str, text: str = "") -> None:
    fresh = Path(f"{place}.new")
    fresh.write_text(text)
    os.rename(fresh, place)


def write_rounds(handle: str) -> int:
    """In another process: opens the memory, fills it with the number of the round and closes it."""
    cuda = Cuda()
    stream, own = cuda.stream(), cuda.allocate(_BYTES)
    for number in range(1, _ROUNDS + 1):
        inbox = cuda.open(bytes.fromhex(handle))
        cuda.write(own, bytes([number]) * _BYTES, stream)
        cuda("cuMemcpyDtoDAsync_v2", inbox, own, _BYTES, stream)
        cuda.wait(stream)
        cuda("cuIpcCloseMemHandle", inbox)
    return _ROUNDS


def write_for_ever(handle: str, busy: str) -> None:
    """In another process, which is killed meanwhile."""
    cuda = Cuda()
    stream, own = cuda.stream(), cuda.allocate(_BYTES)
    inbox = cuda.open(bytes.fromhex(handle))
    while True:
        for _ in range(_under_way(cuda)):
            cuda("cuMemcpyDtoDAsync_v2", inbox, own, _BYTES, stream)
        _say(busy)
        cuda.wait(stream)


def own_until_killed(place: str) -> None:
    """In another process: exports memory, and is killed."""
    cuda = Cuda()
    _say(place, cuda.export(cuda.allocate(_BYTES)).hex())
    time.sleep(_DAY_SECONDS)


def outlive_owner() -> str:
    """In another process: copies to memory whose owner is killed meanwhile; what the driver said."""
    cuda = Cuda()
    stream, own = cuda.stream(), cuda.allocate(_BYTES)
    with tempfile.TemporaryDirectory(prefix="fireflyer-gpu-") as folder:
        place = Path(folder) / "handle"
        with Process(__name__, "own_until_killed", {"place": str(place)}) as owner:
            _wait_for(place, owner)
            inbox = cuda.open(bytes.fromhex(place.read_text()))
            try:
                for _ in range(_under_way(cuda)):
                    cuda("cuMemcpyDtoDAsync_v2", inbox, own, _BYTES, stream)
                owner.kill()
                cuda.wait(stream)
                cuda("cuIpcCloseMemHandle", inbox)
            except CudaError as error:
                return str(error)
    return "ok"


def _under_way(cuda: Cuda) -> int:
    return _UNDER_WAY_THERE if cuda.is_stand_in else _UNDER_WAY
