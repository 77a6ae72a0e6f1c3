"""What is added up: allreduce, reduce, and reduce_scatter.

Owns the translation of these calls of c10d, for a group's communicator.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import naming
from .call import Call
from .communicator import Communicator
from .options import allreduce_options, factor_of, given, reduction_of
from .tensors import DTYPES, Tensors, fits, flat

#: What a reduction of booleans is of bytes that are 0 or 1.
_OF_BOOLEANS = {
    "sum": "max", "max": "max", "bor": "max",
    "product": "min", "min": "min", "band": "min",
    "bxor": "bxor",
}  # fmt: skip

#: c10d's methods.
__all__ = [
    "_reduce_scatter_base", "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
]  # fmt: skip


def allreduce(
    comm: Communicator, tensors: Tensors, opts: Any = None, *, op: Any = None
) -> dist.Work:
    """Reduces the tensors of all ranks, in place on all of them."""
    tensors = flat(tensors)
    call = _call(comm, "allreduce", tensors, opts if op is None else op)
    if len(tensors) == 1 and tensors[0].is_cuda:
        return comm.on_gpu("allreduce", call, tensors, tensors, tensors)
    if not comm.takes(tensors) or call is None or len(tensors) != 1:
        return comm.over_gloo("allreduce", tensors, allreduce_options(opts, op))
    return comm.call([call], tensors, tensors)


def allreduce_coalesced(
    comm: Communicator, tensors: Sequence[torch.Tensor], opts: Any = None
) -> dist.Work:
    """Reduces each of the tensors, in place on all ranks."""
    tensors = list(tensors)
    calls = _calls(comm, "allreduce", tensors, opts)
    if not comm.takes(tensors) or not calls:
        return comm.over_gloo("allreduce_coalesced", tensors, *given(opts))
    return comm.call(calls, tensors, tensors)


def reduce(
    comm: Communicator,
    tensors: Tensors,
    opts: Any = None,
    *,
    root: int | None = None,
    op: Any = None,
) -> dist.Work:
    """Reduces the tensors of all ranks, in place on the root; the others keep what they have."""
    tensors = flat(tensors)
    if isinstance(opts, int):
        opts, root = None, opts
    target = opts.rootRank if opts is not None else int(root or 0)
    call = _call(comm, "reduce", tensors, opts if op is None else op, root=target)
    here = target == comm.rank
    if len(tensors) == 1 and tensors[0].is_cuda:
        return comm.on_gpu("reduce", call, tensors, tensors if here else [], tensors)
    if not comm.takes(tensors) or call is None or len(tensors) != 1:
        if opts is None:
            opts = dist.ReduceOptions()
            opts.rootRank = target
            opts.reduceOp = dist.ReduceOp.SUM if op is None else op
        return comm.over_gloo("reduce", tensors, opts)
    return comm.call([call], tensors, tensors if here else [None])


def _reduce_scatter_base(
    comm: Communicator, output: torch.Tensor, input: torch.Tensor, opts: Any = None
) -> dist.Work:
    """Reduces the tensors of all ranks and shares the result out, in rank order."""
    if input.is_cuda and fits(output, [input], comm.size):
        call = _call(comm, "reduce_scatter", [input], opts)
        return comm.on_gpu("reduce_scatter", call, [input], [output], [output])
    calls = _shares(comm, [output], [input], opts)
    if not calls:
        return comm.over_gloo("_reduce_scatter_base", output, input, *given(opts))
    return comm.call(calls, [input], [output])


def reduce_scatter_tensor_coalesced(
    comm: Communicator,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    opts: Any = None,
) -> dist.Work:
    """Reduces each of the tensors of all ranks and shares the results out, in rank order."""
    outputs, inputs = list(outputs), list(inputs)
    calls = _shares(comm, outputs, inputs, opts)
    if not calls:
        return comm.over_gloo("reduce_scatter_tensor_coalesced", outputs, inputs, *given(opts))
    return comm.call(calls, inputs, outputs)


# What newer versions of PyTorch call them.
reduce_scatter_single = _reduce_scatter_base
reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


def reduce_scatter(
    comm: Communicator,
    output_tensors: Sequence[torch.Tensor],
    input_tensors: Sequence[Sequence[torch.Tensor]],
    opts: Any = None,
) -> dist.Work:
    """Reduces the lists of tensors of all ranks; each rank gets the tensor of its place in the list."""
    outputs, lists = list(output_tensors), [list(one) for one in input_tensors]
    whole = len(outputs) == len(lists) == 1 and len(lists[0]) == comm.size
    whole = whole and fits(outputs[0], lists[0], 1)
    if whole and outputs[0].is_cuda:
        call = _call(comm, "reduce_scatter", lists[0], opts)
        return comm.on_gpu("reduce_scatter", call, lists[0], outputs, outputs)
    whole = whole and comm.takes([*outputs, *lists[0]])
    joined = [torch.cat([one.detach().reshape(-1) for one in lists[0]])] if whole else []
    calls = _shares(comm, outputs, joined, opts)
    if not calls:
        return comm.over_gloo("reduce_scatter", outputs, lists, *given(opts))
    return comm.call(calls, joined, outputs)


def _shares(
    comm: Communicator, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
) -> list[Call]:
    """Calls that reduce each input and give each rank its part of it; none where the sidecar cannot."""
    fit = len(outputs) == len(inputs) and all(
        fits(output, [one], comm.size) for output, one in zip(outputs, inputs)
    )
    takes = fit and comm.takes([*outputs, *inputs])
    return _calls(comm, "reduce_scatter", inputs, opts) if takes else []


def _calls(comm: Communicator, kind: str, tensors: list[torch.Tensor], opts: Any) -> list[Call]:
    """A call for each tensor; none where the sidecar does not add up one of them."""
    calls = [_call(comm, kind, [tensor], opts) for tensor in tensors]
    known = [call for call in calls if call is not None]
    return known if len(known) == len(calls) else []


def _call(
    comm: Communicator, kind: str, tensors: list[torch.Tensor], op: Any, root: int = 0
) -> Call | None:
    """The reduction of tensors of one type; none where the sidecar does not add them up."""
    reduction = reduction_of(op)
    dtype = DTYPES.get(tensors[0].dtype) if tensors else None
    factor, tag = 1.0, 0
    if tensors and tensors[0].dtype == torch.bool:
        # The name distinguishes them from bytes.
        dtype, reduction, tag = "u8", _OF_BOOLEANS.get(reduction or ""), naming.of_bytes(tensors[0])
    if dtype is None or reduction is None or reduction == "product":
        return None
    # What the type does not have is refused by gloo, in its words.
    is_integer = dtype[0] in "iu"
    if reduction in ("avg", "premul_sum"):
        if is_integer:
            return None
        factor = factor_of(op)
        # It travels in 32 bits, which is what other types than f64 are multiplied with anyway.
        if dtype == "f64" and factor != ctypes.c_float(factor).value:
            return None
    elif reduction in ("band", "bor", "bxor") and not is_integer:
        return None
    # What nearly all calls give, without a generator.
    count = tensors[0].numel() if len(tensors) == 1 else sum(one.numel() for one in tensors)
    return Call(kind, dtype, count, reduction, factor, root, tag, comm.numerics)
