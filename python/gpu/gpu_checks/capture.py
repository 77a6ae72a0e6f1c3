"""A collective while a CUDA graph is captured is a clear error, on the thread that captures and on another, and the next works."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist

from . import device, gang
from .findings import Findings

_TIMEOUT_SECONDS = 15.0
_CASES = ("the thread that captures", "another thread")


def check(found: Findings) -> None:
    """Two ranks do the same."""
    # One rank's call may fail where the other's works: then that one waits so long.
    seen_by_rank = gang.run(__name__, "call_in_captures", {}, timeout_seconds=_TIMEOUT_SECONDS)
    for rank, seen in enumerate(seen_by_rank):
        for case in _CASES:
            one = seen[case]
            found.figure(f"rank_{rank}_{case.replace(' ', '_')}", one)
            # Beside another thread's capture a call may also just work.
            worked = case == _CASES[1] and one["error"] == ""
            found.holds(
                f"on {case}: the error says that a graph is captured (rank {rank})",
                worked or "captur" in one["error"],
                one["error"] or "no error, and a replay would not call the sidecar",
            )
            found.holds(
                f"after {case}: the next call works (rank {rank})", one["next"] == "", one["next"]
            )


def call_in_captures() -> dict[str, Any]:
    """In each rank: the error of a call in a capture, and of the next one; empty for none."""
    tensor = torch.ones(1 << 20, device=device.DEVICE)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return {
        _CASES[0]: {"error": _error(_on_this_thread), "next": _error(_reduce)},
        _CASES[1]: {"error": _error(_beside_a_capture), "next": _error(_reduce)},
    }


def _error(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _reduce() -> None:
    """A size of its own: memory is made and registered."""
    tensor = torch.full((3_000_017,), float(dist.get_rank() + 1), device=device.DEVICE)
    dist.all_reduce(tensor)
    size = dist.get_world_size()
    assert bool(tensor.eq(size * (size + 1) / 2).all()), "the sum is wrong"


def _on_this_thread() -> None:
    tensor = torch.ones(1 << 20, device=device.DEVICE)
    torch.cuda.synchronize()
    failed: Exception | None = None
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                dist.all_reduce(tensor)
            except Exception as error:
                failed = error
            tensor.add_(1)
    finally:
        # What was raised in the capture says more than that the capture has ended by it.
        if failed is not None:
            raise failed


def _beside_a_capture() -> None:
    captures, called = threading.Event(), threading.Event()
    tensor = torch.full((5_000_011,), float(dist.get_rank() + 1), device=device.DEVICE)
    torch.cuda.synchronize()

    def capture() -> None:
        other = torch.ones(8, device=device.DEVICE)
        torch.cuda.synchronize()
        try:
            # In the mode by default, calls of any thread that a capture forbids are errors.
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                other.add_(1)
                captures.set()
                called.wait(2 * _TIMEOUT_SECONDS)
        except RuntimeError:
            captures.set()  # What the other thread called has ended it, which is for that thread to report.

    thread = threading.Thread(target=capture)
    thread.start()
    captures.wait(_TIMEOUT_SECONDS)
    try:
        dist.all_reduce(tensor)
    finally:
        called.set()
        thread.join()
