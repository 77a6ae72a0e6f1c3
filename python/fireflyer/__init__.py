"""Fire-Flyer for PyTorch: the ``hfreduce`` backend and checkpoints that survive interruption.

A training script changes one word for the backend, ``init_process_group("hfreduce")``, and three
lines for checkpoints::

    checkpoint = fireflyer.Checkpoint(model=model, optimizer=optimizer)
    for step in range(checkpoint.resume(), total_steps):
        loss = train_one(step)
        if checkpoint.step(step, loss):
            break

Importing this package is cheap and has no effect: PyTorch and the native module are imported, and
the signal handler is installed, when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import CheckpointError, HFReduceError

if TYPE_CHECKING:
    from .arena import Arena
    from .checkpoint import Checkpoint, should_stop
    from .membership import Members, members

__all__ = [
    "Arena",
    "Checkpoint",
    "CheckpointError",
    "HFReduceError",
    "Members",
    "members",
    "should_stop",
]

_HOMES = {
    "Arena": ".arena",
    "Checkpoint": ".checkpoint",
    "Members": ".membership",
    "members": ".membership",
    "should_stop": ".checkpoint",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home, __name__), name)
