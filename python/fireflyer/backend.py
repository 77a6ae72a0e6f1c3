"""The ``hfreduce`` backend of ``torch.distributed``.

`import torch` finds `register` through the wheel's entry point, so a script only says
``init_process_group("hfreduce")``. Owns the name and the decision whether a group talks to the node's
sidecar; the group itself is in `group`, imported when the first one is made.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import weakref
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from .environment import FALLBACK, RUN_DIR, Environment
from .errors import HFReduceError
from .group_options import Options

if TYPE_CHECKING:
    from ._native import Client, Group
    from .group import HFReduceGroup
    from .pairs import Policy

_log = logging.getLogger(__name__)

NAME = "hfreduce"
#: The versions of PyTorch whose process groups have the methods that ours has.
OLDEST, NEWEST = (2, 5), (2, 15)
#: File of the sidecar's socket in the run directory.
SOCKET = "hfreduce.sock"
#: How long a sidecar that has a socket may take to answer, in seconds.
ATTACH_SECONDS = 60.0

#: When, among what is done at a process's end, it says that it leaves: what may still talk to others comes first.
_LAST = -100

#: The group that talks to the sidecar: one a process, while it lives.
_owner: weakref.ref[HFReduceGroup] | None = None
#: The connection to the sidecar, with the process that made it. It outlives groups: a process that has left
#: cannot come back in the same attempt.
_connection: tuple[int, Client] | None = None
#: How many groups of all ranks have talked to the sidecar, and how often each name was opened since the last one
#: was made: a group's number is used once.
_generation = 0
_opened: dict[str, int] = {}
#: What a rank reports when a group is made. The smallest decides for all.
_FAILED, _ALONE, _ATTACHED = 0, 1, 2


def register() -> None:
    """Makes ``hfreduce`` known to ``torch.distributed``. Called by ``import torch``."""
    import torch.distributed as dist
    from torch.version import __version__ as torch_version

    if not dist.is_available():
        return
    from . import rendezvous

    rendezvous.register()
    _look_at_version(torch_version)
    if NAME not in dist.Backend.backend_list:
        # Also for "cuda", so that its tensors get an answer of ours and not one about a missing backend.
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _look_at_version(version: str) -> None:
    """Says so if PyTorch is a version whose calls of a backend nobody has compared with ours."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    known = numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST
    if not known:
        _log.warning(
            "hfreduce supports PyTorch %d.%d to %d.%d, this is %s: collectives under new names would go over gloo",
            *OLDEST, *NEWEST, version,
        )  # fmt: skip


def _create(options: Any, backend_options: Any) -> HFReduceGroup:
    """Makes a group. Collective: all members decide together whether it talks to the sidecars.

    An `HFReduceError` on all ranks, when one of them has a sidecar and cannot use it, or should have one.
    `backend_options` are the group's `Options`, or nothing.
    """
    global _owner, _generation
    import torch
    import torch.distributed as dist

    _refuse_others(sys._getframe(1).f_locals.get("backend_config"))
    from . import average, rendezvous
    from .group import HFReduceGroup

    rank, size = options.group_rank, options.group_size
    gloo = dist.ProcessGroupGloo(options.store, rank, size, options.timeout)
    client, lane, error, why_not, numerics, pairs = None, None, None, "", "fast", None
    ranks = list(options.global_ranks_in_group)
    # A group of some ranks, or of all of them again, is opened beside the one of all that talks to the sidecar.
    is_part = bool(ranks) and (_owns() or not _is_world(ranks))
    asked = Options()
    try:
        asked = Options.of(backend_options)
        numerics = asked.numerics or Environment.read().numerics.lower()
        pairs = _pairs(ranks or list(range(size)), options.group_id, is_part, asked)
        client, why_not = _attached() if is_part else _attach(rank, size)
    except (HFReduceError, ImportError, ValueError) as raised:
        # Reported after the others know: they wait for this rank.
        error = raised
    state = _FAILED if error is not None else _ALONE if client is None else _ATTACHED
    flag = torch.tensor([state], dtype=torch.int32)
    gloo.allreduce([flag], dist.ReduceOp.MIN).wait()
    if int(flag) == _FAILED:
        raise error or HFReduceError("failed to attach to the sidecar on another rank: read that rank's output")
    if int(flag) == _ALONE and client is not None:
        client, why_not = None, "other ranks cannot use their sidecar"
    if client is not None and is_part:
        number = _number(str(options.group_id))
        try:
            limit = options.timeout.total_seconds()
            lane = client.open(number, ranks, asked.replicated, limit, asked.priority)
        except HFReduceError as refused:
            # The same on all members, as all answers about groups are.
            if "which is not possible" not in str(refused):
                raise
            client, why_not = None, str(refused)
    if client is None and rank == 0:
        _log.warning("hfreduce goes over gloo in a group of %d: %s", size, why_not)
    group = HFReduceGroup(options.store, rank, size, options.timeout, gloo, client, lane, numerics, pairs)
    if client is not None and rendezvous.outlives_losses():
        average.install()
    if client is not None and not is_part:
        _owner = weakref.ref(group)
        _generation += 1
        _opened.clear()
    return group


def _refuse_others(config: Any) -> None:
    """PyTorch takes a group of ours for the whole group, and would drop the other backends of a string like
    ``cpu:hfreduce,cuda:nccl`` without a word. It says nowhere but in its caller's variable which there are."""
    named = getattr(config, "device_backend_map", {})
    others = sorted({str(backend) for backend in named.values()} - {NAME})
    if others:
        raise HFReduceError(
            f"failed to make a group of {config}: PyTorch would drop {', '.join(others)}; use one backend, and "
            f'make a group of the other one beside it: new_group(backend="{others[0]}")'
        )


def _pairs(ranks: list[int], group_id: Any, is_part: bool, asked: Options) -> Policy | None:
    """How a group uses GPUs that share an NVLink: as its options say, else as the environment does. None: not at all."""
    environment = Environment.read()
    if (asked.nvlink or environment.nvlink.lower()) == "never":
        return None
    from .pairs import Policy

    # The group of all goes on when ranks are lost, where any does.
    replicated, priority = (asked.replicated, asked.priority) if is_part else (True, 0)
    first, second = (_number(f"{group_id} nvlink {half}") for half in range(2))
    least = environment.nvlink_least_bytes
    return Policy(least, ranks, (first, second), replicated, priority)


def _owns() -> bool:
    """Whether a group of this process talks to the sidecar for all ranks."""
    return _owner is not None and _owner() is not None


def _attached() -> tuple[Client | None, str]:
    """The open connection, for a group of some ranks."""
    if not _owns() or _connection is None or _connection[0] != os.getpid():
        return None, "the group of all ranks does not talk to the sidecar"
    return _connection[1], ""


def _number(name: str) -> int:
    """A number for a group that PyTorch calls `name`: the same on all its ranks, and never used before."""
    _opened[name] = _opened.get(name, 0) + 1
    words = f"{_generation} {_opened[name]} {name}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") or 1


def _is_world(ranks: list[int]) -> bool:
    """Whether these are all ranks in order: no list means the default group."""
    import torch.distributed as dist

    return not ranks or (dist.is_initialized() and ranks == list(range(dist.get_world_size())))


def _attach(rank: int, size: int) -> tuple[Client | None, str]:
    """The connection to the node's sidecar, or why there is none to have."""
    global _connection
    environment = Environment.read()
    if environment.backend == "None":
        return None, "spec.communication.backend of the job is None"
    if environment.run_dir is None:
        return None, f"there is no {RUN_DIR}, this is not a job's pod"
    if _owner is not None and _owner() is not None:
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
