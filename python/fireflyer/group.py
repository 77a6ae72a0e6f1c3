"""The process group: how a call goes to the sidecar, to a GPU first, or to gloo.

Owns the life of a group, and the order of its calls. What c10d's calls mean is in `reductions`, `copies` and `exchange`:
those are the sidecar's, and barrier; every other collective, and element types that the sidecar does not add up, are
gloo's. Each rank decides that from its own arguments, hence a collective of gloo waits behind a barrier of the sidecar
that is named after it: ranks that differ get an error. Gloo connects all ranks with all: that one pair of nodes crosses
zones holds for the sidecar only.
Method and parameter names are c10d's: it calls some of them by keyword.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partialmethod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import naming, process
from .completer import Completer
from .copies import Copies
from .errors import HFReduceError
from .exchange import Exchange, MessageWork
from .gpu import Courier
from .membership import Members
from .options import given
from .reductions import Reductions
from .tensors import DTYPES, Words, as_bytes, moved, receive
from .work import HFReduceWork

if TYPE_CHECKING:
    from ._native import Arena, Client, Group, Ticket
    from .pairs import Policy

#: How long the end of a group waits for operations that are still in flight, in seconds.
_CLOSE_SECONDS = 2.0
#: How long a group of some ranks that this one has closed is waited for: its end frees what it holds.
_DAY_SECONDS = 86_400.0


class HFReduceGroup(Reductions, Copies, Exchange, dist.ProcessGroup):
    """A process group over the node's sidecar, or over gloo where there is none."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        gloo: dist.ProcessGroupGloo,
        client: Client | None,
        lane: Group | None = None,
        numerics: str = "fast",
        pairs: Policy | None = None,
    ) -> None:
        super().__init__(store, rank, size)
        self._client = client
        self._numerics = numerics
        self._pairs = pairs
        # What the sidecar knows it as, if it is not the group of all ranks.
        self._lane = lane
        self._timeout = timeout.total_seconds()
        self._process = process.own()
        # Calls take their place in the order of all ranks: one at a time.
        self._calling = threading.Lock()
        # What this class does not define is done by the base class, over the registered gloo. What it does
        # define cannot be had from the base class any more, which would call back here: hence `_gloo`.
        self._gloo = dist.ProcessGroup(store, rank, size)
        for group in (self, self._gloo):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        gloo._set_sequence_number_for_group()
        self._posted: list[MessageWork] = []
        self._courier: Courier | None = None
        self._completer = None
        if client is not None:
            self._completer = Completer()
            # Also those that the courier opens for halves of this group.
            self._opened = [] if lane is None else [lane]
            self._finish = weakref.finalize(
                self, _finish, self._completer, client, self._opened, lane is not None
            )
            # A process that ends leaves all its groups at once.
            self._finish.atexit = lane is None

    def finish(self) -> None:
        """Waits a little for operations in flight; none can be called after it. Once the group is
        collected this is done by itself."""
        if self._completer is not None and process.own() == self._process:
            self._finish()

    @property
    def numerics(self) -> str:
        """How the sidecars round sums of floats in this group: ``fast``, ``precise`` or ``bitwise``."""
        return self._numerics

    @property
    def uses_sidecar(self) -> bool:
        """Whether this group talks to the sidecar."""
        return self._client is not None

    def members(self) -> Members | None:
        """Who takes part at present, if this group talks to the sidecar."""
        if self._client is None:
            return None
        epoch, ranks, nodes = self._client.members(timeout=self._timeout)
        return Members(epoch, ranks, tuple(nodes))

    @property
    def sidecar(self) -> Client | None:
        """The connection to the sidecar, if this group talks to it."""
        return self._client

    @property
    def timeout_seconds(self) -> float:
        """How long this group waits."""
        return self._timeout

    def adds(self, tensor: Any) -> bool:
        """Whether the sidecar averages what has this type and lies on this device."""
        dtype = DTYPES.get(tensor.dtype, "i")
        return self._client is not None and tensor.device.type == "cpu" and dtype[0] not in "iu"

    def call_at(
        self, reduction: str, dtype: torch.dtype, count: int, arena: Arena, offset: int, tag: int
    ) -> Ticket:
        """Calls an allreduce of what lies in memory that is shared with the sidecar; who calls it waits for it."""
        client = self._client
        assert client is not None
        self._ready([])
        with self._turn():
            return client.submit(
                "allreduce",
                DTYPES[dtype],
                count,
                arena,
                offset,
                reduce=reduction,
                tag=tag,
                numerics=self._numerics,
                group=self._lane,
                timeout=self._timeout,
            )

    def complete(self, work: HFReduceWork, finish: Callable[[], int | None]) -> None:
        """Completes `work` when `finish`, which waits for what `call_at` has called, has returned or raised."""
        assert self._completer is not None
        self._completer.add(work, finish)

    def getBackendName(self) -> str:
        """The name of the backend."""
        return "hfreduce"

    def barrier(self, opts: Any = None) -> dist.Work:
        """Is complete when all ranks have called it."""
        if not self._ready([]):
            return self._gloo.barrier(*given(opts))
        return self._each("barrier", [None], [(("u8", 0, 0), "sum", 0)], [None])

    def _over_gloo(self, kind: str, *arguments: Any, **named: Any) -> dist.Work:
        """A collective of gloo, which starts when all ranks have called it."""
        method = getattr(self._gloo, kind)
        if not self._ready([]):
            return method(*arguments, **named)
        client, completer, timeout = self._client, self._completer, self._timeout
        assert client is not None and completer is not None
        name = naming.of_call(kind, arguments, named)
        what = naming.words(name)
        inference = torch.is_inference_mode_enabled()

        def finish() -> None:
            try:
                client.wait(ticket, None, timeout=timeout)
            except HFReduceError as error:
                raise HFReduceError(
                    f"failed to start {what}: {naming.explain(str(error))}"
                ) from None
            # What was on in the thread that called.
            with torch.inference_mode(inference), torch.no_grad():
                try:
                    method(*arguments, **named).wait()
                except Exception as error:
                    raise HFReduceError(f"{what} failed: {error}") from error

        results = list(naming.tensors_of(0, arguments, named))
        with self._turn():
            ticket = client.call(
                "barrier", "u8", 0, None, tag=name, group=self._lane, timeout=timeout
            )
            return completer.add(HFReduceWork(what, results), finish)

    # What only gloo does.
    allgather_coalesced = partialmethod(_over_gloo, "allgather_coalesced")

    def _on_gpu(
        self,
        kind: str,
        sources: list[torch.Tensor],
        targets: list[torch.Tensor],
        results: list[torch.Tensor],
        reduction: str | None = "sum",
        **said: Any,
    ) -> dist.Work:
        """A collective between tensors on a GPU; of what it moves and does not reduce the type does not matter."""
        self._ready([])
        tensor = (sources or targets)[0]
        words: tuple[str, int] | None = None
        if kind in ("broadcast", "allgather"):
            dtype, _, said["tag"] = moved(tensor)
            words = dtype, tensor.element_size() if tensor.dtype in DTYPES else 1
        elif tensor.dtype in DTYPES and reduction is not None:
            words = DTYPES[tensor.dtype], tensor.element_size()
            said["reduce"] = reduction
        is_divided = reduction in ("avg", "premul_sum") and not tensor.is_floating_point()
        if self._client is None or words is None or is_divided:
            raise HFReduceError(
                f"failed to call {kind} with a tensor of {tensor.dtype} on {tensor.device}: on a GPU hfreduce adds up "
                "floats of 8 to 32 bits and integers (averages: floats), and moves everything, where a sidecar runs; "
                "copy it to host memory, or use nccl"
            )
        assert self._completer is not None
        with self._calling:
            if self._courier is None:
                self._courier = Courier(
                    self._client, self._lane, self._completer, self._timeout,
                    numerics=self._numerics, policy=self._pairs, opened=self._opened,
                )  # fmt: skip
            return self._courier.carry(kind, words, sources, targets, results, **said)

    def _turn(self) -> threading.Lock:
        """The lock of whoever calls, who calls after those that still wait for their GPU."""
        if self._courier is not None:
            self._courier.drain()
        return self._calling

    def _ready(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the sidecar can take these tensors; an error says what nobody can do."""
        if process.own() != self._process:
            raise HFReduceError(
                f"failed to call a collective in process {os.getpid()}: the group belongs to process "
                f"{self._process}; use it outside of DataLoader workers and forked children"
            )
        for tensor in tensors:
            if tensor.is_cpu and tensor.layout == torch.strided:
                continue
            if tensor.device.type not in ("cpu", "meta"):
                raise HFReduceError(
                    f"failed to call a collective with a tensor on {tensor.device}: of one tensor on a GPU hfreduce does "
                    "allreduce, reduce, broadcast, allgather and reduce_scatter; copy it to host memory, or use nccl"
                )
            return False
        return self._client is not None

    def _each(
        self,
        kind: str,
        inputs: Sequence[torch.Tensor | None],
        calls: Sequence[tuple[Words, str | None, int]],
        outputs: Sequence[torch.Tensor | None],
        results: list[torch.Tensor] | None = None,
        after: Callable[[], None] | None = None,
        factor: float = 1.0,
        splits: tuple[list[int], list[int]] | None = None,
    ) -> HFReduceWork:
        """Calls one operation for each input now; the results come into `outputs` later."""
        # Each rank reads its part of what is shared out.
        part = self.rank() if kind == "reduce_scatter" else None
        client, completer, timeout = self._client, self._completer, self._timeout
        assert client is not None and completer is not None
        tickets: list[Ticket] = []
        ended = 0
        first: HFReduceError | None = None
        participants: int | None = None

        def finish() -> int | None:
            nonlocal ended, first, participants
            while ended < len(tickets):
                try:
                    ranks = receive(client, tickets[ended], outputs[ended], timeout, part)
                    # A rank that was lost between two of several tensors is in some of them only.
                    participants = min(ranks, participants or ranks)
                except HFReduceError as error:
                    first = first or HFReduceError(naming.explain(str(error)))
                ended += 1
            if first is not None:
                raise first
            if after is not None:
                after()
            return participants

        told: list[torch.Tensor] = []
        nbytes = 0
        for one in outputs:
            if one is not None:
                told.append(one)
                nbytes += one.nbytes
        if results:
            told = [one for one in results if one is not None]
        lane = self._lane
        with self._turn():
            try:
                for tensor, ((dtype, count, name), reduction, root) in zip(inputs, calls):
                    data = None
                    if tensor is not None and (count > 0 or splits is not None):
                        data = as_bytes(tensor.contiguous())
                    ticket = client.call(
                        kind, dtype, count, data, reduce=reduction or "sum", factor=factor, root=root, tag=name,
                        numerics=self._numerics, group=lane, splits=splits, timeout=timeout,
                    )  # fmt: skip
                    tickets.append(ticket)
            finally:
                # Also of a call that was refused half way: what was called is waited for.
                work = completer.add(HFReduceWork(kind, told), finish, nbytes=nbytes)
        return work


def _finish(completer: Completer, client: Client, opened: list[Group], is_part: bool) -> None:
    """Ends a group after what was called in it; one of some ranks is closed, with what it has opened, when all of them
    have done so. What the group of all has opened ends with the process."""
    closed = False
    for lane in opened if is_part else ():
        try:
            ticket = client.call("close", "u8", 0, None, group=lane, timeout=_CLOSE_SECONDS)
        except HFReduceError:
            continue  # The sidecar is gone, and the group with it.
        work = HFReduceWork("close", [])
        completer.add(work, lambda ticket=ticket: client.wait(ticket, None, timeout=_DAY_SECONDS))
        closed = True
    completer.close(0.0 if closed else _CLOSE_SECONDS)
