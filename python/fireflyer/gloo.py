"""The group of gloo beside one of ours, of the same ranks.

Owns when it is made: gloo connects each rank with each, which a large job cannot afford for every group, and most groups
never need it. All ranks need it at the same call, so the first such call makes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

#: How long a call waits for gloo's thread to let go of its tensors, in seconds.
_RELEASE_SECONDS = 0.1
_PAUSE_SECONDS = 0.001


class Gloo:
    """Gloo's collectives by name, over a group that the first call makes."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._lock = threading.Lock()
        self._group: dist.ProcessGroup | None = None
        self._calls = 0

    @property
    def calls(self) -> int:
        """Collectives and messages that went over gloo."""
        return self._calls

    def connect(self) -> dist.ProcessGroup:
        """The group of gloo. The first time it is made, and this returns when all ranks have called it."""
        with self._lock:
            if self._group is None:
                self._group = self._connected()
            return self._group

    def call(self, kind: str, *arguments: Any, **named: Any) -> dist.Work:
        """Calls c10d's method `kind`."""
        self._calls += 1
        return getattr(self.connect(), kind)(*arguments, **named)

    def complete(
        self, tensors: Sequence[torch.Tensor], kind: str, *arguments: Any, **named: Any
    ) -> None:
        """Calls a method with `tensors` among its arguments, and waits for its end.

        Gloo's thread lets go of tensors a moment after a call is over, for which it needs the interpreter. PyTorch joins that
        thread when it destroys the group, and holds the interpreter meanwhile: in that moment it would wait for ever.
        """
        counts = [tensor._use_count() for tensor in tensors]
        self.call(kind, *arguments, **named).wait()
        end = time.monotonic() + _RELEASE_SECONDS
        while time.monotonic() < end and any(
            tensor._use_count() > count for tensor, count in zip(tensors, counts)
        ):
            time.sleep(_PAUSE_SECONDS)

    def _connected(self) -> dist.ProcessGroup:
        backend = dist.ProcessGroupGloo(self._store, self._rank, self._size, self._timeout)
        group = dist.ProcessGroup(self._store, self._rank, self._size)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        # A rank whose call gloo refuses may end, while others still connect to it.
        group.barrier().wait()
        return group
