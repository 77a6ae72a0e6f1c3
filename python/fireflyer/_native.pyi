"""The native module: the connection to the node's sidecar, memory shared with it, and copies to and from a GPU.

Times are in seconds. Methods may be called from any thread, and raise `HFReduceError`.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, final

from typing_extensions import Buffer

from .call import Call

@final
class Ticket:
    """An operation in flight."""

@final
class Group:
    """A group of ranks that this process has opened."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

@final
class Client:
    """The connection to the node's sidecar."""

    @staticmethod
    def attach(socket: str | PathLike[str], local_rank: int, timeout: float) -> Client: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def copied_in(self) -> int: ...
    @property
    def copied_out(self) -> int: ...
    @property
    def results_written(self) -> int: ...
    def open(
        self, number: int, ranks: Sequence[int], replicated: bool, timeout: float, priority: int = 0
    ) -> Group: ...
    def call(
        self,
        call: Call,
        input: Buffer | None,
        *,
        group: Group | None = None,
        splits: tuple[Sequence[int], Sequence[int]] | None = None,
        timeout: float,
    ) -> Ticket: ...
    def submit(
        self, call: Call, arena: Arena, offset: int, *, group: Group | None = None, timeout: float
    ) -> Ticket: ...
    def wait(
        self, ticket: Ticket, output: Buffer | None, *, offset: int | None = None, timeout: float
    ) -> int: ...
    def take(self, ticket: Ticket, *, timeout: float) -> Result: ...
    def deliver(
        self,
        ticket: Ticket,
        device: Gpu,
        arena: Arena,
        offset: int,
        targets: Sequence[tuple[int, int, int]],
        *,
        timeout: float,
    ) -> Copy: ...
    def arena(self, bytes: int, timeout: float) -> Arena: ...
    def members(self, *, timeout: float) -> tuple[int, int, list[int]]: ...
    def test(self, ticket: Ticket) -> bool: ...
    def close(self) -> None: ...

@final
class Arena:
    """Memory for inputs that the sidecar reads."""

    def __len__(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class Result:
    """The result of an operation where the sidecar wrote it."""

    def __len__(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def ranks(self) -> int: ...
    def release(self) -> None: ...

@final
class Gpu:
    """An open GPU."""

    def __new__(cls, ordinal: int, path: str | PathLike[str] | None = None) -> Gpu: ...
    def uuid(self) -> bytes: ...
    def linked(self) -> list[bytes]: ...
    def event(self, stream: int) -> Event: ...

@final
class GpuQueue:
    """The collectives of a group's tensors on GPUs."""

    def __new__(cls, client: Client, group: Group | None = None) -> GpuQueue: ...
    def begin(
        self,
        gpu: Gpu,
        parts: Sequence[
            tuple[Call, Sequence[tuple[int, int]], Sequence[tuple[int, int, int]], int]
        ],
        arena: Arena,
        stream: int,
        inputs: Sequence[Any],
        timeout: float,
    ) -> GpuCollective: ...
    def run(self, function: Callable[[], None], timeout: float) -> None: ...

@final
class GpuCollective:
    """A collective of tensors on a GPU."""

    def called(self, timeout: float) -> None: ...
    def finish(self, timeout: float) -> None: ...
    def gate(self, stream: int) -> None: ...
    def settle(self) -> None: ...

@final
class Event:
    """Something that happens on a stream."""

    def gate(self, stream: int) -> None: ...
    def wait(self) -> None: ...

@final
class Copy:
    """A copy that was begun."""

    def wait(self) -> None: ...

@final
class Inbox:
    """Memory of a GPU that another process may be given."""

    def __new__(cls, gpu: Gpu, nbytes: int) -> Inbox: ...
    def handle(self) -> bytes: ...

@final
class Pair:
    """What a GPU of a pair does."""

    def __new__(cls, inbox: Inbox, other: bytes) -> Pair: ...
    def send(self, start: int, nbytes: int, offset: int, after: Event | None = None) -> Event: ...
    def fetch(
        self, call: Call, own: tuple[int, int], offset: int, arena: Arena, place: int
    ) -> Copy: ...
    def receive(self, offset: int, start: int, nbytes: int) -> Event: ...

def pairs_add(call: Call) -> bool: ...
