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

from . import copies, decision, exchange, reductions
from .call import Call
from .communicator import Communicator
from .membership import Members
from .options import given

if TYPE_CHECKING:
    from ._native import Client, Group
    from .gloo import Gloo
    from .pairs import Policy


class HFReduceGroup(dist.ProcessGroup):
    """A process group over the node's sidecar, or over gloo where there is none."""

    #: Where c10d asks a backend: a group of some ranks is opened anew, and not split off.
    supports_splitting = False

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        gloo: Gloo,
        client: Client | None,
        lane: Group | None = None,
        numerics: str = "fast",
        policy: Policy | None = None,
    ) -> None:
        super().__init__(store, rank, size)
        # No backend is registered: what this class does not define is an error, and does not go past the sidecar.
        self._name = self._description = ""
        self._barriers = dist.PrefixStore("monitored_barrier", store)
        #: What its collectives are called with.
        self.communicator = Communicator(
            rank, size, timeout.total_seconds(), gloo, client, lane, numerics, policy
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
        """Returns when all ranks have called it, or raises an `HFReduceError` that names all which have not within
        `timeout` (default: the group's). With and without `wait_all_ranks`."""
        limit = timeout or timedelta(seconds=self.communicator.timeout)
        standing = decision.Standing.ATTACHED
        decision.decide(
            self._barriers, self.rank(), self.size(), limit, standing, what="complete monitored_barrier"
        )

    def set_timeout(self, timeout: timedelta) -> None:
        """How long collectives that are called from here on are waited for."""
        self.communicator.timeout = timeout.total_seconds()

    # c10d keeps these in registered backends.

    @property
    def group_name(self) -> str:
        """What c10d calls it."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """What its maker says it is for."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        """Whose tensors it takes, for c10d."""
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    def _get_backend(self, device: torch.device) -> HFReduceGroup:
        """Of every device, for c10d: there are no others."""
        return self


def _method(collective: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """A collective as a method of the group."""

    @functools.wraps(collective)
    def method(group: HFReduceGroup, *arguments: Any, **named: Any) -> dist.Work:
        return collective(group.communicator, *arguments, **named)

    return method


for _module in (reductions, copies, exchange):
    for _name in _module.__all__:
        setattr(HFReduceGroup, _name, _method(getattr(_module, _name)))
