"""Memory that a process and its sidecar share, as tensors.

Owns their making, and a pool of those that are used again. Who writes when is agreed between the caller and the
sidecar: an input may not change while an operation reads it, and a result is this process's to keep, read and write until
it drops it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy
import torch

if TYPE_CHECKING:
    from ._native import Arena, Client, Result

#: Inputs begin at a multiple of so many bytes.
ALIGNMENT = 64


class Memory:
    """Memory for inputs, `nbytes` of it: what lies there need not be copied to be called with."""

    def __init__(self, client: Client, nbytes: int, timeout: float) -> None:
        #: What the sidecar knows it by.
        self.arena: Arena = client.arena(max(nbytes, 1), timeout)
        self.nbytes = nbytes
        self._bytes = torch.from_numpy(numpy.asarray(self.arena))

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` elements from the byte `offset` on."""
        return self._bytes[offset : offset + count * dtype.itemsize].view(dtype)


class MemoryPool:
    """Memory for inputs that is used again: making it, and registering it with a GPU, costs more than a small operation.
    What is idle never has more bytes than were in use at once."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        self._lock = threading.Lock()
        #: Oldest first.
        self._idle: list[Memory] = []
        self._idle_bytes = self._used_bytes = self._most_used_bytes = 0

    def take(self, nbytes: int) -> Memory:
        """Memory of at least so many bytes, for this caller alone until it is given back."""
        size = _rounded(nbytes)
        with self._lock:
            self._used_bytes += size
            self._most_used_bytes = max(self._most_used_bytes, self._used_bytes)
            fitting = [memory for memory in self._idle if memory.nbytes == size]
            if fitting:
                memory = fitting[-1]
                self._idle.remove(memory)
                self._idle_bytes -= size
                return memory
        try:
            return Memory(self._client, size, self._timeout)
        except BaseException:
            self.lose(size)
            raise

    def give_back(self, memory: Memory) -> None:
        """Nobody reads it or writes to it any more."""
        dropped = []
        with self._lock:
            self._used_bytes -= memory.nbytes
            self._idle.append(memory)
            self._idle_bytes += memory.nbytes
            while self._idle_bytes > self._most_used_bytes:
                dropped.append(self._idle.pop(0))
                self._idle_bytes -= dropped[-1].nbytes
        # Without the lock: the driver may wait for the whole device first.
        dropped.clear()

    def lose(self, nbytes: int) -> None:
        """So many bytes that were taken never come back: an operation that failed may still read them."""
        with self._lock:
            self._used_bytes -= nbytes


def _rounded(nbytes: int) -> int:
    """At most an eighth more, so that tensors of about one size share their memory."""
    step = max(1 << max(nbytes - 1, 0).bit_length() >> 4, ALIGNMENT)
    return -(-max(nbytes, 1) // step) * step


def of_result(result: Result, dtype: torch.dtype) -> torch.Tensor:
    """A result where the sidecar wrote it. It is held for as long as a tensor of it lives."""
    return torch.from_numpy(numpy.asarray(result)).view(dtype)
