"""How the ranks of a job find each other: over the sidecars' store, where the job has one.

In a job that goes on without lost nodes, ``init_process_group`` without an ``init_method`` uses it in place of the store
in the process of rank 0, whose loss would take the others' with it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

from .environment import Environment

if TYPE_CHECKING:
    from .store import Store

#: File of the store's socket in the run directory; there is one in jobs that go on without lost nodes.
SOCKET = "store.sock"
#: The scheme of ``init_method`` that means this store and no other.
SCHEME = "fireflyer"
#: How long a process waits for another's key unless ``init_process_group`` says otherwise; PyTorch's own.
_TIMEOUT = timedelta(minutes=30)
#: The store of each socket. PyTorch keeps what is behind the Python object, and needs the object as well.
_kept: dict[Path, Store] = {}


def register() -> None:
    """Lets ``init_process_group`` find the store. Called by ``import torch``."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    # PyTorch offers no way to take the place of a scheme. Without this one a script names ours.
    handlers = getattr(rendezvous, "_rendezvous_handlers", {})
    if SCHEME in handlers:
        return
    theirs = handlers.get("env")

    def ours_or_theirs(url: str, timeout: timedelta = _TIMEOUT, **rest: Any) -> Any:
        # An agent of torchrun has a store of its own, for the ranks that it starts.
        if _socket() is not None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return _meet(url, timeout)
        return theirs(url, timeout, **rest)

    rendezvous.register_rendezvous_handler(SCHEME, _meet)
    if theirs is not None:
        handlers["env"] = ours_or_theirs


def outlives_losses() -> bool:
    """Whether this is the pod of a job that goes on without lost nodes."""
    return _socket() is not None


def _socket() -> Path | None:
    """The store's socket, if this is the pod of a job that has one."""
    run_dir = Environment.read().run_dir
    socket = run_dir / SOCKET if run_dir is not None else None
    return socket if socket is not None and socket.exists() else None


def _meet(
    url: str, timeout: timedelta = _TIMEOUT, **_: Any
) -> Iterator[tuple[Store, int, int]]:
    """A rendezvous as ``init_process_group`` wants it: the store, this rank, and how many there are."""
    from .store import Store

    socket = _socket()
    if socket is None:
        raise ValueError(
            f"there is no {SOCKET} in the run directory: only a job with spec.failurePolicy.onPeerLoss Shrink "
            "has a store of its sidecars"
        )
    environment = Environment.read()
    query = parse_qs(urlparse(url).query)
    rank = int(query.get("rank", [environment.rank])[0])
    world_size = int(query.get("world_size", [environment.world_size])[0])
    store = _kept.setdefault(socket, Store(socket))
    store.set_timeout(timeout)
    yield store, rank, world_size
    raise RuntimeError("the ranks of a job meet once")
