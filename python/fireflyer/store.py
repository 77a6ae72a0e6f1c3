"""The key-value store of a gang that goes on after losses: `torch.distributed` makes its groups over it.

One process of each node runs a server of PyTorch's own store, and the one on the lowest node that is left is in
use. Rank 0's is the one that PyTorch would use anyway. When its node is lost, the server on the next node takes
over: without the keys, and calls that are under way fail.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .limits import CONNECT_SECONDS, STORE_SECONDS

_CONNECT = timedelta(seconds=CONNECT_SECONDS)
#: How often a call that waits checks whether the server is still in use, in seconds.
_LOOK = 0.5


class Store(dist.Store):
    """The store of the lowest node that is left. A thread that waits keeps no other waiting."""

    def __init__(
        self,
        lowest: Callable[[], int],
        servers: Mapping[int, Callable[..., dist.Store]],
        first: dist.Store,
    ) -> None:
        """`lowest` names that node, `servers` connect to a node's server, `first` is connected."""
        super().__init__()
        self._lowest = lowest
        self._servers = servers
        # Also the server, at rank 0.
        self._first = first
        self._lock = threading.Lock()
        self._node, self._process, self._idle = lowest(), os.getpid(), [first]

    def set(self, key: str, value: str | bytes) -> None:
        """Gives a key its content."""
        self._call("set", key, value)

    def get(self, key: str) -> bytes:
        """The content of a key, when it is there."""
        return self._call("get", key)

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is 0 where there is none, and returns the sum."""
        return self._call("add", key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Sets a key if it has the expected content, and returns what it has then."""
        return self._call("compare_set", key, expected, desired)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self._call("check", keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Returns when all keys are there."""
        self._call("wait", keys, timeout=timeout)

    def append(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a key's content."""
        self._call("append", key, value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The contents of keys, when all are there."""
        return self._call("multi_get", keys)

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """Gives keys their contents."""
        self._call("multi_set", keys, values)

    def delete_key(self, key: str) -> bool:
        """Removes a key, and says whether it was there."""
        return self._call("delete_key", key)

    def num_keys(self) -> int:
        """How many keys there are."""
        return self._call("num_keys")

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a queue, where this PyTorch has them."""
        self._call("queue_push", key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first of a queue, where this PyTorch has them."""
        return self._call("queue_pop", key, block)

    def queue_len(self, key: str) -> int:
        """How long a queue is, where this PyTorch has them."""
        return self._call("queue_len", key)

    def has_extended_api(self) -> bool:
        """It has `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> Store:
        """For another thread: the same, since none waits for another."""
        return self

    # PyTorch calls these by their C++ names.
    deleteKey = delete_key
    getNumKeys = num_keys
    queuePush = queue_push
    queuePop = queue_pop
    queueLen = queue_len

    def _call(self, method: str, *arguments: Any, timeout: timedelta | None = None) -> Any:
        limit = self.timeout if timeout is None else timeout
        what = f"failed to {method} {arguments[0] if arguments else ''}".rstrip()[:200]
        end = time.monotonic() + limit.total_seconds() + STORE_SECONDS
        node = self._lowest()
        idle = self._take(node)
        answered: queue.SimpleQueue = queue.SimpleQueue()

        def ask() -> None:
            connection = idle
            try:
                if connection is None:
                    connection = self._servers[node](timeout=min(limit, _CONNECT))
                connection.set_timeout(limit)
                answer = getattr(connection, method)(*arguments)
            except Exception as error:
                answered.put((connection, None, error))
            else:
                answered.put((connection, answer, None))

        # PyTorch may wait without end for a server whose machine is gone, and nothing stops it.
        threading.Thread(target=ask, name="fireflyer-store", daemon=True).start()
        while True:
            try:
                connection, answer, error = answered.get(timeout=_LOOK)
                break
            except queue.Empty:
                now = self._lowest()
                if now != node:
                    raise dist.DistStoreError(
                        f"{what}: the store was on node {node}, which was lost; "
                        f"the one on node {now} is empty"
                    ) from None
                if time.monotonic() > end:
                    raise dist.DistStoreError(
                        f"{what}: the store on node {node} did not answer within {limit}"
                    ) from None
        if connection is None or isinstance(error, dist.DistNetworkError):
            raise dist.DistStoreError(
                f"{what}: failed to reach the store on node {node}: {error}"
            ) from error
        self._keep(node, connection)
        if error is not None:
            raise error
        return answer

    def _take(self, node: int) -> dist.Store | None:
        """A connection to the server of this node that nobody uses, if there is one."""
        with self._lock:
            # What lies in a forked child is in use by its parent.
            if (self._node, self._process) != (node, os.getpid()):
                self._node, self._process, self._idle = node, os.getpid(), []
            return self._idle.pop() if self._idle else None

    def _keep(self, node: int, connection: dist.Store) -> None:
        with self._lock:
            if (self._node, self._process) == (node, os.getpid()):
                self._idle.append(connection)


def connect(host: str, port: int, timeout: timedelta) -> dist.TCPStore:
    """A connection to a server."""
    return dist.TCPStore(
        host, port, timeout=timeout, wait_for_workers=False, use_libuv=_use_libuv()
    )


def serve(host: str) -> dist.TCPStore:
    """A server at a port that the kernel chooses."""
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, use_libuv=_use_libuv())


def _use_libuv() -> bool:
    """As PyTorch's own rendezvous decides it."""
    return os.environ.get("USE_LIBUV", "1") == "1"
