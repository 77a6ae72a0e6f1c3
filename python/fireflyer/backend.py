"""The ``hfreduce`` backend of ``torch.distributed``.

`import torch` finds `register` through the wheel's entry point, so a script only says
``init_process_group("hfreduce")``. Owns the name and the versions that are known; a group is made in `creation`, which is
imported when the first one is.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .group import HFReduceBackend, HFReduceGroup

_log = logging.getLogger(__name__)

NAME = "hfreduce"
#: The versions of PyTorch whose process groups have the methods that ours has.
OLDEST, NEWEST = (2, 5), (2, 15)


def register() -> None:
    """Makes ``hfreduce`` known to ``torch.distributed``, and in a job answers who asks for stacks. Called by ``import torch``."""
    import torch.distributed as dist
    from torch.version import __version__ as torch_version

    if not dist.is_available():
        return
    from . import c10d, rendezvous, stacks

    stacks.install()
    rendezvous.register()
    c10d.install()
    _look_at_version(torch_version)
    if NAME not in dist.Backend.backend_list:
        # Also for "cuda", so that its tensors get an answer of ours and not one about a missing backend.
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def register_for_a_group() -> None:
    """The same, where ``import torch`` did not (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``). Called by a group that asks for the
    backend, which has its store by then."""
    register()
    from .rendezvous import outlives_losses

    if outlives_losses():
        _log.warning(
            "hfreduce was loaded after the rendezvous: the store of torch.distributed stays with rank 0, and is lost with it; "
            "call fireflyer.backend.register() before init_process_group, or do not set TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        )


def _look_at_version(version: str) -> None:
    """Says so if PyTorch is a version whose calls of a backend nobody has compared with ours."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    known = numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST
    if not known:
        _log.warning(
            "hfreduce supports PyTorch %d.%d to %d.%d, this is %s: collectives under new names would fail",
            *OLDEST, *NEWEST, version,
        )  # fmt: skip


def _create(options: Any, backend_options: Any) -> HFReduceGroup | HFReduceBackend:
    """Makes a group, as `creation.create` says."""
    import torch.distributed as dist

    from . import c10d
    from .creation import create
    from .group import HFReduceBackend, HFReduceGroup, has_backends

    # c10d says nowhere but in its caller's variable which backends there are.
    others = _others(sys._getframe(1).f_locals.get("backend_config"))
    if has_backends() and (others or dist.get_debug_level() == dist.DebugLevel.DETAIL):
        c10d.keep_flight_recorder(NAME, away=False)
        return create(HFReduceBackend, options, backend_options)
    _refuse(others)
    c10d.keep_flight_recorder(NAME, away=True)
    return create(HFReduceGroup, options, backend_options)


def _others(config: Any) -> list[str]:
    """The backends beside ours in a string like ``cpu:hfreduce,cuda:nccl``."""
    named = getattr(config, "device_backend_map", {})
    return sorted({str(backend) for backend in named.values()} - {NAME})


def _refuse(others: list[str]) -> None:
    """PyTorch takes a group of ours for the whole group, and would drop other backends without a word."""
    if others:
        from .collective_error import HFReduceError

        raise HFReduceError(
            f"failed to make a group: this PyTorch would drop {', '.join(others)} beside hfreduce, which 2.15 does not; use one "
            f'backend, and make a group of the other one beside it: new_group(backend="{others[0]}")'
        )
