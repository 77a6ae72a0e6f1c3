"""Functions of `torch.distributed` that ask for the name of a backend and know PyTorch's own only.

Owns what they do for a group of ours. Where a group is another backend's they do what they did.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist


def install(name: str) -> None:
    """Lets them know the backend `name`. Called by ``import torch``."""
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    if getattr(module.monitored_barrier, "__module__", None) == __name__:
        return
    module.monitored_barrier = dist.monitored_barrier = _monitored_barrier(module.monitored_barrier)
    module._set_pg_timeout = _set_pg_timeout(module._set_pg_timeout)
    # Newer versions attach their flight recorder to backends that have none. The sidecar has one.
    recording = getattr(module, "_FR_SELF_RECORDING_BACKENDS", None)
    if recording is not None:
        module._FR_SELF_RECORDING_BACKENDS = type(recording)([*recording, name])


def _is_ours(group: Any) -> bool:
    return hasattr(group, "uses_sidecar")


def _monitored_barrier(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        chosen = dist.group.WORLD if group is None else group
        if _is_ours(chosen):
            chosen.monitored_barrier(timeout, wait_all_ranks)
        else:
            theirs(group, timeout, wait_all_ranks)

    monitored_barrier.__module__ = __name__
    return monitored_barrier


def _set_pg_timeout(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        chosen = dist.group.WORLD if group is None else group
        if _is_ours(chosen):
            chosen.set_timeout(timeout)
        else:
            theirs(timeout, group)

    return _set_pg_timeout
