"""The GPU as PyTorch has it, or the CPU in its place while the checks' code is rehearsed, where streams do nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from . import kit

_REHEARSES = kit.current().rehearses
#: Where tensors of the checks lie. The driver counts the GPUs that CUDA_VISIBLE_DEVICES names.
DEVICE = torch.device("cpu") if _REHEARSES else torch.device("cuda", 0)
#: So many cycles of a GPU's clock are a second, about.
_CYCLES_A_SECOND = 1_700_000_000


def use() -> None:
    """Makes the GPU the current one of this process."""
    torch.set_num_threads(1)
    if not _REHEARSES:
        torch.cuda.set_device(DEVICE)


def stream() -> Any:
    """A stream that does not wait for the default one."""
    return _NoStream() if _REHEARSES else torch.cuda.Stream(DEVICE)


def default_stream() -> Any:
    """The stream that most scripts run on."""
    return _NoStream() if _REHEARSES else torch.cuda.default_stream(DEVICE)


def on(stream: Any) -> Any:
    """A context in which `stream` is the current one."""
    return contextlib.nullcontext() if _REHEARSES else torch.cuda.stream(stream)


def sleep(seconds: float) -> None:
    """Keeps the current stream busy for about so long."""
    if not _REHEARSES:
        torch.cuda._sleep(int(seconds * _CYCLES_A_SECOND))


def synchronize() -> None:
    """Waits for all that the GPU was given."""
    if not _REHEARSES:
        torch.cuda.synchronize(DEVICE)


def free_bytes() -> int:
    """Memory of the GPU that nobody uses."""
    return 0 if _REHEARSES else torch.cuda.mem_get_info(DEVICE)[0]


def used_bytes() -> int:
    """Memory of the GPU that is in use, by whomever."""
    if _REHEARSES:
        return 0
    free, total = torch.cuda.mem_get_info(DEVICE)
    return total - free


class _NoStream:
    """In place of a stream."""

    def wait_stream(self, other: object) -> None:
        """There is nothing to wait for."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""
