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


def install() -> None:
    """Lets them know hfreduce. Called by ``import torch``."""
    module = importlib.import_module("torch.distributed.distributed_c10d")
    if hasattr(module.monitored_barrier, "knows_hfreduce"):
        return
    module.monitored_barrier = dist.monitored_barrier = _monitored_barrier(module.monitored_barrier)
    if hasattr(module, "_set_pg_timeout"):
        module._set_pg_timeout = _set_pg_timeout(module._set_pg_timeout)


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

    monitored_barrier.knows_hfreduce = True
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
