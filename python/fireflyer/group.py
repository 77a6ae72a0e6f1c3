"""The process group: c10d's methods over a communicator.

Owns what PyTorch sees of a group. What c10d's calls mean is in `reductions`, `copies` and `exchange`: what they
export are methods here. Method and parameter names are c10d's: it calls some of them by keyword.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import copies, exchange, reductions
from .call import Call
from .communicator import Communicator
from .membership import Members
from .options import given

if TYPE_CHECKING:
    from ._native import Client, Group
    from .pairs import Policy


class HFReduceGroup(dist.ProcessGroup):
    """A process group over the node's sidecar, or over gloo where there is none."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        gloo: dist.ProcessGroupGloo,
        client: Client | None,
        lane: Group | None = None,
        numerics: str = "fast",
        policy: Policy | None = None,
    ) -> None:
        super().__init__(store, rank, size)
        # What this class does not define is done by the base class, over the registered gloo. What it does
        # define cannot be had from the base class any more, which would call back here: hence `inner`.
        inner = dist.ProcessGroup(store, rank, size)
        for group in (self, inner):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        gloo._set_sequence_number_for_group()
        #: What its collectives are called with.
        self.communicator = Communicator(
            rank, size, timeout.total_seconds(), inner, client, lane, numerics, policy
        )

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
            return comm.gloo.barrier(*given(opts))
        return comm.call([Call("barrier")], [None], [None])


def _method(collective: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """A collective as a method of the group."""

    @functools.wraps(collective)
    def method(group: HFReduceGroup, *arguments: Any, **named: Any) -> dist.Work:
        return collective(group.communicator, *arguments, **named)

    return method


for _module in (reductions, copies, exchange):
    for _name in _module.__all__:
        setattr(HFReduceGroup, _name, _method(getattr(_module, _name)))
