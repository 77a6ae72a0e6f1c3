"""This process's connection to the sidecar of its node.

Owns the one connection, which group of all ranks it belongs to, and its end: a process that has left cannot come back in
the same attempt, so the connection outlives groups.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

from .collective_error import HFReduceError
from .environment import FALLBACK, RUN_DIR, Environment
from .limits import ATTACH_SECONDS

if TYPE_CHECKING:
    from ._native import Client
    from .methods import Methods

#: File of the sidecar's socket in the run directory.
SOCKET = "hfreduce.sock"

#: When, among what is done at a process's end, it says that it leaves: what may still talk to others comes first.
_LAST = -100

#: The group that talks to the sidecar: one a process, while it lives.
_owner: weakref.ref[Methods] | None = None
#: The connection, with the process that made it.
_connection: tuple[int, Client] | None = None
#: How many groups of all ranks have talked to the sidecar, and how often each name was opened since the last one
#: was made: a group's number is used once.
_generation = 0
_opened: dict[str, int] = {}


def own(group: Methods) -> None:
    """From here on `group`, one of all ranks, is who talks to the sidecar."""
    global _owner, _generation
    _owner = weakref.ref(group)
    _generation += 1
    _opened.clear()


def is_owned() -> bool:
    """Whether a group of this process talks to the sidecar for all ranks."""
    return _owner is not None and _owner() is not None


def shared() -> tuple[Client | None, str]:
    """The open connection, for a group of some ranks, or why there is none to have."""
    if not is_owned() or _connection is None or _connection[0] != os.getpid():
        return None, "the group of all ranks does not talk to the sidecar"
    return _connection[1], ""


def number_of(name: str) -> int:
    """A number for a group that PyTorch calls `name`: the same on all its ranks, and never used before."""
    _opened[name] = _opened.get(name, 0) + 1
    words = f"{_generation} {_opened[name]} {name}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") or 1


def attach(rank: int, size: int) -> tuple[Client | None, str]:
    """The connection, for a group of all ranks, or why there is none to have.

    An `HFReduceError`, where there should be one.
    """
    global _connection
    environment = Environment.read()
    if environment.backend == "None":
        return None, "spec.communication.backend of the job is None"
    if environment.run_dir is None:
        return None, f"there is no {RUN_DIR}, this is not a job's pod"
    if is_owned():
        # Two groups on one connection would have to agree on an order between their operations.
        return None, "another group of all ranks talks to the sidecar already"
    socket = environment.run_dir / SOCKET
    if not socket.exists():
        why_not = f"there is no {socket}, this pod has no sidecar"
        if environment.falls_back:
            return None, why_not
        raise HFReduceError(
            f"failed to make a group: {why_not}. The job asks for HFReduce: see why the container `hfreduce` of this pod does "
            f"not run; or set {FALLBACK}=gloo to train over gloo, at its speed"
        )
    if _connection is None or _connection[0] != os.getpid():
        from ._native import Client

        _connection = os.getpid(), Client.attach(socket, environment.local_rank, ATTACH_SECONDS)
        # `atexit` would not do: before Python 3.13 a process that multiprocessing has forked skips it.
        Finalize(None, _leave, exitpriority=_LAST)
    client = _connection[1]
    if (client.rank, client.world_size) != (rank, size):
        raise HFReduceError(
            f"failed to make a group: the sidecar says this process is rank {client.rank} of {client.world_size}, "
            f"torch.distributed says rank {rank} of {size}; use the launcher's RANK, LOCAL_RANK and WORLD_SIZE"
        )
    return client, ""


def _leave() -> None:
    """Leaves in good order: the sidecar takes a process that just ends for dead."""
    group = _owner() if _owner is not None else None
    if group is not None:
        group.finish()
    if _connection is not None and _connection[0] == os.getpid():
        _connection[1].close()
