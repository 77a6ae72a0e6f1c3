"""What is added up: allreduce, reduce, and reduce_scatter.

Owns the translation of these calls of c10d for the process group, which is in `group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .options import allreduce_options, factor_of, given, reduction_of
from .tensors import DTYPES, Tensors, Words, fits, flat


class Reductions:
    """These calls of a process group."""

    def allreduce(self, tensors: Tensors, opts: Any = None, *, op: Any = None) -> dist.Work:
        """Reduces the tensors of all ranks, in place on all of them."""
        tensors = flat(tensors)
        reduction = reduction_of(opts if op is None else op)
        if len(tensors) == 1 and tensors[0].is_cuda:
            return self._on_gpu(
                "allreduce", tensors, tensors, tensors, reduction, factor=factor_of(opts if op is None else op)
            )
        words = self._words(tensors, reduction)
        if words is None or len(tensors) != 1:
            return self._over_gloo("allreduce", tensors, allreduce_options(opts, op))
        factor = 1.0
        if reduction == "premul_sum":
            factor = factor_of(opts if op is None else op)
        return self._each("allreduce", tensors, [(words, reduction, 0)], tensors, factor=factor)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduces each of the tensors, in place on all ranks."""
        tensors = list(tensors)
        reduction = reduction_of(opts)
        words = [self._words([tensor], reduction) for tensor in tensors]
        calls = [(word, reduction, 0) for word in words if word is not None]
        if len(calls) < len(tensors) or not tensors:
            return self._over_gloo("allreduce_coalesced", tensors, *given(opts))
        return self._each("allreduce", tensors, calls, tensors, factor=factor_of(opts))

    def reduce(
        self, tensors: Tensors, opts: Any = None, *, root: int | None = None, op: Any = None
    ) -> dist.Work:
        """Reduces the tensors of all ranks, in place on the root; the others keep what they have."""
        tensors = flat(tensors)
        if isinstance(opts, int):
            opts, root = None, opts
        target = opts.rootRank if opts is not None else int(root or 0)
        reduction = reduction_of(opts if op is None else op)
        if len(tensors) == 1 and tensors[0].is_cuda:
            written = tensors if target == self.rank() else []
            factor = factor_of(opts if op is None else op)
            return self._on_gpu(
                "reduce", tensors, written, tensors, reduction, factor=factor, root=target
            )
        words = self._words(tensors, reduction)
        if words is None or len(tensors) != 1:
            if opts is None:
                opts = dist.ReduceOptions()
                opts.rootRank = target
                opts.reduceOp = dist.ReduceOp.SUM if op is None else op
            return self._over_gloo("reduce", tensors, opts)
        outputs = tensors if target == self.rank() else [None]
        factor = factor_of(opts if op is None else op)
        return self._each("reduce", tensors, [(words, reduction, target)], outputs, factor=factor)

    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Reduces the tensors of all ranks and shares the result out, in rank order."""
        if input.is_cuda and fits(output, [input], self.size()):
            return self._share_on_gpu(output, [input], opts)
        if not self._shares_out([output], [input], opts):
            return self._over_gloo("_reduce_scatter_base", output, input, *given(opts))
        return self._share_out([output], [input], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """What newer versions of PyTorch call `_reduce_scatter_base`."""
        return self._reduce_scatter_base(output, input, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """What newer versions of PyTorch call `reduce_scatter_tensor_coalesced`."""
        return self.reduce_scatter_tensor_coalesced(outputs, inputs, opts)

    def reduce_scatter_tensor_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Reduces each of the tensors of all ranks and shares the results out, in rank order."""
        outputs, inputs = list(outputs), list(inputs)
        if not self._shares_out(outputs, inputs, opts):
            return self._over_gloo(
                "reduce_scatter_tensor_coalesced", outputs, inputs, *given(opts)
            )
        return self._share_out(outputs, inputs, opts)

    def reduce_scatter(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
    ) -> dist.Work:
        """Reduces the lists of tensors of all ranks; each rank gets the tensor of its place in the list."""
        outputs, lists = list(output_tensors), [list(one) for one in input_tensors]
        alike = len(outputs) == len(lists) == 1 and all(
            (one.dtype, one.numel()) == (outputs[0].dtype, outputs[0].numel()) for one in lists[0]
        )
        if alike and len(lists[0]) == self.size() and outputs[0].is_cuda:
            return self._share_on_gpu(outputs[0], lists[0], opts)
        whole = alike and len(lists[0]) == self.size() and self._ready([*outputs, *lists[0]])
        joined = [torch.cat([one.detach().reshape(-1) for one in lists[0]])] if whole else []
        if not self._shares_out(outputs, joined, opts):
            return self._over_gloo("reduce_scatter", outputs, lists, *given(opts))
        return self._share_out(outputs, joined, opts)

    def _shares_out(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> bool:
        """Whether the sidecar can reduce each input and give each rank its part."""
        alike = len(outputs) == len(inputs) > 0 and all(
            output.dtype == one.dtype and one.numel() == output.numel() * self.size()
            for output, one in zip(outputs, inputs)
        )
        reduction = reduction_of(opts)
        return (
            alike
            and self._ready([*outputs, *inputs])
            and all(self._words([one], reduction) is not None for one in inputs)
        )

    def _share_out(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> dist.Work:
        reduction = reduction_of(opts)
        words = (self._words([one], reduction) for one in inputs)
        calls = [(one, reduction, 0) for one in words if one is not None]
        return self._each("reduce_scatter", inputs, calls, outputs, factor=factor_of(opts))

    def _share_on_gpu(
        self, output: torch.Tensor, inputs: list[torch.Tensor], opts: Any
    ) -> dist.Work:
        """Reduces tensors on GPUs and shares the result out."""
        return self._on_gpu(
            "reduce_scatter", inputs, [output], [output], reduction_of(opts), factor=factor_of(opts)
        )

    def _words(self, tensors: Sequence[torch.Tensor], reduction: str | None) -> Words | None:
        """The words of a reduction, if the sidecar can do it."""
        if not self._ready(tensors) or not tensors:
            return None
        dtype = DTYPES.get(tensors[0].dtype)
        if dtype is None or reduction is None:
            return None
        # Averages and factors of integers are refused by gloo, in its words.
        if reduction in ("avg", "premul_sum") and dtype[0] in "iu":
            return None
        return dtype, tensors[0].numel(), 0
