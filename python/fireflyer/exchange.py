"""What each rank gets for itself: gather, scatter, all-to-all, and messages between two ranks.

Owns the translation of these calls of c10d, for a group's communicator. Messages are not waited for in the
order of the calls, as collectives are: who waits for one completes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.futures

from . import naming
from .call import Call
from .collective_error import HFReduceError
from .communicator import Communicator
from .opaque import methods
from .options import given, root_of
from .tensors import DTYPES, as_bytes, fill, fits, flat, moved, receive
from .work import HFReduceWork

if TYPE_CHECKING:
    from ._native import Client, Ticket

#: c10d's methods.
__all__ = [
    "all_to_all_single", "alltoall", "alltoall_base", "gather", "gather_into_tensor",
    "gather_single", "recv", "recv_anysource", "scatter", "send",
]  # fmt: skip

#: Messages that are all looked at whenever another one is called.
_FEW = 32
#: Tags are not negative for c10d; the sidecar takes 64 bits.
_TAG_BITS = (1 << 64) - 1


def gather(
    comm: Communicator,
    output_tensors: Sequence[Sequence[torch.Tensor]],
    input_tensors: Any,
    opts: Any = None,
    *,
    root: int | None = None,
) -> dist.Work:
    """Copies the tensors of all ranks to the root, in rank order."""
    inputs = flat(input_tensors)
    target = root_of(opts, root)
    here = target == comm.rank
    outputs = flat(output_tensors) if here else []
    whole = len(inputs) == 1 and (not here or len(outputs) == comm.size)
    whole = whole and fits(inputs[0], outputs, 1)
    if not whole or not comm.takes([*inputs, *outputs]):
        if opts is None:
            opts = dist.GatherOptions()
            opts.rootRank = target
        return comm.over_gloo("gather", [list(one) for one in output_tensors], inputs, opts)
    gathered = None
    if here:
        gathered = torch.empty((comm.size, inputs[0].numel()), dtype=inputs[0].dtype)

    def spread() -> None:
        for part, output in zip(() if gathered is None else gathered, outputs):
            fill(output, part)

    call = moved("gather", inputs[0], target)
    return comm.call([call], inputs, [gathered], outputs or inputs, spread)


def scatter(
    comm: Communicator,
    output_tensors: Any,
    input_tensors: Sequence[Sequence[torch.Tensor]],
    opts: Any = None,
    *,
    root: int | None = None,
) -> dist.Work:
    """Copies each of the root's tensors to one rank, in rank order."""
    outputs = flat(output_tensors)
    target = root_of(opts, root)
    here = target == comm.rank
    inputs = flat(input_tensors) if here else []
    whole = len(outputs) == 1 and (not here or len(inputs) == comm.size)
    whole = whole and fits(outputs[0], inputs, 1)
    if not whole or not comm.takes([*inputs, *outputs]):
        if opts is None:
            opts = dist.ScatterOptions()
            opts.rootRank = target
        return comm.over_gloo("scatter", outputs, [list(one) for one in input_tensors], opts)
    joined = torch.cat([one.detach().reshape(-1) for one in inputs]) if here else None
    return comm.call([moved("scatter", outputs[0], target)], [joined], outputs)


def gather_single(
    comm: Communicator, output: torch.Tensor, input: torch.Tensor, opts: Any = None
) -> dist.Work:
    """Copies the tensors of all ranks into one tensor of the root, in rank order."""
    here = root_of(opts, None) == comm.rank
    if here and output.numel() != input.numel() * comm.size:
        raise ValueError(
            f"failed to gather: the output has {output.numel()} elements, each of {comm.size} ranks "
            f"sends {input.numel()}"
        )
    outputs = list(output.view(-1).split(max(input.numel(), 1))) if here else []
    return gather(comm, [outputs] if here else [], [input.reshape(-1)], opts)


gather_into_tensor = gather_single


def alltoall_base(
    comm: Communicator,
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    opts: Any = None,
) -> dist.Work:
    """Divides `input` along its first dimension and copies a part to each rank; theirs come into `output`."""
    ours = _split(input, input_split_sizes, comm.size)
    theirs = _split(output, output_split_sizes, comm.size)
    whole = output.dtype == input.dtype and len(ours) == len(theirs) == comm.size
    if not whole or not comm.takes([output, input]):
        splits = list(output_split_sizes), list(input_split_sizes)
        return comm.over_gloo("alltoall_base", output, input, *splits, *given(opts))
    return _exchange(comm, input, output, ours, theirs, results=[output])


# What newer versions of PyTorch call it.
all_to_all_single = alltoall_base


def alltoall(
    comm: Communicator,
    output_tensors: Sequence[torch.Tensor],
    input_tensors: Sequence[torch.Tensor],
    opts: Any = None,
) -> dist.Work:
    """Copies a tensor to each rank; theirs come into `output_tensors`."""
    outputs, inputs = list(output_tensors), list(input_tensors)
    whole = len(outputs) == len(inputs) == comm.size
    alike = len({one.dtype for one in (*outputs, *inputs)}) == 1
    if not whole or not alike or not comm.takes([*outputs, *inputs]):
        return comm.over_gloo("alltoall", outputs, inputs, *given(opts))
    joined = torch.cat([one.detach().reshape(-1) for one in inputs])
    sizes = ([one.numel() for one in inputs], [one.numel() for one in outputs])
    result = torch.empty(sum(sizes[1]), dtype=joined.dtype)

    def spread() -> None:
        for part, output in zip(result.split(sizes[1]), outputs):
            fill(output, part)

    return _exchange(comm, joined, result, *sizes, results=outputs, after=spread)


def _exchange(
    comm: Communicator,
    input: torch.Tensor,
    output: torch.Tensor,
    send: list[int],
    receive: list[int],
    results: list[torch.Tensor],
    after: Callable[[], None] | None = None,
) -> dist.Work:
    # How many elements there are is said by the splits; of an unknown type they are bytes.
    call = moved("alltoall", input.new_empty(0))
    each = 1 if input.dtype in DTYPES else input.element_size()
    splits = ([one * each for one in send], [one * each for one in receive])
    return comm.call([call], [input], [output], results, after, splits=splits)


def send(comm: Communicator, tensors: Any, dstRank: int, tag: int = 0) -> dist.Work:
    """Sends a tensor to a rank, which receives it under the same tag."""
    tensors = flat(tensors)
    if len(tensors) != 1 or not comm.takes(tensors):
        return comm.gloo.call("send", tensors, dstRank, tag)
    call = moved("send", tensors[0], dstRank)
    data = as_bytes(tensors[0].contiguous()) if call.count > 0 else None
    return _post(comm, call, tag, tensors[0], data, None)


def recv(comm: Communicator, tensors: Any, srcRank: int, tag: int = 0) -> dist.Work:
    """Receives what a rank sends under a tag: the first message that was not received yet."""
    tensors = flat(tensors)
    if len(tensors) != 1 or not comm.takes(tensors):
        return comm.gloo.call("recv", tensors, srcRank, tag)
    return _post(comm, moved("recv", tensors[0], srcRank), tag, tensors[0], None, tensors[0])


def recv_anysource(comm: Communicator, tensors: Any, tag: int = 0) -> dist.Work:
    """Is gloo's where there is no sidecar."""
    if not comm.takes(flat(tensors)):
        return comm.gloo.call("recv_anysource", flat(tensors), tag)
    raise HFReduceError(
        "failed to receive from any rank: hfreduce needs the sender's rank, as NCCL does. Name it "
        '(`src=`), or make a group for such messages: `new_group(backend="gloo")`'
    )


def _post(
    comm: Communicator,
    call: Call,
    tag: int,
    tensor: torch.Tensor,
    data: Any,
    output: torch.Tensor | None,
) -> dist.Work:
    _sweep(comm.messages)
    assert comm.client is not None
    ticket = comm.issue(call._replace(tag=tag & _TAG_BITS), data)
    work = MessageWork(call.kind, tensor, comm.client, ticket, output, comm.timeout)
    comm.messages.append(work)
    return work


def _sweep(messages: list[HFReduceWork]) -> None:
    """Completes messages that have come and that nobody waits for: what they brought holds memory of the node. Of many,
    not at each call, because a thousand looks take longer than the call."""
    count = len(messages)
    if count < _FEW or count & (count - 1) == 0:
        messages[:] = [one for one in messages if not one.is_completed()]


@methods
class MessageWork(HFReduceWork):
    """One message. Whoever waits for it completes it."""

    def __init__(
        self,
        what: str,
        tensor: torch.Tensor,
        client: Client,
        ticket: Ticket,
        output: torch.Tensor | None,
        timeout: float,
    ) -> None:
        super().__init__(what, [tensor])
        self._turn = threading.Lock()
        self._client, self._ticket, self._output = client, ticket, output
        self._limit = timeout

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until it has been sent or received; a positive `timeout` limits that."""
        limit = timeout.total_seconds()
        self._settle(limit if limit > 0 else self._limit)
        return super().wait(timeout)

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        if not self._is_over and not self._waits():
            self._settle(self._limit)
        return self._is_over

    def is_success(self) -> bool:
        """Whether it has been sent or received."""
        return self.is_completed() and super().is_success()

    def exception(self) -> HFReduceError | None:
        """Why it failed, if it did."""
        self.is_completed()
        return super().exception()

    def get_future(self) -> torch.futures.Future:
        """A future of the tensor, which a thread completes."""
        threading.Thread(target=self._settle_quietly, name="hfreduce-message", daemon=True).start()
        return super().get_future()

    def _waits(self) -> bool:
        """Whether nothing has come yet. No, where its end was taken."""
        try:
            return not self._client.test(self._ticket)
        except HFReduceError:
            return False

    def _settle(self, limit: float) -> None:
        with self._turn:
            if self._is_over:
                return
            try:
                ranks = receive(self._client, self._ticket, self._output, limit, None)
            except HFReduceError as error:
                if self._waits():
                    raise
                self.complete(HFReduceError(naming.explain(str(error))))
            else:
                self.complete(None, ranks)

    def _settle_quietly(self) -> None:
        try:
            self._settle(self._limit)
        except HFReduceError as error:
            with self._turn:
                if not self._is_over:
                    self.complete(error)


def _split(tensor: torch.Tensor, sizes: Sequence[int], world: int) -> list[int]:
    """Elements of each part of a tensor: as said, or equal ones. Nothing where that does not divide it."""
    rows = tensor.size(0) if tensor.dim() > 0 else 0
    row = tensor.numel() // rows if rows > 0 else 1
    if sizes:
        return [one * row for one in sizes] if sum(sizes) == rows else []
    return [rows // world * row] * world if rows % world == 0 else []
