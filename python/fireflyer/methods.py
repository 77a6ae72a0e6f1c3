"""What c10d calls: collectives and the like, over a communicator.

Owns what PyTorch sees of a group, whichever class of c10d's it is. What the calls mean is in `reductions`, `copies` and
`exchange`: what they export are methods here. Method and parameter names are c10d's: it calls some of them by keyword.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import copies, decision, exchange, reductions
from .call import Call
from .communicator import Communicator
from .membership import Members
from .opaque import methods
from .options import given


class Methods:
    """A group over the node's sidecar, or over gloo where there is none."""

    #: Where c10d asks a backend: a group of some ranks is opened anew, and not split off.
    supports_splitting = False

    def bind(self, store: dist.Store, communicator: Communicator) -> None:
        """The group's store, and what its collectives are called with. Called once, before anything else."""
        self._barriers = dist.PrefixStore("monitored_barrier", store)
        self.communicator = communicator

    def finish(self) -> None:
        """Waits a little for operations in flight; none can be called after it. Once the group is
        collected this is done by itself."""
        self.communicator.close()

    @property
    def numerics(self) -> str:
        """How the sidecars round sums of floats in this group: ``fast``, ``precise`` or ``bitwise``."""
        return self.communicator.numerics

    @property
    def uses_sidecar(self) -> bool:
        """Whether this group talks to the sidecar."""
        return self.communicator.client is not None

    @property
    def gloo_calls(self) -> int:
        """Collectives and messages of this group that went over gloo, on this rank."""
        return self.communicator.gloo.calls

    def members(self) -> Members | None:
        """Who takes part at present, if this group talks to the sidecar."""
        client = self.communicator.client
        if client is None:
            return None
        epoch, ranks, nodes = client.members(timeout=self.communicator.timeout)
        return Members(epoch, ranks, tuple(nodes))

    def getBackendName(self) -> str:
        """The name of the backend."""
        return "hfreduce"

    def barrier(self, opts: Any = None) -> dist.Work:
        """Is complete when all ranks have called it."""
        comm = self.communicator
        if not comm.takes([]):
            return comm.gloo.call("barrier", *given(opts))
        return comm.call([Call("barrier")], [None], [None])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Returns when all ranks have called it, or raises an `HFReduceError` that names those which have not within
        `timeout` (default: the group's), the first eight of them. With and without `wait_all_ranks`."""
        comm = self.communicator
        limit = timeout or timedelta(seconds=comm.timeout)
        standing = decision.Standing.ATTACHED
        decision.decide(
            self._barriers, comm.rank, comm.size, limit, standing, what="complete monitored_barrier"
        )

    def set_timeout(self, timeout: timedelta) -> None:
        """How long collectives that are called from here on are waited for."""
        self.communicator.timeout = timeout.total_seconds()


def _method(collective: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """A collective as a method of the group."""

    @functools.wraps(collective)
    def method(group: Methods, *arguments: Any, **named: Any) -> dist.Work:
        return collective(group.communicator, *arguments, **named)

    return method


for _module in (reductions, copies, exchange):
    for _name in _module.__all__:
        setattr(Methods, _name, _method(getattr(_module, _name)))

methods(Methods)
