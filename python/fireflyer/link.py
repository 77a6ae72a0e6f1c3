"""The messages between the two processes of a pair of GPUs: what each has called, and which of its copies have come.

Owns two connections between them, one for each way that tensors go, and their errors. The processes are in one
container, so the connections are sockets without a file; who knows the name of one and not its secret gets no further.
A process that ends closes them, so the other one does not wait for it.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .collective_error import HFReduceError
from .limits import GREETING_SECONDS, STRANGERS_LIMIT

#: Bytes of a name and of a secret.
KEY_BYTES = 16
#: The numbers of a message.
_HEAD = struct.Struct("<QQQ")
#: Of a text that goes with a message.
_TEXT_BYTES = 4096


class Head(NamedTuple):
    """Which part a message is about."""

    #: Counts the parts of a pair.
    number: int
    #: The number of the first part of the next call.
    end: int
    #: A name for what is called.
    call: int


class Link:
    """One connection, used by one thread at a time. Once it has failed it stays so."""

    def __init__(self, connection: socket.socket, other: int, timeout: float) -> None:
        connection.settimeout(timeout)
        self._connection, self._other, self._timeout = connection, other, timeout
        self._broken: str | None = None

    @property
    def is_broken(self) -> bool:
        """Whether it has failed."""
        return self._broken is not None

    def send(self, head: Head, error: str = "") -> None:
        """Says which part has come, or why it has not."""
        text = error.encode()[:_TEXT_BYTES]
        self._do(lambda: self._connection.send(_HEAD.pack(*head) + text))

    def receive(self) -> tuple[Head, str]:
        """Waits for what the other says next."""
        message = self._do(lambda: self._connection.recv(_HEAD.size + _TEXT_BYTES))
        if len(message) < _HEAD.size:
            raise self._fail("has ended")
        return Head(*_HEAD.unpack_from(message)), message[_HEAD.size :].decode(errors="replace")

    def _do(self, step: Callable[[], Any]) -> Any:
        if self._broken is not None:
            raise HFReduceError(self._broken)
        try:
            return step()
        except TimeoutError:
            raise self._fail(f"has not called it after {self._timeout:g} s") from None
        except OSError:
            raise self._fail("has ended") from None

    def _fail(self, what: str) -> HFReduceError:
        self._broken = f"failed to reduce with rank {self._other}, the NVLink peer of this rank: its process {what}"
        self._connection.close()
        return HFReduceError(self._broken)


def keys() -> bytes:
    """A name and a secret, which only those who are given them know."""
    return secrets.token_bytes(2 * KEY_BYTES)


def listen(keys: bytes) -> socket.socket:
    """Listens under the name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(_address(keys))
    listener.listen(4)
    return listener


def accept(listener: socket.socket, keys: bytes, ways: int, timeout: float) -> list[socket.socket]:
    """The other's connections, one for each way."""
    found: dict[int, socket.socket] = {}
    end = time.monotonic() + timeout
    for _ in range(ways + STRANGERS_LIMIT):
        listener.settimeout(max(end - time.monotonic(), 0.001))
        connection, _ = listener.accept()
        connection.settimeout(GREETING_SECONDS)
        try:
            greeting = connection.recv(KEY_BYTES + 1)
        except OSError:
            greeting = b""
        way = greeting[-1] if len(greeting) == KEY_BYTES + 1 else ways
        if secrets.compare_digest(greeting[:-1], keys[KEY_BYTES:]) and way < ways:
            found[way] = connection
        else:
            connection.close()
        if len(found) == ways:
            return [found[way] for way in range(ways)]
    raise OSError("too many connections without the key")


def connect(keys: bytes, ways: int, timeout: float) -> list[socket.socket]:
    """Connections to who listens under the name, one for each way."""
    connections = []
    for way in range(ways):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(timeout)
        connection.connect(_address(keys))
        connection.send(keys[KEY_BYTES:] + bytes([way]))
        connections.append(connection)
    return connections


def _address(keys: bytes) -> str:
    return "\0fireflyer-pair-" + keys[:KEY_BYTES].hex()
