"""What each rank gets for itself: gather, scatter, all-to-all, and messages between two ranks.

Owns the translation of these calls of c10d for the process group, whose other half is in `group`. Messages are not
waited for in the order of the calls, as collectives are: who waits for one completes it.
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
from .errors import HFReduceError
from .options import given, root_of
from .tensors import as_bytes, fill, flat, moved, receive
from .work import HFReduceWork

if TYPE_CHECKING:
    from ._native import Client, Ticket

#: Tags are not negative for c10d; the sidecar takes 64 bits.
_TAG_BITS = (1 << 64) - 1


class Exchange:
    """These calls of a process group."""

    #: Messages that nobody has waited for yet: the sidecar takes no more than some dozens at a time.
    _posted: list[MessageWork]

    def gather(
        self,
        output_tensors: Sequence[Sequence[torch.Tensor]],
        input_tensors: Any,
        opts: Any = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """Copies the tensors of all ranks to the root, in rank order."""
        inputs = flat(input_tensors)
        target = root_of(opts, root)
        here = target == self.rank()
        outputs = flat(output_tensors) if here else []
        fits = len(inputs) == 1 and (not here or len(outputs) == self.size())
        alike = all((one.dtype, one.numel()) == _shape(inputs[0]) for one in outputs)
        if not fits or not alike or not self._ready([*inputs, *outputs]):
            if opts is None:
                opts = dist.GatherOptions()
                opts.rootRank = target
            return self._over_gloo("gather", [list(one) for one in output_tensors], inputs, opts)
        gathered = None
        if here:
            gathered = torch.empty((self.size(), inputs[0].numel()), dtype=inputs[0].dtype)

        def spread() -> None:
            for part, output in zip(gathered if here else (), outputs):
                fill(output, part)

        call = (moved(inputs[0]), "sum", target)
        return self._each("gather", inputs, [call], [gathered], outputs or inputs, spread)

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """Copies each of the root's tensors to one rank, in rank order."""
        outputs = flat(output_tensors)
        target = root_of(opts, root)
        here = target == self.rank()
        inputs = flat(input_tensors) if here else []
        fits = len(outputs) == 1 and (not here or len(inputs) == self.size())
        alike = all((one.dtype, one.numel()) == _shape(outputs[0]) for one in inputs)
        if not fits or not alike or not self._ready([*inputs, *outputs]):
            if opts is None:
                opts = dist.ScatterOptions()
                opts.rootRank = target
            return self._over_gloo("scatter", outputs, [list(one) for one in input_tensors], opts)
        whole = torch.cat([one.detach().reshape(-1) for one in inputs]) if here else None
        call = (moved(outputs[0]), "sum", target)
        return self._each("scatter", [whole], [call], outputs)

    def gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Copies the tensors of all ranks into one tensor of the root, in rank order."""
        here = root_of(opts, None) == self.rank()
        if here and output.numel() != input.numel() * self.size():
            raise ValueError(
                f"failed to gather: the output has {output.numel()} elements, {self.size()} ranks bring "
                f"{input.numel()} each"
            )
        outputs = list(output.view(-1).split(max(input.numel(), 1))) if here else []
        return self.gather([outputs] if here else [], [input.reshape(-1)], opts)

    gather_into_tensor = gather_single

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """What newer versions of PyTorch call `alltoall_base`."""
        return self.alltoall_base(output, input, output_split_sizes, input_split_sizes, opts)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """Divides `input` along its first dimension and copies a part to each rank; theirs come into `output`."""
        world = self.size()
        sizes = (_split(input, input_split_sizes, world), _split(output, output_split_sizes, world))
        fits = output.dtype == input.dtype and all(len(one) == world for one in sizes)
        if not fits or not self._ready([output, input]):
            return self._over_gloo(
                "alltoall_base",
                output,
                input,
                list(output_split_sizes),
                list(input_split_sizes),
                *given(opts),
            )
        return self._exchange(input, output, *sizes, results=[output])

    def alltoall(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Copies a tensor to each rank; theirs come into `output_tensors`."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        fits = len(outputs) == len(inputs) == self.size()
        alike = len({one.dtype for one in (*outputs, *inputs)}) == 1
        if not fits or not alike or not self._ready([*outputs, *inputs]):
            return self._over_gloo("alltoall", outputs, inputs, *given(opts))
        whole = torch.cat([one.detach().reshape(-1) for one in inputs])
        sizes = ([one.numel() for one in inputs], [one.numel() for one in outputs])
        result = torch.empty(sum(sizes[1]), dtype=whole.dtype)

        def spread() -> None:
            for part, output in zip(result.split(sizes[1]), outputs):
                fill(output, part)

        return self._exchange(whole, result, *sizes, results=outputs, after=spread)

    def _exchange(
        self,
        input: torch.Tensor,
        output: torch.Tensor,
        send: list[int],
        receive: list[int],
        results: list[torch.Tensor],
        after: Callable[[], None] | None = None,
    ) -> dist.Work:
        dtype, count, name = moved(input)
        # Unknown types are bytes.
        each = count // input.numel() if input.numel() > 0 else moved(input.new_empty(1))[1]
        name = name if name == 0 else naming.of_bytes(input.new_empty(0))
        splits = ([one * each for one in send], [one * each for one in receive])
        calls = [((dtype, 0, name), "sum", 0)]
        return self._each("alltoall", [input], calls, [output], results, after, splits=splits)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> dist.Work:
        """Sends a tensor to a rank, which receives it under the same tag."""
        tensors = flat(tensors)
        if len(tensors) != 1 or not self._ready(tensors):
            return self._gloo.send(tensors, dstRank, tag)
        return self._post("send", tensors[0], dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> dist.Work:
        """Receives what a rank sends under a tag: the first message that was not received yet."""
        tensors = flat(tensors)
        if len(tensors) != 1 or not self._ready(tensors):
            return self._gloo.recv(tensors, srcRank, tag)
        return self._post("recv", tensors[0], srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        """Is gloo's where there is no sidecar."""
        if not self._ready(flat(tensors)):
            return self._gloo.recv_anysource(flat(tensors), tag)
        raise HFReduceError(
            "failed to receive from any rank: hfreduce asks the rank that sends, as NCCL does. Say which one it is "
            "(`src=`), or make a group for such messages: `new_group(backend=\"gloo\")`"
        )

    def _post(self, kind: str, tensor: torch.Tensor, other: int, tag: int) -> dist.Work:
        dtype, count, _ = moved(tensor)
        sends = kind == "send"
        data = as_bytes(tensor.contiguous()) if sends and count > 0 else None
        self._posted[:] = [one for one in self._posted if not one.is_completed()]
        with self._turn():
            ticket = self._client.call(
                kind,
                dtype,
                count,
                data,
                root=other,
                tag=tag & _TAG_BITS,
                group=self._lane,
                timeout=self._timeout,
            )
        work = MessageWork(kind, tensor, self._client, ticket, None if sends else tensor, self._timeout)
        self._posted.append(work)
        return work


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


def _shape(tensor: torch.Tensor) -> tuple[torch.dtype, int]:
    return tensor.dtype, tensor.numel()


def _split(tensor: torch.Tensor, sizes: Sequence[int], world: int) -> list[int]:
    """Elements of each part of a tensor: as said, or equal ones. Nothing where that does not divide it."""
    rows = tensor.size(0) if tensor.dim() > 0 else 0
    row = tensor.numel() // rows if rows > 0 else 1
    if sizes:
        return [one * row for one in sizes] if sum(sizes) == rows else []
    return [rows // world * row] * world if rows % world == 0 else []
