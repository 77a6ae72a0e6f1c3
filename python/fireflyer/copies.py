"""What is copied to all: broadcast and allgather.

Owns the translation of these calls of c10d for the process group, which is in `group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .options import given
from .tensors import Tensors, flat, moved


class Copies:
    """These calls of a process group."""

    def broadcast(
        self, tensors: Tensors, opts: Any = None, *, root: int | None = None
    ) -> dist.Work:
        """Copies the root's tensor to all ranks."""
        tensors = flat(tensors)
        if isinstance(opts, int):
            opts, root = None, opts
        target = opts.rootRank if opts is not None else int(root or 0)
        if len(tensors) == 1 and tensors[0].is_cuda:
            sides = (tensors, []) if target == self.rank() else ([], tensors)
            return self._on_gpu("broadcast", *sides, tensors, root=target)
        if not self._ready(tensors) or len(tensors) != 1:
            if opts is None:
                opts = dist.BroadcastOptions()
                opts.rootRank = target
            return self._over_gloo("broadcast", tensors, opts)
        here = target == self.rank()
        words = moved(tensors[0])
        return self._each(
            "broadcast",
            tensors if here else [None],
            [(words, "sum", target)],
            [None] if here else tensors,
        )

    def allgather(
        self,
        output_tensors: Sequence[Sequence[torch.Tensor]],
        input_tensors: Tensors,
        opts: Any = None,
    ) -> dist.Work:
        """Copies the tensors of all ranks to all ranks, in rank order."""
        inputs = flat(input_tensors)
        outputs = (
            [flat(output_tensors)]
            if isinstance(output_tensors[0], torch.Tensor)
            else output_tensors
        )
        alike = len(inputs) == len(outputs) == 1 and all(
            (one.dtype, one.numel()) == (inputs[0].dtype, inputs[0].numel()) for one in outputs[0]
        )
        whole = alike and len(outputs[0]) == self.size()
        if whole and inputs[0].is_cuda:
            return self._on_gpu("allgather", inputs, list(outputs[0]), list(outputs[0]))
        if not whole or not self._ready([*inputs, *outputs[0]]):
            return self._over_gloo(
                "allgather", [list(one) for one in outputs], inputs, *given(opts)
            )
        gathered = torch.empty((self.size(), inputs[0].numel()), dtype=inputs[0].dtype)

        def spread() -> None:
            for part, output in zip(gathered, outputs[0]):
                output.copy_(part.view(output.shape))

        call = (moved(inputs[0]), "sum", 0)
        return self._each("allgather", inputs, [call], [gathered], list(outputs[0]), spread)

    def _allgather_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Copies the tensors of all ranks into one tensor on all ranks."""
        alike = output.dtype == input.dtype and output.numel() == input.numel() * self.size()
        if alike and input.is_cuda:
            return self._on_gpu("allgather", [input], [output], [output])
        if not alike or not self._ready([output, input]):
            return self._over_gloo("_allgather_base", output, input, *given(opts))
        return self._each("allgather", [input], [(moved(input), "sum", 0)], [output])

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """What newer versions of PyTorch call `_allgather_base`."""
        return self._allgather_base(output, input, opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """What newer versions of PyTorch call `allgather_into_tensor_coalesced`."""
        return self.allgather_into_tensor_coalesced(outputs, inputs, opts)

    def allgather_into_tensor_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Copies each of the tensors of all ranks into one tensor on all ranks."""
        outputs, inputs = list(outputs), list(inputs)
        alike = len(outputs) == len(inputs) > 0 and all(
            output.dtype == one.dtype and output.numel() == one.numel() * self.size()
            for output, one in zip(outputs, inputs)
        )
        if not alike or not self._ready([*outputs, *inputs]):
            return self._over_gloo(
                "allgather_into_tensor_coalesced", outputs, inputs, *given(opts)
            )
        calls = [(moved(one), "sum", 0) for one in inputs]
        return self._each("allgather", inputs, calls, outputs)
