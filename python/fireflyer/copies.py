"""What is copied to all: broadcast and allgather.

Owns the translation of these calls of c10d, for a group's communicator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .communicator import Communicator
from .options import given
from .tensors import Tensors, fits, flat, moved

#: c10d's methods.
__all__ = [
    "_allgather_base", "all_gather_single", "all_gather_single_coalesced", "allgather",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "broadcast",
]  # fmt: skip


def broadcast(
    comm: Communicator, tensors: Tensors, opts: Any = None, *, root: int | None = None
) -> dist.Work:
    """Copies the root's tensor to all ranks."""
    tensors = flat(tensors)
    if isinstance(opts, int):
        opts, root = None, opts
    target = opts.rootRank if opts is not None else int(root or 0)
    here = target == comm.rank
    if len(tensors) == 1 and tensors[0].is_cuda:
        sides = (tensors, []) if here else ([], tensors)
        return comm.on_gpu("broadcast", moved("broadcast", tensors[0], target), *sides, tensors)
    if not comm.takes(tensors) or len(tensors) != 1:
        if opts is None:
            opts = dist.BroadcastOptions()
            opts.rootRank = target
        return comm.over_gloo("broadcast", tensors, opts)
    call = moved("broadcast", tensors[0], target)
    return comm.call([call], tensors if here else [None], [None] if here else tensors)


def allgather(
    comm: Communicator,
    output_tensors: Sequence[Sequence[torch.Tensor]],
    input_tensors: Tensors,
    opts: Any = None,
) -> dist.Work:
    """Copies the tensors of all ranks to all ranks, in rank order."""
    inputs = flat(input_tensors)
    outputs = (
        [flat(output_tensors)] if isinstance(output_tensors[0], torch.Tensor) else output_tensors
    )
    whole = len(inputs) == len(outputs) == 1 and len(outputs[0]) == comm.size
    whole = whole and fits(inputs[0], list(outputs[0]), 1)
    if whole and inputs[0].is_cuda:
        call = moved("allgather", inputs[0])
        return comm.on_gpu("allgather", call, inputs, list(outputs[0]), list(outputs[0]))
    if not whole or not comm.takes([*inputs, *outputs[0]]):
        return comm.over_gloo("allgather", [list(one) for one in outputs], inputs, *given(opts))
    gathered = torch.empty((comm.size, inputs[0].numel()), dtype=inputs[0].dtype)

    def spread() -> None:
        for part, output in zip(gathered, outputs[0]):
            output.copy_(part.view(output.shape))

    call = moved("allgather", inputs[0])
    return comm.call([call], inputs, [gathered], list(outputs[0]), spread)


def _allgather_base(
    comm: Communicator, output: torch.Tensor, input: torch.Tensor, opts: Any = None
) -> dist.Work:
    """Copies the tensors of all ranks into one tensor on all ranks."""
    alike = fits(input, [output], comm.size)
    if alike and input.is_cuda:
        return comm.on_gpu("allgather", moved("allgather", input), [input], [output], [output])
    if not alike or not comm.takes([output, input]):
        return comm.over_gloo("_allgather_base", output, input, *given(opts))
    return comm.call([moved("allgather", input)], [input], [output])


def allgather_into_tensor_coalesced(
    comm: Communicator,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    opts: Any = None,
) -> dist.Work:
    """Copies each of the tensors of all ranks into one tensor on all ranks."""
    outputs, inputs = list(outputs), list(inputs)
    alike = len(outputs) == len(inputs) > 0 and all(
        fits(one, [output], comm.size) for output, one in zip(outputs, inputs)
    )
    if not alike or not comm.takes([*outputs, *inputs]):
        return comm.over_gloo("allgather_into_tensor_coalesced", outputs, inputs, *given(opts))
    return comm.call([moved("allgather", one) for one in inputs], inputs, outputs)


# What newer versions of PyTorch call them.
all_gather_single = _allgather_base
all_gather_single_coalesced = allgather_into_tensor_coalesced


def allgather_coalesced(comm: Communicator, *arguments: Any, **named: Any) -> dist.Work:
    """Only gloo does it."""
    return comm.over_gloo("allgather_coalesced", *arguments, **named)
