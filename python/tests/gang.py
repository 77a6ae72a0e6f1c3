"""Starts several ranks as processes and collects what they return.

Owns the processes, their environment and a deadline. What a rank does is a function of the test module.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

from fireflyer.sidecars import free_port

# Ranks start from a process that has imported PyTorch already, which costs seconds.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "torch.distributed"])

#: A gang that takes longer hangs, in seconds.
DEADLINE_SECONDS = 120.0

#: A user that owns nothing, as in the trainer's image.
NOBODY = 65_532

#: Ports in a row of a gang: one for each time that a test makes its group anew.
PORTS = 4


class Died:
    """A rank that ended without a result."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code

    def __repr__(self) -> str:
        return f"Died({self.exit_code})"


class Raised:
    """A rank that raised."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        self.text = str(error)
        self.trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))

    def __repr__(self) -> str:
        return f"Raised({self.trace})"


def run(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    backend: str | None = "gloo",
    variables: list[dict[str, str]] | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> list[Any]:
    """Calls `function(*arguments)` in `world_size` ranks; returns results, `Raised` or `Died` by rank."""
    port = free_port(PORTS)
    ranks = []
    for rank in range(world_size):
        here, there = context.Pipe(duplex=False)
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            # Debian builds PyTorch without libuv, which its store asks for by default.
            "USE_LIBUV": "0",
            "FIREFLYER_RUN_DIR": "/nonexistent",
            **(variables[rank] if variables else {}),
        }
        described = (there, own, backend, function, arguments, deadline_seconds)
        process = context.Process(target=_rank, args=described)
        process.start()
        there.close()
        ranks.append((process, here))
    end = time.monotonic() + deadline_seconds
    results: list[Any] = []
    try:
        for process, pipe in ranks:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise AssertionError(f"rank {len(results)} hangs; so far {results}")
            try:
                results.append(pipe.recv())
            except EOFError:
                process.join(10)
                results.append(Died(process.exitcode))
    finally:
        for process, _ in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    return results


def successes(results: list[Any]) -> list[Any]:
    """The results, none of which may be an error."""
    for rank, result in enumerate(results):
        if isinstance(result, (Raised, Died)):
            raise AssertionError(f"rank {rank}: {result}")
    return results


def drop_rights() -> None:
    """From here on this process may write only what everybody may; root may write everything."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _rank(
    pipe: Any,
    variables: dict[str, str],
    backend: str | None,
    function: Callable[..., Any],
    arguments: Any,
    deadline_seconds: float,
) -> None:
    os.environ.update(variables)
    # Where it is, of one that hangs.
    faulthandler.dump_traceback_later(0.9 * deadline_seconds)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if backend is not None:
            dist.init_process_group(backend)
        result = function(*arguments)
    except BaseException as error:  # Whatever it is, the test decides.
        result = Raised(error)
    pipe.send(result)
    pipe.close()
    if isinstance(result, Raised):
        # Without destroying the group: a rank whose peers died must end too.
        os._exit(0)
