"""Takes off what a model is wrapped in to be run: a checkpoint must not depend on how the model is run.

Owns the wrappers of DistributedDataParallel and of ``torch.compile``, also around parts of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def unwrap(part: Any) -> Any:
    """The model itself; anything else as it is."""
    while True:
        name = _wrapped(part)
        if name is None:
            return part
        part = part._modules[name]


def state_of(part: Any) -> Any:
    """The state of a part; that of a model without the marks of wrapped modules in it."""
    state = part.state_dict()
    marks = _marks(part)
    return _renamed(state, lambda name: _plain(name, marks)) if marks else state


def load_into(part: Any, state: Any) -> None:
    """Puts a part into a state, also where other modules of the model are wrapped than were at saving."""
    marks = _marks(part)
    if isinstance(state, Mapping) and marks:
        own = part.state_dict()
        names = {_plain(name, marks): name for name in (*own, *getattr(own, "_metadata", ()))}
        state = _renamed(state, lambda name: names.get(name, name))
    part.load_state_dict(state)


def _wrapped(part: Any) -> str | None:
    """What a wrapper calls the module in it; none if `part` is no wrapper."""
    if isinstance(part, DistributedDataParallel):
        return "module"
    is_compiled = isinstance(part, torch.nn.Module) and "_orig_mod" in part._modules
    return "_orig_mod" if is_compiled else None


def _marks(part: Any) -> list[tuple[str, str]]:
    """Where the names of wrapped modules begin, with the wrapper's mark and without it; the innermost first."""
    if not isinstance(part, torch.nn.Module):
        return []
    modules = part.named_modules(remove_duplicate=False)
    wrappers = [(path, _wrapped(module)) for path, module in modules]
    # Within what was unwrapped: the outermost module is no wrapper.
    return [
        (f"{path}.{name}.", f"{path}.") for path, name in reversed(wrappers) if name is not None
    ]


def _plain(name: str, marks: list[tuple[str, str]]) -> str:
    """A name of a tensor or a module without the marks of wrappers."""
    # A module's own name ends where those of its parts go on with a dot.
    dotted = f"{name}."
    for marked, plain in marks:
        if dotted.startswith(marked):
            dotted = plain + dotted.removeprefix(marked)
    return dotted.removesuffix(".")


def _renamed(state: Any, rename: Callable[[str], str]) -> Any:
    """A state under other names, with the versions of its modules."""
    renamed = type(state)((rename(name), value) for name, value in state.items())
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        renamed._metadata = type(versions)(
            (rename(name), value) for name, value in versions.items()
        )
    return renamed
