"""Tensors on a GPU: brought to memory that is shared with the sidecar and back by the GPU's copy engine.

Owns the order of what happens to one. The producer's stream, a copy to the host, the call of the sidecar, its result, a
copy back, the consumer's stream: each waits for the one before by an event, and only two threads of ours wait on the
host. Large tensors go in parts, so that the copy of one part runs while the sidecars reduce another.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from . import naming
from .completer import Completer
from .errors import HFReduceError
from .shared import ALIGNMENT, Memory
from .work import HFReduceWork

if TYPE_CHECKING:
    from ._native import Client, Copy, Gpu, Group, Ticket

#: Bytes of a part: long enough that starting a copy is nothing beside it.
PART_BYTES = 4 << 20
#: Memories that are kept for the next tensor of their size.
_KEPT = 64


class _Part:
    """A part of a tensor on its way."""

    def __init__(self, offset: int, nbytes: int, fetched: Copy) -> None:
        self.offset, self.nbytes, self.fetched = offset, nbytes, fetched
        self.ticket: Ticket | None = None
        self.error: HFReduceError | None = None
        #: Set when it has been called, or could not be.
        self.called = threading.Event()


class Courier:
    """Reduces tensors of this process's GPUs. `driver` names another library than the machine's driver."""

    def __init__(
        self,
        client: Client,
        lane: Group | None,
        completer: Completer,
        timeout: float,
        driver: str | None = None,
    ) -> None:
        self._client, self._lane, self._completer, self._timeout = client, lane, completer, timeout
        self._driver = driver
        self._gpus: dict[int, Gpu] = {}
        self._memories: dict[int, list[Memory]] = {}
        self._kept = 0
        self._delivered: deque[Copy] = deque()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._last: threading.Event | None = None
        threading.Thread(target=self._run, name="hfreduce-gpu", daemon=True).start()

    def all_reduce(self, tensor: torch.Tensor, dtype: str, reduction: str) -> HFReduceWork:
        """An allreduce in place, behind what the current stream was given."""
        if not tensor.is_contiguous():
            raise HFReduceError(
                f"failed to reduce a tensor on {tensor.device} that is not contiguous: call .contiguous() on it"
            )
        device = tensor.device
        work = HFReduceWork("allreduce", [tensor])
        stream = torch.cuda.current_stream(device).cuda_stream
        gates = self.reduce(
            work, device.index, tensor.data_ptr(), dtype, tensor.element_size(), tensor.numel(),
            reduction, stream,
        )  # fmt: skip
        work.gate = lambda: gates(torch.cuda.current_stream(device).cuda_stream)
        return work

    def reduce(
        self,
        work: HFReduceWork,
        ordinal: int,
        pointer: int,
        dtype: str,
        itemsize: int,
        count: int,
        reduction: str,
        stream: int,
    ) -> Callable[[int], None]:
        """Reduces `count` elements of a GPU's memory in place; completes `work` when the copies back are begun. Returns
        what makes a stream wait for them, which may be called from then on."""
        gpu = self._gpus.get(ordinal)
        if gpu is None:
            from ._native import Gpu

            gpu = self._gpus[ordinal] = Gpu(ordinal, self._driver)
        memory, size = self._memory(count * itemsize)
        parts = []
        for offset in range(0, count * itemsize, PART_BYTES):
            nbytes = min(PART_BYTES, count * itemsize - offset)
            fetched = gpu.fetch(pointer + offset, nbytes, memory.arena, offset, stream)
            parts.append(_Part(offset, nbytes, fetched))
        back: list[Copy] = []

        def call(part: _Part) -> None:
            try:
                # What is called before it has come would be added up as it was.
                part.fetched.wait()
                part.ticket = self._client.submit(
                    "allreduce", dtype, part.nbytes // itemsize, memory.arena, part.offset,
                    reduce=reduction, group=self._lane, timeout=self._timeout,
                )  # fmt: skip
            except HFReduceError as error:
                part.error = error
            finally:
                part.called.set()

        def finish() -> None:
            first: HFReduceError | None = None
            while self._delivered:
                self._delivered.popleft().wait()  # The sidecar gets the memory of its results back.
            for part in parts:
                part.called.wait()
                try:
                    if part.error is not None:
                        raise part.error
                    copy = self._client.deliver(
                        part.ticket, gpu, memory.arena, part.offset, pointer + part.offset,
                        timeout=self._timeout,
                    )  # fmt: skip
                    back.append(copy)
                    self._delivered.append(copy)
                except HFReduceError as error:
                    first = first or HFReduceError(naming.explain(str(error)))
            if first is not None:
                raise first
            self._keep(memory, size)

        for part in parts:
            self._last = part.called
            self._calls.put(lambda part=part: call(part))
        self._completer.add(work, finish)

        def gate(consumer: int) -> None:
            for copy in back:
                copy.gate(consumer)

        return gate

    def drain(self) -> None:
        """Waits until all that was given has been called: what is called next comes behind it on all ranks."""
        if self._last is not None:
            self._last.wait()
            self._last = None

    def _memory(self, nbytes: int) -> tuple[Memory, int]:
        size = 1 << max(nbytes - 1, ALIGNMENT).bit_length()
        idle = self._memories.setdefault(size, [])
        try:
            memory = idle.pop()
            self._kept -= 1
        except IndexError:
            memory = Memory(self._client, size, self._timeout)
        return memory, size

    def _keep(self, memory: Memory, size: int) -> None:
        # The next copy into it runs behind the last copy out of it, on the same stream.
        if self._kept < _KEPT:
            self._kept += 1
            self._memories[size].append(memory)

    def _run(self) -> None:
        while True:
            self._calls.get()()
