"""Fire-Flyer for PyTorch: the ``hfreduce`` backend and checkpoints that survive interruption.

A training script changes one word for the backend, ``init_process_group("hfreduce")``, and three
lines for checkpoints::

    checkpoint = fireflyer.Checkpoint({"model": model, "optimizer": optimizer})
    for step in checkpoint.steps(total_steps):
        checkpoint.report(train_one(step))

Importing this package is cheap and has no effect: PyTorch and the native module are imported, and
in a job the signal handler is installed, when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import (
    CheckpointError,
    CheckpointUnavailable,
    NoUsableCheckpoint,
    StateError,
)
from .group_options import Options

if TYPE_CHECKING:
    from . import backend, hooks
    from .arena import Arena
    from .checkpoint import Checkpoint, should_stop
    from .collective_error import HFReduceError
    from .group import backend_of, participants
    from .membership import Members, members

__all__ = [
    "Arena",
    "Checkpoint",
    "CheckpointError",
    "CheckpointUnavailable",
    "HFReduceError",
    "Members",
    "NoUsableCheckpoint",
    "Options",
    "StateError",
    "backend",
    "backend_of",
    "hooks",
    "members",
    "participants",
    "should_stop",
]

_HOMES = {
    "Arena": ".arena",
    "Checkpoint": ".checkpoint",
    "HFReduceError": ".collective_error",
    "Members": ".membership",
    "backend_of": ".group",
    "members": ".membership",
    "participants": ".group",
    "should_stop": ".checkpoint",
}

#: Modules that are imported when they are first used.
_MODULES = ("backend", "hooks")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home, __name__), name)
