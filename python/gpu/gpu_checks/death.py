"""When a sidecar is killed, ranks get an error in time and the GPU goes on; a rank that just ends, or forks, harms nobody; and
nothing grows.

A sidecar is killed at moments spread over a large all-reduce: while its input is copied to the host, reduced, copied back.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import device, gang, kit
from .findings import Findings
from .processes import wait_until

#: The file, beside the sidecars', by which a rank asks for the end of one.
_ASKED = "kill"
#: Parts of the time of an all-reduce after which the sidecar is killed.
_MOMENTS = [0.0, 0.2, 0.4, 0.6, 0.8]
_COUNT, _REHEARSED_COUNT = 64 << 20, 1 << 20
#: The neighbour of a killed sidecar is given up after 10 s; ranks learn of it at once after that.
_ERROR_SECONDS = 30.0
_ROUNDS, _REHEARSED_ROUNDS = 500, 60
_WARM_ROUNDS = 50
#: What may grow by chance: libraries, threads' stacks; and on the GPU what PyTorch rounds up.
_SLACK_MAPPINGS, _SLACK_FDS, _SLACK_BYTES = 16, 8, 32 << 20


def check(found: Findings) -> None:
    """Each case with ranks of its own; those with a killed sidecar side by side."""
    rehearses = kit.current().rehearses
    count = _REHEARSED_COUNT if rehearses else _COUNT
    with ExitStack() as ends:
        gangs = []
        for moment in _MOMENTS[: 2 if rehearses else None]:
            started = ends.enter_context(
                gang.Gang(__name__, "lose_sidecar", {"moment": moment, "count": count})
            )
            gangs.append((moment, started))
        _kill_when_asked([started for _, started in gangs])
        for moment, started in gangs:
            for rank, seen in enumerate(started.values()):
                which = f"rank {rank}, killed at {moment:.0%}"
                found.figure(f"seconds_to_error_rank_{rank}_at_{moment:g}", seen["seconds"])
                # At the very end the result may have been there.
                found.holds(
                    f"an error or the sum in time ({which})",
                    seen["seconds"] < _ERROR_SECONDS and (bool(seen["error"]) or seen["is_sum"]),
                    str(seen),
                )
                found.holds(f"the GPU goes on ({which})", seen["goes_on"])
    found.holds("a rank that ends without a word is no error", _statuses("just_end") == [0, 0])
    for rank, error in enumerate(gang.run(__name__, "use_in_fork", {})):
        found.holds(f"a forked child gets an error (rank {rank})", "process" in error, error)
    rounds = _REHEARSED_ROUNDS if rehearses else _ROUNDS
    for rank, seen in enumerate(gang.run(__name__, "go_round", {"rounds": rounds})):
        for what, slack in (
            ("mappings", _SLACK_MAPPINGS), ("fds", _SLACK_FDS), ("gpu_bytes", _SLACK_BYTES),
        ):  # fmt: skip
            before, after = seen[what]
            found.figure(f"{what}_rank_{rank}", seen[what])
            found.holds(
                f"{what} are flat over {rounds} rounds (rank {rank})",
                after <= before + slack,
                f"{before} before, {after} after",
            )


def _statuses(function: str) -> list[int]:
    with gang.Gang(__name__, function, {}) as started:
        return [rank.status() for rank in started.ranks]


def _kill_when_asked(gangs: list[gang.Gang]) -> None:
    """Kills each gang's second sidecar when its rank says so; nothing of one whose ranks have ended."""
    waiting = list(gangs)

    def all_killed() -> bool:
        for started in list(waiting):
            sidecars = started.sidecars
            assert sidecars is not None
            if (sidecars.folder / _ASKED).exists():
                sidecars.processes[1].kill()
                waiting.remove(started)
            elif any(rank.popen.poll() is not None for rank in started.ranks):
                waiting.remove(started)
        return not waiting

    wait_until(all_killed, "the moment to kill a sidecar")


def lose_sidecar(moment: float, count: int) -> dict[str, Any]:
    """In each rank: what came of an all-reduce whose sidecar is killed, when, and whether the GPU goes on."""
    tensor = torch.ones(count, device=device.DEVICE)
    seconds = 0.0
    for _ in range(2):
        dist.barrier()
        tensor.fill_(1)
        device.synchronize()
        started = time.monotonic()
        dist.all_reduce(tensor)
        device.synchronize()
        seconds = time.monotonic() - started
    tensor.fill_(1)
    device.synchronize()
    dist.barrier()
    work = dist.all_reduce(tensor, async_op=True)
    time.sleep(moment * seconds)
    if gang.rank() == 1:
        (Path(os.environ["FIREFLYER_RUN_DIR"]).parent / _ASKED).touch()
    started = time.monotonic()
    error, is_sum = "", False
    try:
        work.wait()
        device.synchronize()
        is_sum = bool(tensor.eq(dist.get_world_size()).all())
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    waited = time.monotonic() - started
    other = torch.arange(1000, device=device.DEVICE)
    goes_on = int(other.sum()) == 499_500
    return {
        "seconds": round(waited, 3),
        "error": error,
        "is_sum": is_sum,
        "goes_on": goes_on,
    }


def just_end() -> None:
    """In each rank: ends after a collective, without destroying the group."""
    tensor = torch.ones(1 << 20, device=device.DEVICE)
    dist.all_reduce(tensor)


def use_in_fork() -> str:
    """In each rank: what a forked child gets that uses the group, and that the parent goes on."""
    tensor = torch.ones(1 << 20, device=device.DEVICE)
    dist.all_reduce(tensor)
    device.synchronize()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        error = "no error in the child"
        try:
            dist.all_reduce(torch.ones(4))
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        finally:
            os.write(writes, error.encode())
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode()
    tensor.fill_(1)
    dist.all_reduce(tensor)
    assert bool(tensor.eq(dist.get_world_size()).all()), "the parent's next sum is wrong"
    return said


def go_round(rounds: int) -> dict[str, Any]:
    """In each rank: what it holds after some rounds, and after all."""
    before: dict[str, int] = {}
    for number in range(rounds):
        if number == _WARM_ROUNDS:
            before = _held()
        tensor = torch.ones(1000 + 4096 * (number % 8), device=device.DEVICE)
        dist.all_reduce(tensor)
    device.synchronize()
    after = _held()
    return {what: [before[what], after[what]] for what in after}


def _held() -> dict[str, int]:
    mappings = Path("/proc/self/maps").read_text().count("\n")
    return {
        "mappings": mappings,
        "fds": len(os.listdir("/proc/self/fd")),
        "gpu_bytes": device.used_bytes(),
    }
