"""The gang's key-value store, where `torch.distributed` keeps what its processes have to find.

The sidecars hold it together, so it outlives the node of rank 0, unlike PyTorch's own. `rendezvous` sees to it that
`init_process_group` uses it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ._native import Store as _Client


class Store(dist.Store):
    """The store behind a sidecar's socket. Any thread may use it, and a thread that waits keeps no other waiting."""

    def __init__(self, socket: Path | str, timeout: timedelta | None = None) -> None:
        super().__init__()
        self._socket = str(socket)
        self._client = _Client(self._socket)
        if timeout is not None:
            self.set_timeout(timeout)

    def set(self, key: str, value: str | bytes) -> None:
        """Gives a key its content."""
        self._ask(self._client.set, [(key, _bytes(value))])

    def get(self, key: str) -> bytes:
        """The content of a key, when it is there."""
        return self._ask(self._client.get, [key])[0]

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is 0 where there is none, and returns the sum."""
        return self._ask(self._client.add, key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Sets a key if it has the expected content, and returns what it has then."""
        contents = _bytes(expected), _bytes(desired)
        return self._ask(self._client.compare_set, key, contents)[0]

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self._ask(self._client.check, list(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Returns when all keys are there."""
        self._ask(self._client.wait, list(keys), timeout=timeout)

    def append(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a key's content."""
        self._ask(self._client.append, key, _bytes(value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The contents of keys, when all are there."""
        return self._ask(self._client.get, list(keys))

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """Gives keys their contents, all at once."""
        if len(keys) != len(values):
            raise ValueError(f"there are {len(keys)} keys and {len(values)} values")
        self._ask(self._client.set, [(key, _bytes(value)) for key, value in zip(keys, values)])

    def delete_key(self, key: str) -> bool:
        """Removes a key, and says whether it was there."""
        return self._ask(self._client.delete, key)

    def num_keys(self) -> int:
        """How many keys there are."""
        return self._ask(self._client.count)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a queue."""
        self._ask(self._client.push, key, _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first of a queue, when there is one; an error where there is none and it must not wait."""
        taken = self._ask(self._client.pop, key, block)
        if not taken:
            raise dist.DistStoreError(f"queue {key!r} is empty")
        return taken[0]

    def queue_len(self, key: str) -> int:
        """How long a queue is."""
        return self._ask(self._client.length, key)

    def has_extended_api(self) -> bool:
        """It has `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> Store:
        """For another thread: the same, since none waits for another."""
        return self

    # PyTorch calls these two by their C++ names.
    deleteKey = delete_key
    getNumKeys = num_keys
    queuePush = queue_push
    queuePop = queue_pop
    queueLen = queue_len

    def _ask(self, method: Any, *arguments: Any, timeout: timedelta | None = None) -> Any:
        limit = self.timeout if timeout is None else timeout
        try:
            return method(*arguments, limit.total_seconds())
        except TimeoutError as error:
            asked = f"{method.__name__} {arguments[0]}" if arguments else method.__name__
            raise dist.DistStoreError(f"failed to {asked:.200}: {error}") from None

    def __repr__(self) -> str:
        return f"Store({self._socket!r})"


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
