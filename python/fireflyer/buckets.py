"""How gradients lie in buckets: which one each parameter belongs to, and where.

Owns the layout, which is the same on all ranks whose models are: it follows from the order, shapes and types of the
parameters alone. Who fills, sends and reads buckets is `arena`'s business.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from .shared import ALIGNMENT


@dataclass(frozen=True)
class Slot:
    """Where the gradient of a parameter lies in its bucket, in elements."""

    parameter: torch.nn.Parameter
    offset: int
    #: As the parameter's own where that has no holes: optimizers are fast when both are alike.
    stride: tuple[int, ...]

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The gradient in the memory of a bucket."""
        return flat.as_strided(
            self.parameter.shape, self.stride, flat.storage_offset() + self.offset
        )


@dataclass
class Bucket:
    """Gradients of one type on one device that are reduced at once."""

    dtype: torch.dtype
    device: torch.device
    slots: list[Slot] = field(default_factory=list)
    #: Elements, with what lies between gradients.
    count: int = 0

    @property
    def nbytes(self) -> int:
        """Its size; a multiple of `ALIGNMENT`."""
        return self.count * self.dtype.itemsize

    def add(self, parameter: torch.nn.Parameter) -> None:
        """Gives a parameter its place at the end."""
        stride = torch.empty_like(parameter, device="meta").stride()
        self.slots.append(Slot(parameter, self.count, stride))
        step = max(ALIGNMENT // self.dtype.itemsize, 1)
        self.count += -(-parameter.numel() // step) * step


def plan(parameters: Iterable[torch.nn.Parameter], limit_bytes: int) -> list[Bucket]:
    """Buckets of at most `limit_bytes`, or of one gradient that is larger, in the order of the backward pass: the last
    parameters first. A type or a device has buckets of its own."""
    closed: list[Bucket] = []
    open_: dict[tuple[torch.dtype, torch.device], Bucket] = {}
    for parameter in reversed(list(parameters)):
        if not parameter.requires_grad:
            continue
        key = parameter.dtype, parameter.device
        bucket = open_.get(key)
        size = parameter.numel() * parameter.dtype.itemsize
        if bucket is None or (bucket.slots and bucket.nbytes + size > limit_bytes):
            bucket = open_[key] = Bucket(*key)
            closed.append(bucket)
        bucket.add(parameter)
    return closed


def layout(buckets: Iterable[Bucket]) -> int:
    """A sum over what the buckets hold: ranks whose models differ have different ones."""
    text = ";".join(
        f"{bucket.dtype}:" + ",".join(str(tuple(slot.parameter.shape)) for slot in bucket.slots)
        for bucket in buckets
    )
    return zlib.crc32(text.encode())
