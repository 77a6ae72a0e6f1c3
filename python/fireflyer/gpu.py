"""Tensors on a GPU: brought to memory that is shared with the sidecar and back by the GPU's copy engine.

The producer's stream, a copy to the host, the call of the sidecar, its result, a copy back, the consumer's stream: each
waits for the one before by an event, and only two threads of ours wait on the host. The native module keeps that order
within a collective. Here it is cut into parts, so that the copy of one part runs while the sidecars work on another; and
what it needs is kept: the memory that is shared with the sidecar, and the tensors. With a policy for NVLinks an allreduce
may take another way, which is `nvlink`'s.

Tensors are held here until a thread of ours has seen the end of the copies that read or write them, whoever else drops
them. So PyTorch's allocator cannot give their memory to another kernel, on whichever stream it was allocated, and
`record_stream`, which would announce our streams for copies, is not needed.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import naming
from .call import Call
from .collective_error import HFReduceError
from .completer import Completer
from .shared import ALIGNMENT, Memory, MemoryPool
from .work import HFReduceWork

if TYPE_CHECKING:
    from ._native import Client, Event, Gpu, Group
    from .nvlink import Bridge
    from .pairs import Policy

#: Bytes of a part: long enough that starting a copy is nothing beside it.
PART_BYTES = 4 << 20


@dataclass(frozen=True)
class Rank:
    """This process in a group."""

    number: int
    size: int


@dataclass(frozen=True)
class Step:
    """A part of a collective: what it reads, what it calls and where its result goes."""

    call: Call
    #: Addresses and bytes of what is read.
    sources: list[tuple[int, int]]
    #: Places in the result, addresses and bytes of what is written.
    targets: list[tuple[int, int, int]]
    #: Bytes of the result.
    nbytes: int


def rows_of(kind: str, size: int) -> int:
    """How many equal parts, one a rank, the larger side of a collective has."""
    return size if kind in ("allgather", "reduce_scatter") else 1


def cut(call: Call, own: Rank, sources: list[int], targets: list[int]) -> list[Step]:
    """A collective in steps, the same on all ranks. `sources` and `targets` are where tensors begin: one for
    each rank on the side that has a part of each, one on the other, none where this rank reads or writes
    nothing."""
    itemsize, rows = call.item_bytes, rows_of(call.kind, own.size)
    shares_out = call.kind == "reduce_scatter"
    total = call.count // rows if shares_out else call.count
    most = max(PART_BYTES // rows // itemsize, 1)
    # Of what is shared out, this rank's part is of use to it.
    first_row = own.number if shares_out else 0
    steps = []
    for first in range(0, total, most):
        count = min(most, total - first)
        nbytes, offset = count * itemsize, first * itemsize
        read = [(start + offset, nbytes) for start in sources]
        written = [
            ((first_row + row) * nbytes, start + offset, nbytes)
            for row, start in enumerate(targets)
        ]
        part = call._replace(count=count * rows if shares_out else count)
        steps.append(Step(part, read, written, nbytes * rows))
    return steps


class GpuTransfers:
    """Carries tensors of this process's GPUs through the sidecar, for one group. With a `policy` GPUs that share an NVLink
    are added up first; `opened` gets the group that this takes. `driver` names another library than the machine's."""

    def __init__(
        self,
        client: Client,
        lane: Group | None,
        completer: Completer,
        timeout: float,
        driver: str | None = None,
        policy: Policy | None = None,
        opened: list[Group] | None = None,
    ) -> None:
        from ._native import GpuQueue

        self._client, self._lane, self._completer, self._timeout = client, lane, completer, timeout
        self._driver = driver
        whole = client if lane is None else lane
        self._own = Rank(whole.rank, client.world_size if lane is None else lane.size)
        self._gpus: dict[int, Gpu] = {}
        self._memories = MemoryPool(client, timeout)
        #: Waits for copies of results that may be under way; the tensors that they write, and memory that they read.
        self._delivered: deque[tuple[Callable[[], None], list[torch.Tensor], Memory | None]] = (
            deque()
        )
        self._queue = GpuQueue(client, lane)
        #: Waits until the last collective was called.
        self._last: Callable[[], object] | None = None
        #: Of each GPU, a stream of PyTorch's on which futures are resolved.
        self._futures: dict[int, torch.cuda.Stream] = {}
        self._policy = policy
        self._bridge: tuple[int, Bridge] | None = None
        self._opened = [] if opened is None else opened

    def submit(
        self,
        call: Call,
        sources: list[torch.Tensor],
        targets: list[torch.Tensor],
        results: list[torch.Tensor],
    ) -> HFReduceWork:
        """A collective between tensors on a GPU, behind what the current stream was given. Where a side has a part
        for each rank it is one tensor or so many."""
        kind = call.kind
        device = (sources or targets)[0].device
        for tensor in (*sources, *targets):
            if tensor.device != device:
                raise HFReduceError(
                    f"failed to call {kind} with tensors on {device} and {tensor.device}: use one GPU"
                )
            if not tensor.is_contiguous():
                raise HFReduceError(
                    f"failed to call {kind} with a tensor on {device} that is not contiguous: call .contiguous() on it"
                )
        size = self._own.size
        starts = [
            _starts(sources, size if kind == "reduce_scatter" else 1),
            _starts(targets, size if kind == "allgather" else 1),
        ]
        stream = torch.cuda.current_stream(device).cuda_stream
        work = HFReduceWork(kind, results)
        bridge = self._crosses(call, device.index)
        if bridge is not None:
            gates = self.run_over(work, bridge, call, sources[0].data_ptr(), stream)
        else:
            steps = cut(call, self._own, *starts)
            gates = self.run(work, device.index, steps, stream, inputs=sources)
        work.gate = lambda: gates(torch.cuda.current_stream(device).cuda_stream)
        work.resolving = lambda: self._resolving(device)
        return work

    def _resolving(self, device: torch.device) -> AbstractContextManager[None]:
        """Makes a stream of its own the current one: who resolves a future makes the current stream wait for the tensors,
        and that of a thread of ours would be the default stream, which most training runs on."""
        stream = self._futures.get(device.index)
        if stream is None:
            stream = self._futures[device.index] = torch.cuda.Stream(device)
        return torch.cuda.stream(stream)

    def run(
        self,
        work: HFReduceWork,
        ordinal: int,
        steps: Sequence[Step],
        stream: int,
        inputs: Sequence[torch.Tensor] = (),
    ) -> Callable[[int], None]:
        """Takes the steps of a collective; completes `work` when the copies back are begun. Returns what makes a stream
        wait for them, which may be called from then on. `inputs` own the memory that the steps read: they are kept until it
        was read, because whoever calls may drop them at once, and PyTorch would give their memory to the next kernel."""
        gpu, offset = self._gpu(ordinal), 0
        parts: list[tuple[Call, list[tuple[int, int]], list[tuple[int, int, int]], int]] = []
        for step in steps:
            parts.append((step.call, step.sources, step.targets, offset))
            offset += _aligned(max(sum(n for _, n in step.sources), step.nbytes))
        memory = self._memories.take(offset)
        try:
            collective = self._queue.begin(
                gpu, parts, memory.arena, stream, list(inputs), timeout=self._timeout
            )
        except HFReduceError:
            self._memories.give_back(memory)
            raise
        self._last = functools.partial(collective.called, timeout=self._timeout)
        results = work.result()

        def finish() -> None:
            self._settle()
            try:
                collective.finish(timeout=self._timeout)
            except HFReduceError as error:
                self._memories.lose(memory.nbytes)
                # Some parts may be on their way back all the same.
                self._delivered.append((collective.settle, results, None))
                raise HFReduceError(naming.explain(str(error))) from None
            self._delivered.append((collective.settle, results, memory))

        self._completer.add(work, finish)
        return collective.gate

    def _crosses(self, call: Call, ordinal: int) -> Bridge | None:
        """The way over an NVLink, if this collective takes it: so says what all ranks know alike."""
        policy = self._policy
        if policy is None or call.kind != "allreduce" or call.count < 2:
            return None
        # What is rounded otherwise than on each level keeps its order of adding up.
        if call.numerics != "fast" or call.count * call.item_bytes < policy.least_bytes:
            return None
        from . import pairs
        from ._native import pairs_add
        from .nvlink import Bridge

        if not pairs_add(call):
            return None
        if self._bridge is None:
            self.drain()
            gpu = self._gpu(ordinal)
            joined = pairs.agree(self._client, self._lane, gpu, PART_BYTES, policy, self._timeout)
            if joined is None:
                self._policy = None
                return None
            self._opened.append(joined.lane)
            self._bridge = ordinal, Bridge(self._client, gpu, joined, PART_BYTES, self._timeout)
        own, bridge = self._bridge
        if own != ordinal:
            raise HFReduceError(
                f"failed to call allreduce with a tensor on cuda:{ordinal}: this group reduces cuda:{own} with its "
                "NVLink peer first; use one GPU, or spec.communication.nvlink: Never"
            )
        return bridge

    def run_over(
        self,
        work: HFReduceWork,
        bridge: Bridge,
        call: Call,
        start: int,
        stream: int,
    ) -> Callable[[int], None]:
        """As `run`, over an NVLink: an allreduce of the tensor that begins at `start`."""
        after = bridge.after(stream)
        parts = bridge.cut(start, call.count, call.item_bytes)
        memory = self._memories.take(parts[-1].offset + _aligned(parts[-1].own[1]))
        arrived: list[Event] = []
        results = work.result()

        def finish() -> None:
            self._settle()
            try:
                arrived.append(bridge.take_back(parts, memory))
            except HFReduceError:
                self._memories.lose(memory.nbytes)
                raise
            self._delivered.append((arrived[0].wait, results, memory))

        self._last = parts[-1].called.wait
        bring = functools.partial(bridge.bring, parts, call, memory, after)
        self._queue.run(bring, timeout=self._timeout)
        self._completer.add(work, finish)
        return lambda consumer: arrived[0].gate(consumer)

    def drain(self) -> None:
        """Waits until all that was given has been called: what is called next comes behind it on all ranks."""
        if self._last is not None:
            self._last()
            self._last = None

    def _gpu(self, ordinal: int) -> Gpu:
        gpu = self._gpus.get(ordinal)
        if gpu is None:
            from ._native import Gpu

            gpu = self._gpus[ordinal] = Gpu(ordinal, self._driver)
        return gpu

    def _settle(self) -> None:
        """Waits for copies of results that are still under way: the sidecar gets their memory back."""
        while self._delivered:
            # By name: the tensors must outlast the wait.
            wait, _results, memory = self._delivered.popleft()
            wait()
            if memory is not None:
                self._memories.give_back(memory)


def _starts(tensors: list[torch.Tensor], rows: int) -> list[int]:
    """Where tensors begin, or the equal parts of the only one."""
    if len(tensors) == 1 and rows > 1:
        nbytes = tensors[0].numel() * tensors[0].element_size() // rows
        return [tensors[0].data_ptr() + row * nbytes for row in range(rows)]
    return [tensor.data_ptr() for tensor in tensors]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
