"""Tensors as the sidecar sees them: their element types in its words, their bytes, and where results are copied to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy
import torch

from . import naming
from .call import Call

if TYPE_CHECKING:
    from ._native import Client, Ticket

#: Element types that the sidecar adds up, in its words.
DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
}
#: Element types that NumPy knows too.
_NUMPY = {
    torch.float64, torch.float32, torch.float16, torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool,
}  # fmt: skip
Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def receive(
    client: Client,
    ticket: Ticket,
    output: torch.Tensor | None,
    timeout: float,
    part: int | None,
) -> int:
    """Waits for an operation and copies its result, or that part of it which is as large as `output`. How many ranks
    took part."""
    if output is None or output.numel() == 0:
        return client.wait(ticket, None, timeout=timeout)
    offset = None if part is None else part * output.numel() * output.element_size()
    if output.is_contiguous():
        return client.wait(ticket, as_bytes(output), offset=offset, timeout=timeout)
    dense = torch.empty(output.shape, dtype=output.dtype)
    ranks = client.wait(ticket, as_bytes(dense), offset=offset, timeout=timeout)
    output.detach().copy_(dense)
    return ranks


def fill(output: torch.Tensor, content: torch.Tensor) -> None:
    """Copies the elements of a contiguous tensor, whatever mode the caller of the collective was in."""
    if output.numel() == 0:
        return
    if output.is_contiguous():
        as_bytes(output)[:] = as_bytes(content)
    else:
        output.detach().copy_(content.view(output.shape))


def as_bytes(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor, as a buffer of bytes. As few steps of PyTorch as will do: each takes a
    microsecond and lets another thread have the interpreter."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype in _NUMPY:
        array = tensor.numpy()
        return (array if array.ndim == 1 else array.reshape(-1)).view(numpy.uint8)
    # A single element may have any stride.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def fits(part: torch.Tensor, wholes: list[torch.Tensor], size: int) -> bool:
    """Whether each of `wholes` has a part like this for each rank."""
    return all(one.dtype == part.dtype and one.numel() == part.numel() * size for one in wholes)


def moved(kind: str, tensor: torch.Tensor, root: int = 0) -> Call:
    """The call of what is moved and not added up: unknown types are bytes, named after the type."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is not None:
        return Call(kind, dtype, tensor.numel(), root=root)
    nbytes = tensor.numel() * tensor.element_size()
    return Call(kind, "u8", nbytes, root=root, tag=naming.of_bytes(tensor))


def flat(tensors: Any) -> list[torch.Tensor]:
    """One tensor, or one or several in a list or in lists."""
    if not isinstance(tensors, (list, tuple)):
        return [tensors]
    if len(tensors) == 1 and not isinstance(tensors[0], (list, tuple)):
        return [tensors[0]]  # What nearly all calls give.
    return [one for each in tensors for one in flat(each)]
