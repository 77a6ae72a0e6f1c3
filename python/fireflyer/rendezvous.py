"""How the ranks of a job find each other: over PyTorch's own store at rank 0, or over one that can move.

In a job that goes on without lost nodes ``init_process_group`` without an ``init_method`` uses the store that can
move: the loss of rank 0 would leave the others without any.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

from .environment import Environment
from .limits import ROSTER_SECONDS

if TYPE_CHECKING:
    import torch.distributed as dist

    from .store import Store

#: The members, in the run directory. The sidecar replaces it before it goes on with others.
ROSTER = "roster.json"
#: The scheme of ``init_method`` that means the store that can move, and no other.
SCHEME = "fireflyer"
#: How long a process waits for a key unless ``init_process_group`` says otherwise; PyTorch's own.
_TIMEOUT = timedelta(minutes=30)
#: How often to look for the members, in seconds.
_LOOK = 0.05
#: The key under which a node's server has its port.
_PORT = "fireflyer/store/{}"
#: The store of each address of rank 0. PyTorch does not keep the Python object, and needs it.
_stores: dict[tuple[str, str], Store] = {}
#: This process's server, if it has one that is not rank 0's.
_server: dist.TCPStore | None = None


def register() -> None:
    """Lets ``init_process_group`` find the store. Called by ``import torch``."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    # PyTorch offers no way to take the place of a scheme. Without this one a script names ours.
    handlers = getattr(rendezvous, "_rendezvous_handlers", {})
    if SCHEME in handlers:
        return
    theirs = handlers.get("env", rendezvous.rendezvous)

    def ours_or_theirs(url: str, timeout: timedelta = _TIMEOUT, **rest: Any) -> Any:
        # An agent of torchrun has a store of its own, for the ranks that it starts.
        if outlives_losses() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return _rendezvous(theirs, url, timeout, **rest)
        return theirs(url, timeout=timeout, **rest)

    rendezvous.register_rendezvous_handler(SCHEME, functools.partial(_rendezvous, theirs))
    if "env" in handlers:
        handlers["env"] = ours_or_theirs


def outlives_losses() -> bool:
    """Whether this is the pod of a job that goes on without lost nodes."""
    environment = Environment.read()
    return environment.on_peer_loss == "Shrink" and environment.run_dir is not None


def _rendezvous(
    theirs: Any, url: str, timeout: timedelta = _TIMEOUT, **rest: Any
) -> Iterator[tuple[Store, int, int]]:
    """A rendezvous as ``init_process_group`` wants it: the store, this rank, and the world size."""
    from .store import Store

    if not outlives_losses():
        raise ValueError(
            "failed to make a store that can move to another node: "
            "only a job with spec.failurePolicy.onPeerLoss Shrink has one"
        )
    environment = Environment.read()
    query = parse_qs(urlparse(url).query)
    rank = int(query.get("rank", [environment.rank])[0])
    world_size = int(query.get("world_size", [environment.world_size])[0])
    master = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    store = _stores.get(master)
    if store is None:
        url = url.replace(f"{SCHEME}:", "env:", 1)
        first, _, _ = next(theirs(url, timeout=timeout, **rest))
        assert environment.run_dir is not None, "such a job has a run directory"
        members = _Members(environment.run_dir / ROSTER)
        servers = _servers(first, environment, members)
        store = _stores[master] = Store(members.lowest, servers, first)
    store.set_timeout(timeout)
    yield store, rank, world_size
    raise RuntimeError("failed to repeat the rendezvous: a job's ranks have one")


def _servers(first: dist.Store, environment: Environment, members: _Members) -> dict[int, Any]:
    """Connects to the server of each node. The first process of each node but rank 0's starts it."""
    global _server
    from .store import connect, serve

    addresses = members.addresses()
    node = environment.node_rank
    if environment.local_rank == 0 and node != 0:
        _server = _server or serve(addresses[node])
        first.set(_PORT.format(node), str(_server.port))
    others = [node for node in addresses if node != 0]
    ports = first.multi_get([_PORT.format(node) for node in others]) if others else []
    places = {0: (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))}
    places.update((node, (addresses[node], int(port))) for node, port in zip(others, ports))
    return {node: functools.partial(connect, *place) for node, place in places.items()}


class _Members:
    """Who takes part, as the sidecar says; parsed when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._nodes: list[dict[str, Any]] = []
        end = time.monotonic() + ROSTER_SECONDS
        while not self._read():
            if time.monotonic() > end:
                raise ValueError(
                    f"failed to find {path}: the sidecar writes it when its gang has joined; "
                    "look at its log"
                )
            time.sleep(_LOOK)

    def lowest(self) -> int:
        """The lowest node."""
        self._read()
        return self._nodes[0]["rank"]

    def addresses(self) -> dict[int, str]:
        """The address of each node."""
        self._read()
        return {node["rank"]: node["address"] for node in self._nodes}

    def _read(self) -> bool:
        try:
            stat = os.stat(self._path)
            if self._seen != (stat.st_ino, stat.st_mtime_ns):
                self._nodes = json.loads(self._path.read_bytes())["nodes"]
                self._seen = stat.st_ino, stat.st_mtime_ns
        except FileNotFoundError:
            pass  # A sidecar that starts again removes it until its gang goes on.
        return bool(self._nodes)
