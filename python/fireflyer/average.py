"""Averages over the ranks that are left, where a job goes on after a loss.

Owns the choice of operation, and what makes DistributedDataParallel use it: by itself that divides by the number of ranks
that the group was made of, before it adds up.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
import torch.distributed as dist

from .group import backend_of
from .opaque import opaque
from .tensors import DTYPES

_log = logging.getLogger(__name__)


def operation(group: Any, tensor: torch.Tensor) -> tuple[dist.ReduceOp, int]:
    """How `group` averages such a tensor: the reduction, and what its result is divided by.

    Sidecars divide by the number of those who took part. Gloo cannot average, and outlives no loss.
    """
    ours = backend_of(group, tensor.device)
    averages = ours is not None and ours.uses_sidecar and tensor.dtype in DTYPES
    if averages and tensor.is_floating_point() and tensor.layout == torch.strided:
        return dist.ReduceOp.AVG, 1
    return dist.ReduceOp.SUM, group.size()


@opaque
def average(group, bucket):
    """A communication hook of DistributedDataParallel: the gradients' average over those who took part."""
    buffer = bucket.buffer()
    op, divisor = operation(group, buffer)
    future = group.allreduce([buffer], op=op).get_future()
    if divisor == 1:
        return future.then(lambda done: done.value()[0])
    return future.then(lambda done: done.value()[0].div_(divisor))


def install() -> None:
    """Makes each model that is wrapped from here on in DistributedDataParallel over sidecars use `average`, unless a hook
    was registered before its first pass."""
    parallel = torch.nn.parallel.DistributedDataParallel
    begin = parallel.__init__
    if begin.__module__ == __name__:
        return

    @functools.wraps(begin)
    def init(model: Any, *arguments: Any, **named: Any) -> None:
        begin(model, *arguments, **named)
        ours = backend_of(model.process_group)
        if ours is not None and ours.uses_sidecar:
            _register_late(model)

    init.__module__ = __name__
    parallel.__init__ = init


def _register_late(model: Any) -> None:
    """Registers the hook before the first pass: a model takes one, and the script's own goes first."""

    def before(*_: Any) -> None:
        handle.remove()
        if model._comm_hooks:
            return
        try:
            model.register_comm_hook(model.process_group, average)
        except RuntimeError as error:  # One of PyTorch's own hooks is there.
            _log.warning(
                "the model has a communication hook already, so fireflyer adds none: after a loss it may divide by all "
                "ranks: %s",
                error,
            )

    handle = model.register_forward_pre_hook(before)
