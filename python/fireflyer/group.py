"""What c10d gets for a group: a group of ours in place of its own, or a backend of its own group's, beside others.

The former is the rule: c10d then hands our handles to the script, which it does not with a backend's. Only newer versions of
PyTorch let Python make a backend.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from .communicator import Communicator
from .methods import Methods
from .opaque import methods
from .work import HFReduceWork, asked


@methods
class HFReduceGroup(Methods, dist.ProcessGroup):
    """In place of c10d's own group."""

    def __init__(self, store: dist.Store, communicator: Communicator) -> None:
        super().__init__(store, communicator.rank, communicator.size)
        self.bind(store, communicator)
        # No backend is registered: what this class does not define is an error, and does not go past the sidecar.
        self._name = self._description = ""

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
        """Whose tensors it takes."""
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    def _get_backend(self, device: torch.device) -> HFReduceGroup:
        """Of every device: there are no others."""
        return self


@methods
class HFReduceBackend(Methods, Backend):
    """A backend of c10d's own group, for some of its devices. The script's handles are c10d's, which have `wait` and
    `get_future` of ours, and nothing else."""

    #: Those that are in use. PyTorch's wrapper that checks arguments does not keep them.
    _used: set[HFReduceBackend] = set()

    def __init__(self, store: dist.Store, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self.bind(store, communicator)
        self._used.add(self)

    def _get_sequence_number_for_group(self) -> int:
        return self.communicator.called

    def shutdown(self) -> None:
        """The group is destroyed."""
        self._used.discard(self)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """As `Methods.monitored_barrier`; c10d gives options."""
        super().monitored_barrier(getattr(timeout, "timeout", timeout), wait_all_ranks)

    @property
    def options(self) -> Backend.Options:
        """As c10d gives them to parts of the group."""
        return Backend.Options("hfreduce", timedelta(seconds=self.communicator.timeout))


@functools.cache
def has_backends() -> bool:
    """Whether this PyTorch lets Python make a backend."""
    try:
        Backend(0, 1)
    except TypeError:
        return False
    return True


def backend_of(group: Any = None, device: torch.device | None = None) -> Any:
    """What hfreduce is in a group of `torch.distributed`.

    Args:
        group: the default one, if none is given.
        device: whose tensors are meant; any, if none is given.

    Returns:
        An object with ``uses_sidecar``, ``gloo_calls``, ``numerics`` and ``members()``. None where other backends are used.
    """
    group = dist.group.WORLD if group is None else group
    if isinstance(group, Methods):
        return group
    for one in getattr(group, "_device_types", ()):
        if device is None or device.type == one.type:
            backend = group._get_backend(one)
            if isinstance(backend, Methods):
                return backend
    return None


def participants(work: dist.Work) -> int | None:
    """How many ranks took part in a collective, which is what an average was divided by.

    Args:
        work: what a collective with ``async_op=True`` has returned.

    Returns:
        None before it has succeeded, and of what went over gloo or is another backend's.
    """
    if isinstance(work, HFReduceWork):
        return work.participants()
    # A backend's handle is kept by one of c10d's, which asks it for a future here and now.
    asked.work = None
    work.get_future()
    return None if asked.work is None else asked.work.participants()
