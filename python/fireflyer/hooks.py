"""Communication hooks for DistributedDataParallel: gradients go through HFReduce, whatever the model's group is::

    ddp.register_comm_hook(fireflyer.hooks.State(), fireflyer.hooks.bf16)

Owns what is sent for a bucket and what that does to the numbers. All hooks average over the ranks; all ranks get the
same bits. A value is rounded to what is sent once by its rank, once by each node between that and the root of the tree,
and once at the root: *r* = 2 + ceil(log2(nodes)) times at most. The error of an average is then at most
((1 + u)^r - 1) * m + (nodes + 1) * f * largest, where *m* is the mean of that element's absolute values over the ranks and
*largest* the largest absolute value of the bucket on any rank, besides float32's own error:

| Hook | Sent for a float32 | u | f |
| --- | --- | --- | --- |
| `allreduce` | 4 bytes | 0 | 0 |
| `bf16` | 2 bytes | 2^-8 | 0 |
| `e4m3` | 1 byte | 2^-4 | 2^-17 |
| `e5m2` | 1 byte | 2^-3 | 2^-31 |

The last two multiply a bucket by a power of two that brings *largest* into the upper half of the type's range, so nothing
overflows; the ranks agree on it by an allreduce of one number for each bucket, sent while the next bucket is
computed. What is not finite on one rank is not finite in the result: loss scalers see it.
"""

# Annotations are values here: DDP looks at those of hooks.
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.futures import Future

from . import naming
from .call import Call
from .collective_error import HFReduceError
from .group import backend_of
from .opaque import opaque
from .shared import Memory, of_result
from .tensors import DTYPES
from .work import HFReduceWork

if TYPE_CHECKING:
    from .group import HFReduceBackend, HFReduceGroup

__all__ = ["State", "allreduce", "bf16", "e4m3", "e5m2"]

#: Buckets whose memory a state keeps: DDP makes others once, after its first step.
_MEMORIES = 1024


class State:
    """What a model's hooks share: the group, and memory for its buckets. One for each model.

    Args:
        group: a group of the hfreduce backend, whose ranks are those of the model's group. Without one a group of all ranks
            is used, which is made if need be: a collective call.

    Raises:
        HFReduceError: the group is another backend's, or could not be made.
    """

    def __init__(self, group: "dist.ProcessGroup | None" = None) -> None:
        if group is None:
            group = _of_all_ranks()
        ours = backend_of(group)
        if ours is None:
            raise HFReduceError(
                f"failed to use a group of the backend {dist.get_backend(group)} for a hook: make one with "
                'torch.distributed.new_group(backend="hfreduce"), or give none'
            )
        self.group: HFReduceGroup | HFReduceBackend = ours
        self._memories: dict[tuple[int, int], Memory] = {}
        #: The bucket before, whose scale is being agreed on: called by the next one.
        self._pending: Callable[[], None] | None = None

    def memory(self, index: int, nbytes: int) -> Memory:
        """Memory that is shared with the sidecar, for a bucket."""
        memory = self._memories.get((index, nbytes))
        if memory is None:
            if len(self._memories) >= _MEMORIES:
                self._memories.clear()
            comm = self.group.communicator
            assert comm.client is not None
            memory = Memory(comm.client, nbytes, comm.timeout)
            self._memories[index, nbytes] = memory
        return memory

    def go_on(self, pending: Callable[[], None] | None, is_first: bool) -> None:
        """Calls the bucket before, and remembers this one. The order of calls is the same on all ranks: a callback
        that called when a number has come would call at any time."""
        before, self._pending = self._pending, pending
        # What a step that raised has left is forgotten.
        if before is not None and not is_first:
            before()


@opaque
def allreduce(state: State, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages gradients as they are."""
    return _send(state, bucket, bucket.buffer().dtype)


@opaque
def bf16(state: State, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages gradients as bfloat16; nodes add up in float32."""
    return _send(state, bucket, torch.bfloat16)


@opaque
def e4m3(state: State, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages gradients as floats of 8 bits, 3 of them for the fraction, with a scale for each bucket."""
    return _send_scaled(state, bucket, torch.float8_e4m3fn)


@opaque
def e5m2(state: State, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages gradients as floats of 8 bits, 2 of them for the fraction, with a scale for each bucket."""
    return _send_scaled(state, bucket, torch.float8_e5m2)


def _send(state: State, bucket: dist.GradBucket, dtype: torch.dtype) -> Future[torch.Tensor]:
    buffer = bucket.buffer()
    work = HFReduceWork("allreduce", [buffer])
    _call(state, bucket.index(), buffer, dtype, 1.0, work)
    return _future(work)


def _send_scaled(state: State, bucket: dist.GradBucket, dtype: torch.dtype) -> Future[torch.Tensor]:
    group, index, buffer = state.group, bucket.index(), bucket.buffer()
    work = HFReduceWork("allreduce", [buffer])
    largest = torch.linalg.vector_norm(buffer, math.inf).to("cpu", torch.float32).reshape(1)
    agreed = group.allreduce([largest], op=dist.ReduceOp.MAX)

    def send() -> None:
        try:
            agreed.wait()
            if dtype == torch.float8_e4m3fn and not math.isfinite(largest.item()):
                # It has no infinity, of which newer versions of PyTorch make its largest number.
                buffer.masked_fill_(buffer.isinf(), math.nan)
            _call(state, index, buffer, dtype, scale_of(largest.item(), dtype), work)
        except HFReduceError as error:
            work.complete(error)

    state.go_on(send, is_first=index == 0)
    if bucket.is_last():
        state.go_on(None, is_first=False)
    return _future(work)


def scale_of(largest: float, dtype: torch.dtype) -> float:
    """The power of two that brings `largest` into the upper half of a type's range; 1 where there is none."""
    if not 0.0 < largest < math.inf:
        return 1.0
    mantissa, exponent = math.frexp(torch.finfo(dtype).max / largest)
    # A float32 holds the scale and its inverse.
    return math.ldexp(1.0, max(-126, min(126, exponent - 1)))


def _call(
    state: State,
    index: int,
    buffer: torch.Tensor,
    dtype: torch.dtype,
    scale: float,
    work: HFReduceWork,
) -> None:
    """Averages `buffer` as `dtype`, times `scale` on the way; completes `work` when it holds the result."""
    comm, count = state.group.communicator, buffer.numel()
    client, timeout = comm.client, comm.timeout
    if client is None or not comm.averages(dtype, torch.device("cpu")):
        return _call_elsewhere(state, buffer, dtype, scale, work)
    memory = state.memory(index, count * dtype.itemsize)
    # The only pass over the gradients on their way out.
    _convert(buffer, memory.tensor(0, count, dtype), scale)
    call = Call(
        "allreduce", DTYPES[dtype], count, "avg",
        tag=naming.of_bucket(index, 0), numerics=comm.numerics,
    )  # fmt: skip
    ticket = comm.submit(call, memory.arena, 0)

    def finish() -> int:
        try:
            result = client.take(ticket, timeout=timeout)
        except HFReduceError as error:
            raise HFReduceError(naming.explain(str(error))) from None
        _convert(of_result(result, dtype), buffer, 1.0 / scale)
        return result.ranks

    comm.complete(work, finish)


def _call_elsewhere(
    state: State, buffer: torch.Tensor, dtype: torch.dtype, scale: float, work: HFReduceWork
) -> None:
    """The same where no sidecar adds up: what this rank sends is rounded alike, the sum is not."""
    if dtype != buffer.dtype:
        rounded = torch.empty_like(buffer, dtype=dtype)
        _convert(buffer, rounded, scale)
        _convert(rounded, buffer, 1.0 / scale)
    summed = state.group.allreduce([buffer])

    def done(future: Future) -> None:
        try:
            future.value()
        except RuntimeError as error:
            work.complete(HFReduceError(str(error)))
        else:
            buffer.div_(state.group.size())
            work.complete(None)

    summed.get_future().add_done_callback(done)


def _convert(source: torch.Tensor, target: torch.Tensor, scale: float) -> None:
    """Copies into another type, times a power of two."""
    if scale == 1.0:
        target.copy_(source)
    else:
        target.copy_(source.to(torch.float32).mul_(scale))


def _future(work: HFReduceWork) -> Future[torch.Tensor]:
    return work.get_future().then(lambda future: future.value()[0])


#: The group that was made for all ranks, beside a default group of another backend.
_beside: "tuple[weakref.ref[dist.ProcessGroup], dist.ProcessGroup] | None" = None


def _of_all_ranks() -> "dist.ProcessGroup":
    """The default group, or one beside it: the same for all states, since one at a time talks to the sidecar."""
    global _beside
    world: Any = dist.group.WORLD
    if backend_of(world) is not None:
        return world
    if _beside is None or _beside[0]() is not world:
        made: Any = dist.new_group(backend="hfreduce")
        _beside = weakref.ref(world), made
    return _beside[1]
