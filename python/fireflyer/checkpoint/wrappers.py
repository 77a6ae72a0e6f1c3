"""Takes off what a model is wrapped in to be run: a checkpoint must not depend on how the model is run.

Owns the wrappers of DistributedDataParallel and of ``torch.compile``, also around parts of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

#: What ``torch.compile`` puts into the names of a wrapped module's parameters.
_COMPILED = "_orig_mod."


def unwrap(part: Any) -> Any:
    """The model itself; anything else as it is."""
    while True:
        inner = None
        if isinstance(part, torch.nn.parallel.DistributedDataParallel):
            inner = part.module
        elif isinstance(part, torch.nn.Module):
            inner = part._modules.get("_orig_mod")
        if not isinstance(inner, torch.nn.Module):
            return part
        part = inner


def state_of(part: Any) -> Any:
    """The state of a part; that of a model without the marks of compiled modules in it."""
    state = part.state_dict()
    if not isinstance(part, torch.nn.Module) or not any(_COMPILED in name for name in state):
        return state
    plain = type(state)((name.replace(_COMPILED, ""), value) for name, value in state.items())
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        plain._metadata = type(versions)(
            (f"{name}.".replace(_COMPILED, "").removesuffix("."), value)
            for name, value in versions.items()
        )
    return plain


def load_into(part: Any, state: Any) -> None:
    """Puts a part into a state, also where other modules of the model are compiled than were at saving."""
    if isinstance(part, torch.nn.Module) and isinstance(state, Mapping):
        own = part.state_dict()
        names = {name.replace(_COMPILED, ""): name for name in own}
        if any(plain != name for plain, name in names.items()):
            renamed = type(state)(
                (names.get(name, name), value) for name, value in state.items()
            )
            if hasattr(own, "_metadata") and hasattr(state, "_metadata"):
                versions = {
                    f"{name}.".replace(_COMPILED, "").removesuffix("."): name
                    for name in own._metadata
                }
                renamed._metadata = type(state._metadata)(
                    (versions.get(name, name), value) for name, value in state._metadata.items()
                )
            state = renamed
    part.load_state_dict(state)
