"""Gradients that are reduced where they lie: they are made in memory shared with the sidecar and read where it wrote
their average, so nothing is copied in between.

Owns when buckets are called and what ``.grad`` is at each moment: between `Arena.zero_grad` and the backward pass, the
place in the shared memory that autograd adds to; while its bucket is under way, None; after `Arena.wait`, the average.
Buckets are called in one order on all ranks, the order of the backward pass, whatever order gradients come in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import average, naming, process
from .buckets import Bucket, Slot, layout, plan
from .call import Call
from .collective_error import HFReduceError
from .group import backend_of
from .shared import Memory, of_result
from .tensors import DTYPES

if TYPE_CHECKING:
    from ._native import Ticket
    from .communicator import Communicator

_log = logging.getLogger(__name__)

#: Bytes of a bucket: large enough that what a call costs is nothing beside it, small enough that the first is under way
#: while most of the backward pass is still to come. The paper's load has tensors of 4 MiB.
BUCKET_BYTES = 4 << 20

#: Steps for which results are copied after gradients were written to, until one step shows whether they still are. Twice as
#: many each time that they were, up to the most.
COPIED_STEPS, MOST_COPIED_STEPS = 32, 4096


class Arena:
    """Averages the gradients of a module over all ranks, in place of DistributedDataParallel::

        arena = fireflyer.Arena(model)
        for batch in loader:
            arena.zero_grad()              # in place of optimizer.zero_grad()
            loss(model, batch).backward()  # buckets are under way while it runs
            arena.wait()                   # .grad is the average
            optimizer.step()

    Making one is collective: parameters and buffers get the values of rank 0. All ranks call `wait` equally often; it
    averages every parameter that requires a gradient, with zeros from ranks that have not used it.

    A gradient is this process's own until `zero_grad` or the next backward pass. Writing to it is allowed and costs a copy
    of each page that is written. The arena notices, and copies results for some steps, which is cheaper than that. To clip,
    use its own `clip_grad_norm_`, which copies nothing.

    Over a group without a sidecar the same happens by the group's own allreduce.

    Args:
        module: the model. Its parameters that require a gradient now are averaged, each with its own type and device.
        group: the ranks that average; all of them, if none is given.
        bucket_bytes: how many bytes of gradients are reduced at once. A larger gradient is alone in its bucket.
        views: whether ``.grad`` may lie where the sidecar wrote it. With False results are copied from there in each step.

    Raises:
        HFReduceError: ranks have different models, or the sidecar has not enough memory for the gradients.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        views: bool = True,
    ) -> None:
        self._group = dist.group.WORLD if group is None else group
        assert self._group is not None
        self._process = process.own()
        self._copied_in = 0
        self._synchronizes = True
        self._asked_for_views = self._views = views
        self._copied_steps, self._steps_left = COPIED_STEPS, 0
        buckets = plan(module.parameters(), bucket_bytes)
        name = layout(buckets)
        _make_alike(module, self._group)
        ours = backend_of(self._group, torch.device("cpu"))
        comm: Communicator | None = None if ours is None else ours.communicator
        self._client = client = None if comm is None else comm.client
        self._written = client.results_written if client is not None else 0
        shared = [comm is not None and comm.averages(one.dtype, one.device) for one in buckets]
        memory, offset = None, 0
        if comm is not None and client is not None:
            nbytes = sum(bucket.nbytes for bucket, is_shared in zip(buckets, shared) if is_shared)
            memory = Memory(client, nbytes, comm.timeout)
        self._lanes: list[_Lane] = []
        for index, bucket in enumerate(buckets):
            if comm is not None and memory is not None and shared[index]:
                tag = naming.of_bucket(index, name)
                self._lanes.append(_SidecarLane(bucket, comm, memory, offset, tag))
                offset += bucket.nbytes
            else:
                self._lanes.append(_GroupLane(bucket, self._group))
        self._next = 0
        me = weakref.ref(self)
        self._hooks = [
            slot.parameter.register_post_accumulate_grad_hook(_Ready(me, index, place))
            for index, lane in enumerate(self._lanes)
            for place, slot in enumerate(lane.bucket.slots)
        ]

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """Bytes of gradients that were copied so far: into the shared memory, because ``.grad`` was elsewhere, and out
        of it, because results are not handed out as they lie."""
        return self._copied_in, sum(lane.copied_out for lane in self._lanes)

    def zero_grad(self) -> None:
        """Sets all gradients to zeros in the shared memory. What ``.grad`` was is not held any more."""
        self._own_process()
        self._check_idle("zero_grad")
        for lane in self._lanes:
            lane.flat.zero_()
            for slot, gradient in zip(lane.bucket.slots, lane.gradients):
                slot.parameter.grad = gradient

    def wait(self) -> None:
        """Waits until every ``.grad`` is the average over all ranks. Collective.

        An `HFReduceError` when a bucket failed; then no gradient is to be used.
        """
        self._own_process()
        while self._next < len(self._lanes):
            self._collect_rest(self._lanes[self._next])
            self._call()
        first: BaseException | None = None
        for lane in self._lanes:
            try:
                flat = lane.finish(self._views)
            except HFReduceError as error:
                first = first or error
            else:
                for slot in lane.bucket.slots:
                    slot.parameter.grad = slot.of(flat)
            lane.reset()
        self._next = 0
        if first is not None:
            raise first

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales all gradients down so that their norm is at most `max_norm`, as `torch.nn.utils.clip_grad_norm_` does. Where
        it is already, nothing is written. Not collective: averages are the same on all ranks. Call it after `wait`.

        Args:
            max_norm: the largest norm of all gradients together.
            norm_type: the p of the p-norm; ``inf`` is allowed.

        Returns:
            The norm before, as a tensor without dimensions.
        """
        self._own_process()
        self._check_idle("clip_grad_norm_")
        places = [
            (slot.parameter, mine)
            for lane in self._lanes
            for slot, mine in zip(lane.bucket.slots, lane.gradients)
            if slot.parameter.grad is not None
        ]
        if not places:
            return torch.tensor(0.0)
        device = places[0][1].device
        norms = [
            torch.linalg.vector_norm(parameter.grad, norm_type).to(device, torch.float32)
            for parameter, _ in places
        ]
        norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        factor = max_norm / (norm.item() + 1e-6)
        # Also where it is not a number.
        if not factor >= 1.0:
            for parameter, mine in places:
                # Where the sidecar wrote is not written to: scaling reads there and writes here.
                parameter.grad = torch.mul(parameter.grad, factor, out=mine)
        return norm

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the gradients and call nothing: all but the last of several micro-batches."""
        self._check_idle("no_sync")
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def close(self) -> None:
        """Leaves the module alone from here on."""
        for hook in self._hooks:
            hook.remove()

    def _ready(self, index: int, place: int) -> None:
        """Autograd has added to a gradient."""
        if not self._synchronizes:
            return
        self._own_process()
        lane = self._lanes[index]
        slot = lane.bucket.slots[place]
        if lane.filled[place]:
            raise HFReduceError(
                "failed to add to a gradient that is under way: a second backward pass before wait(); call wait() "
                "after each, or run all but the last of a step inside no_sync()"
            )
        self._collect(lane, place, slot)
        if lane.is_full:
            self._call()

    def _collect(self, lane: _Lane, place: int, slot: Slot) -> None:
        """Brings the gradient of a parameter to its place in the bucket, if it is not there."""
        gradient, mine = slot.parameter.grad, lane.gradients[place]
        if gradient is None:
            mine.zero_()
        elif gradient is not mine:
            mine.copy_(gradient)
            self._copied_in += mine.numel() * mine.element_size()
        # Nobody reads or adds to it before it is the average.
        slot.parameter.grad = None
        lane.fill(place)

    def _collect_rest(self, lane: _Lane) -> None:
        for place, slot in enumerate(lane.bucket.slots):
            if not lane.filled[place]:
                self._collect(lane, place, slot)

    def _call(self) -> None:
        """Calls the buckets whose turn it is."""
        if self._next == 0:
            self._look_for_writers()
        while self._next < len(self._lanes) and self._lanes[self._next].is_full:
            self._lanes[self._next].start()
            self._next += 1

    def _look_for_writers(self) -> None:
        if self._client is None or not self._asked_for_views:
            return
        if not self._views:
            self._steps_left -= 1
            self._views = self._steps_left == 0
            return
        written, self._written = self._written, self._client.results_written
        if self._written > written:
            self._views, self._steps_left = False, self._copied_steps
            _log.info(
                "gradients are written to after wait(): they are copied for the next %d steps", self._copied_steps
            )  # fmt: skip
            self._copied_steps = min(2 * self._copied_steps, MOST_COPIED_STEPS)

    def _check_idle(self, what: str) -> None:
        if self._next or any(any(lane.filled) for lane in self._lanes):
            raise HFReduceError(
                f"failed to call {what}: gradients are under way, call wait() first"
            )

    def _own_process(self) -> None:
        if process.own() != self._process:
            raise HFReduceError(
                f"failed to use an Arena in process {os.getpid()}: it belongs to process {self._process}; use it "
                "outside of DataLoader workers and forked children"
            )


class _Ready:
    """What autograd calls. It keeps nothing: a parameter that keeps itself is never collected."""

    def __init__(self, arena: weakref.ref[Arena], lane: int, place: int) -> None:
        self._arena, self._lane, self._place = arena, lane, place

    def __call__(self, _: torch.Tensor) -> None:
        arena = self._arena()
        if arena is not None:
            arena._ready(self._lane, self._place)


class _Lane:
    """A bucket, the memory where its gradients are made, and the way it is reduced."""

    def __init__(self, bucket: Bucket, flat: torch.Tensor) -> None:
        self.bucket = bucket
        self.flat = flat.zero_()
        self.gradients = [slot.of(flat) for slot in bucket.slots]
        self.copied_out = 0
        self.reset()

    def reset(self) -> None:
        """For the next step."""
        self.filled = [False] * len(self.bucket.slots)
        self._missing = len(self.filled)

    def fill(self, place: int) -> None:
        """A gradient is in its place."""
        self.filled[place] = True
        self._missing -= 1

    @property
    def is_full(self) -> bool:
        """Whether all of them are."""
        return self._missing == 0

    def start(self) -> None:
        """Calls the reduction."""
        raise NotImplementedError

    def finish(self, views: bool) -> torch.Tensor:
        """Waits for it; the memory where the averages lie, which are somebody's own from here on if `views`."""
        raise NotImplementedError


class _SidecarLane(_Lane):
    """Over the node's sidecar."""

    def __init__(
        self, bucket: Bucket, comm: Communicator, memory: Memory, offset: int, tag: int
    ) -> None:
        super().__init__(bucket, memory.tensor(offset, bucket.count, bucket.dtype))
        self._comm, self._arena, self._offset = comm, memory.arena, offset
        dtype, numerics = DTYPES[bucket.dtype], comm.numerics
        self._call = Call("allreduce", dtype, bucket.count, "avg", tag=tag, numerics=numerics)
        self._ticket: Ticket | None = None

    def start(self) -> None:
        self._ticket = self._comm.submit(self._call, self._arena, self._offset)

    def finish(self, views: bool) -> torch.Tensor:
        ticket, self._ticket = self._ticket, None
        client, timeout = self._comm.client, self._comm.timeout
        assert client is not None and ticket is not None, "what `start` has called"
        try:
            if views:
                return of_result(client.take(ticket, timeout=timeout), self.bucket.dtype)
            target = self.flat.view(torch.uint8).numpy()
            client.wait(ticket, target, timeout=timeout)
        except HFReduceError as error:
            raise HFReduceError(naming.explain(str(error))) from None
        self.copied_out += self.bucket.nbytes
        return self.flat


class _GroupLane(_Lane):
    """By the group's own allreduce, in place."""

    def __init__(self, bucket: Bucket, group: Any) -> None:
        flat = torch.empty(bucket.count, dtype=bucket.dtype, device=bucket.device)
        super().__init__(bucket, flat)
        self._group = group
        self._work: dist.Work | None = None
        self._op, self._divisor = average.operation(group, flat)

    def start(self) -> None:
        self._work = dist.all_reduce(self.flat, self._op, group=self._group, async_op=True)

    def finish(self, views: bool) -> torch.Tensor:
        work, self._work = self._work, None
        if work is not None:
            work.wait()
        return self.flat if self._divisor == 1 else self.flat.div_(self._divisor)


def _make_alike(module: torch.nn.Module, group: dist.ProcessGroup) -> None:
    """All ranks get what rank 0 of the group has."""
    root = dist.get_global_rank(group, 0)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=root, group=group)
