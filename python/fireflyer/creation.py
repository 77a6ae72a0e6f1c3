"""Makes a process group: all its members decide together whether it talks to the sidecars."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from . import average, connection, rendezvous
from .collective_error import HFReduceError
from .communicator import Communicator
from .decision import Standing, decide
from .environment import Environment
from .gloo import Gloo
from .group_options import Options

if TYPE_CHECKING:
    from .group import HFReduceBackend, HFReduceGroup
    from .pairs import Policy

Kind = TypeVar("Kind", "HFReduceGroup", "HFReduceBackend")

_log = logging.getLogger(__name__)


def create(kind: type[Kind], options: Any, backend_options: Any) -> Kind:
    """Makes a group, as a `kind` of c10d's. Collective.

    An `HFReduceError` on all ranks, when one of them has a sidecar and cannot use it, or should have one.
    `backend_options` are the group's `Options`, or nothing.
    """
    rank, size = options.group_rank, options.group_size
    timeout = options.timeout.total_seconds()
    client, lane, error, why_not, numerics, pairs = None, None, None, "", "fast", None
    ranks = list(options.global_ranks_in_group)
    # A group of some ranks, or of all of them again, is opened beside the one of all that talks to the sidecar.
    is_part = bool(ranks) and (connection.is_owned() or not _is_world(ranks))
    asked = Options()
    try:
        asked = Options.of(backend_options)
        numerics = asked.numerics or Environment.read().numerics.lower()
        pairs = nvlink_policy(ranks or list(range(size)), options.group_id, is_part, asked)
        client, why_not = connection.shared() if is_part else connection.attach(rank, size)
    except (HFReduceError, ImportError, ValueError) as raised:
        # Reported after the others know: they wait for this rank.
        error, why_not = raised, str(raised)
    standing = Standing.FAILED if error else Standing.ATTACHED if client else Standing.ALONE
    standing, reason = decide(
        options.store, rank, size, options.timeout, standing, why_not, what="make a group"
    )
    if standing is Standing.FAILED:
        raise error or HFReduceError(f"failed to make a group because of {reason}")
    if standing is Standing.ALONE:
        client, why_not = None, reason
    if client is not None and is_part:
        number = connection.number_of(str(options.group_id))
        try:
            lane = client.open(number, ranks, asked.replicated, timeout, asked.priority)
        except HFReduceError as refused:
            # The same on all members, as all answers about groups are.
            if "which is not possible" not in str(refused):
                raise
            client, why_not = None, str(refused)
    gloo = Gloo(options.store, rank, size, options.timeout)
    if client is None:
        # Not when it is first used: a message needs two ranks, and connecting needs all.
        gloo.connect()
        if rank == 0:
            _log.warning("hfreduce goes over gloo in a group of %d: %s", size, why_not)
    communicator = Communicator(rank, size, timeout, gloo, client, lane, numerics, pairs)
    group = kind(options.store, communicator)
    if client is not None and rendezvous.outlives_losses():
        average.install()
    if client is not None and not is_part:
        connection.own(group)
    return group


def nvlink_policy(ranks: list[int], group_id: Any, is_part: bool, asked: Options) -> Policy | None:
    """How a group uses GPUs that share an NVLink: as its options say, else as the environment does. None: not at all."""
    environment = Environment.read()
    if (asked.nvlink or environment.nvlink.lower()) == "never":
        return None
    from .pairs import Policy

    # The group of all goes on when ranks are lost, where any does.
    replicated, priority = (asked.replicated, asked.priority) if is_part else (True, 0)
    first, second = (connection.number_of(f"{group_id} nvlink {half}") for half in range(2))
    least = environment.nvlink_least_bytes
    return Policy(least, ranks, (first, second), replicated, priority)


def _is_world(ranks: list[int]) -> bool:
    """Whether these are all ranks in order: no list means the default group."""
    return not ranks or (dist.is_initialized() and ranks == list(range(dist.get_world_size())))
