"""Functions of `torch.distributed` that ask for the name of a backend and know PyTorch's own only.

Owns what they do for a group of ours. Where a group is another backend's they do what they did.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from .methods import Methods


def install() -> None:
    """Lets them know hfreduce. Called by ``import torch``."""
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    if getattr(module.monitored_barrier, "__module__", None) == __name__:
        return
    module.monitored_barrier = dist.monitored_barrier = _monitored_barrier(module.monitored_barrier)
    module._set_pg_timeout = _set_pg_timeout(module._set_pg_timeout)


def keep_flight_recorder(name: str, *, away: bool) -> None:
    """Whether newer versions of PyTorch attach their flight recorder to groups of the backend `name` that are made from here on:
    only to backends can they. The sidecar has one of its own."""
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    recording = getattr(module, "_FR_SELF_RECORDING_BACKENDS", None)
    if recording is not None:
        module._FR_SELF_RECORDING_BACKENDS = {*recording, name} if away else {*recording} - {name}


def _ours(group: Any) -> Methods | None:
    from .group import backend_of

    return backend_of(group) if dist.is_initialized() else None


def _monitored_barrier(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        ours = _ours(group)
        if ours is not None:
            ours.monitored_barrier(timeout, wait_all_ranks)
        else:
            theirs(group, timeout, wait_all_ranks)

    monitored_barrier.__module__ = __name__
    return monitored_barrier


def _set_pg_timeout(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        ours = _ours(group)
        if isinstance(ours, dist.ProcessGroup):
            ours.set_timeout(timeout)
        else:
            theirs(timeout, group)

    return _set_pg_timeout
