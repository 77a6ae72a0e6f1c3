"""What all ranks agree on: small values exchanged over the default process group.

Owns the exchange. Without a process group a process agrees with itself. JSON and not pickle crosses the
network, so nobody's bytes are executed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

#: Bytes of all ranks together that are added up at once: bounds what each rank holds for the others.
_SUM_BYTES = 16 << 20


def standing() -> tuple[int, int]:
    """This process's rank and the number of ranks."""
    if _together():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def largest(values: Sequence[int]) -> list[int]:
    """The largest of all ranks' values, place by place. One collective."""
    if not _together():
        return list(values)
    tensor = torch.tensor(list(values), dtype=torch.int32, device=_device())
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def first_left() -> int:
    """The lowest rank that is left: what has to be done once is its to do. One collective."""
    rank, _ = standing()
    return -largest([-rank])[0]


def from_first(value: Any, first: int = 0) -> Any:
    """The value of rank `first`, on every rank; the others' is not looked at."""
    if not _together():
        return value
    payload = _encode(value) if dist.get_rank() == first else None
    length = torch.tensor([0 if payload is None else payload.numel()], device=_device())
    dist.broadcast(length, src=first)
    if payload is None:
        payload = torch.empty(int(length.item()), dtype=torch.uint8, device=_device())
    dist.broadcast(payload, src=first)
    return _decode(payload)


def to_first(value: Any, first: int = 0) -> list[Any] | None:
    """All ranks' values in rank order, on rank `first`, the lowest; none on the others. Those of lost ranks are left out.

    Sums, in which each rank has a place of its own: unlike a gathering they are carried over a loss.
    """
    rank, world_size = standing()
    if world_size == 1:
        return [value]
    # The first's own, which may be long, is here already.
    payload = (
        _encode(value) if rank != first else torch.empty(0, dtype=torch.uint8, device=_device())
    )
    lengths = torch.zeros(world_size, dtype=torch.int64, device=_device())
    lengths[rank] = payload.numel()
    dist.all_reduce(lengths, op=dist.ReduceOp.MAX)
    ends = lengths.cumsum(0).tolist()
    begin = ends[rank] - payload.numel()
    received = []
    for start in range(0, ends[-1], _SUM_BYTES):
        end = min(start + _SUM_BYTES, ends[-1])
        part = torch.zeros(end - start, dtype=torch.uint8, device=_device())
        low, high = max(begin, start), min(begin + payload.numel(), end)
        if low < high:
            part[low - start : high - start] = payload[low - begin : high - begin]
        dist.reduce(part, dst=first, op=dist.ReduceOp.SUM)
        received.append(part)
    if rank != first:
        return None
    joined = torch.cat(received) if received else payload
    others = [joined[end - length : end] for length, end in zip(lengths.tolist(), ends)]
    # A rank that was lost has left its place empty.
    return [value, *(_decode(other) for other in others if other.any())]


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _encode(value: Any) -> torch.Tensor:
    text = bytearray(json.dumps(value, separators=(",", ":")).encode())
    return torch.frombuffer(text, dtype=torch.uint8).to(_device())


def _decode(payload: torch.Tensor) -> Any:
    return json.loads(payload.cpu().numpy().tobytes())
