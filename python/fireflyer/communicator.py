"""What a collective is called with: the object that `reductions`, `copies` and `exchange` are given.

Owns the group's connection to the sidecar, the order of its calls, and its end. Tensors on a GPU go through
`gpu`. What the sidecar does not do, and element types that it does not add up, go to gloo. Each rank decides
that from its own arguments, hence a collective of gloo waits behind a barrier of the sidecar that is named
after it: ranks that differ get an error. Gloo connects all ranks with all: that one pair of nodes crosses
zones holds for the sidecar only.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import naming, process
from .call import Call
from .collective_error import HFReduceError
from .completer import Completer, Finish
from .gpu import GpuTransfers
from .limits import CLOSE_SECONDS
from .tensors import DTYPES, as_bytes, receive
from .work import HFReduceWork

if TYPE_CHECKING:
    from ._native import Arena, Client, Group, Ticket
    from .gloo import Gloo
    from .pairs import Policy

#: How long a group of some ranks that this one has closed is waited for: its end frees what it holds.
_DAY_SECONDS = 86_400.0


class Communicator:
    """Of one group; `lane` is what the sidecar knows it as, if it is not the group of all ranks."""

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        gloo: Gloo,
        client: Client | None,
        lane: Group | None = None,
        numerics: str = "fast",
        policy: Policy | None = None,
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.gloo, self.client, self.numerics = gloo, client, numerics
        #: Messages that nobody has waited for: what they bring holds memory of the node.
        self.messages: list[HFReduceWork] = []
        #: Operations and messages that were called.
        self.called = 0
        self._lane, self._policy = lane, policy
        self._process = process.own()
        # Calls take their place in the order of all ranks: one at a time.
        self._calling = threading.Lock()
        self._gpu_transfers: GpuTransfers | None = None
        self._completer = None
        if client is not None:
            self._completer = Completer()
            # Also those that the transfers open for halves of this group.
            self._opened = [] if lane is None else [lane]
            self._close = weakref.finalize(
                self, _close, self._completer, client, self._opened, lane is not None
            )
            # A process that ends leaves all its groups at once.
            self._close.atexit = lane is None

    def close(self) -> None:
        """Waits a little for operations in flight; none can be called after it."""
        if self._completer is not None and process.own() == self._process:
            self._close()

    def takes(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the sidecar can take these tensors; an error says what nobody can do."""
        if process.own() != self._process:
            raise HFReduceError(
                f"failed to call a collective in process {os.getpid()}: the group belongs to "
                f"process {self._process}; use it outside of DataLoader workers and forked children"
            )
        for tensor in tensors:
            if tensor.is_cpu and tensor.layout == torch.strided:
                continue
            if tensor.device.type not in ("cpu", "meta"):
                raise HFReduceError(
                    f"failed to call a collective with a tensor on {tensor.device}: with one tensor "
                    "on a GPU hfreduce supports allreduce, reduce, broadcast, allgather and "
                    "reduce_scatter; copy it to host memory, or use nccl"
                )
            return False
        return self.client is not None

    def averages(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the sidecar averages what has this type and lies on this device."""
        is_float = DTYPES.get(dtype, "i")[0] not in "iu"
        return self.client is not None and device.type == "cpu" and is_float

    def call(
        self,
        calls: Sequence[Call],
        inputs: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor | None],
        results: list[torch.Tensor] | None = None,
        after: Callable[[], None] | None = None,
        splits: tuple[list[int], list[int]] | None = None,
    ) -> HFReduceWork:
        """Calls one operation for each input now; the results come into `outputs` later, then `after` is called."""
        kind = calls[0].kind
        # Each rank reads its part of what is shared out.
        part = self.rank if kind == "reduce_scatter" else None
        client, completer, lane, timeout = self.client, self._completer, self._lane, self.timeout
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

        nbytes = sum(one.nbytes for one in outputs if one is not None)
        written = [one for one in results or outputs if one is not None]
        with self._turn():
            try:
                for tensor, call in zip(inputs, calls):
                    data = None
                    if tensor is not None and (call.count > 0 or splits is not None):
                        data = as_bytes(tensor.contiguous())
                    tickets.append(
                        client.call(call, data, group=lane, splits=splits, timeout=timeout)
                    )
            finally:
                # Also of a call that was refused half way: what was called is waited for.
                work = completer.add(HFReduceWork(kind, written), finish, nbytes=nbytes)
        return work

    def issue(self, call: Call, data: Any = None) -> Ticket:
        """Calls one operation, with a copy of `data`; who calls it waits for it."""
        assert self.client is not None
        with self._turn():
            return self.client.call(call, data, group=self._lane, timeout=self.timeout)

    def submit(self, call: Call, arena: Arena, offset: int) -> Ticket:
        """As `issue`, with what lies in memory that is shared with the sidecar."""
        assert self.client is not None
        self.takes([])
        with self._turn():
            return self.client.submit(call, arena, offset, group=self._lane, timeout=self.timeout)

    def complete(self, work: HFReduceWork, finish: Finish) -> None:
        """Completes `work` when `finish`, which waits for what `submit` has called, has returned or raised."""
        assert self._completer is not None
        self._completer.add(work, finish)

    def on_gpu(
        self,
        kind: str,
        call: Call | None,
        sources: list[torch.Tensor],
        targets: list[torch.Tensor],
        results: list[torch.Tensor],
    ) -> dist.Work:
        """A collective between tensors on a GPU; no `call` where the sidecar does not add up such tensors."""
        self.takes([])
        if self.client is None or call is None:
            tensor = (sources or targets)[0]
            raise HFReduceError(
                f"failed to call {kind} with a tensor of {tensor.dtype} on {tensor.device}: on a GPU "
                "hfreduce reduces floats of 8 to 64 bits, integers of 8, 32 and 64 and booleans (averages: floats), "
                "and moves everything, where a sidecar runs; copy it to host memory, or use nccl"
            )
        assert self._completer is not None
        with self._calling:
            if self._gpu_transfers is None:
                self._gpu_transfers = GpuTransfers(
                    self.client, self._lane, self._completer, self.timeout,
                    policy=self._policy, opened=self._opened,
                )  # fmt: skip
            return self._gpu_transfers.submit(call, sources, targets, results)

    def over_gloo(self, kind: str, *arguments: Any, **named: Any) -> dist.Work:
        """A collective of gloo, which starts when all ranks have called it."""
        gloo = self.gloo
        if not self.takes([]):
            return gloo.call(kind, *arguments, **named)
        client, completer, timeout = self.client, self._completer, self.timeout
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
                    gloo.complete(tensors, kind, *arguments, **named)
                except Exception as error:
                    raise HFReduceError(f"{what} failed: {error}") from error

        results, inputs = (list(naming.tensors_of(side, arguments, named)) for side in range(2))
        tensors = results + inputs
        with self._turn():
            ticket = client.call(Call("barrier", tag=name), None, group=self._lane, timeout=timeout)
            return completer.add(HFReduceWork(what, results), finish)

    def _turn(self) -> threading.Lock:
        """The lock of whoever calls, who calls after those that still wait for their GPU."""
        if self._gpu_transfers is not None:
            self._gpu_transfers.drain()
        self.called += 1
        return self._calling


def _close(completer: Completer, client: Client, opened: list[Group], is_part: bool) -> None:
    """Ends a group after what was called in it; one of some ranks is closed, with what it has opened, when
    all of them have done so. What the group of all has opened ends with the process."""
    closed = False
    for lane in opened if is_part else ():
        try:
            ticket = client.call(Call("close"), None, group=lane, timeout=CLOSE_SECONDS)
        except HFReduceError:
            continue  # The sidecar is gone, and the group with it.
        work = HFReduceWork("close", [])
        completer.add(work, functools.partial(client.wait, ticket, None, timeout=_DAY_SECONDS))
        closed = True
    completer.close(0.0 if closed else CLOSE_SECONDS)
