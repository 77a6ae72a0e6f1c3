"""Memory that a process and its sidecar share, as tensors.

Owns their making. Who writes when is agreed between the caller and the sidecar: an input may not change while an
operation reads it, and a result is this process's to keep, read and write until it drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import torch

if TYPE_CHECKING:
    from ._native import Arena, Client, Result

#: Inputs begin at a multiple of so many bytes.
ALIGNMENT = 64


class Memory:
    """Memory for inputs: what lies in it need not be copied to be called with."""

    def __init__(self, client: Client, nbytes: int, timeout: float) -> None:
        #: What the sidecar knows it by.
        self.arena: Arena = client.arena(max(nbytes, 1), timeout)
        self._bytes = torch.from_numpy(numpy.asarray(self.arena))

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` elements from the byte `offset` on."""
        return self._bytes[offset : offset + count * dtype.itemsize].view(dtype)


def of_result(result: Result, dtype: torch.dtype) -> torch.Tensor:
    """A result where the sidecar wrote it. It is held for as long as a tensor of it lives."""
    return torch.from_numpy(numpy.asarray(result)).view(dtype)
