"""The handle of an operation in flight, as PyTorch waits for it. Who brings the operation to its end is `completer`'s
business.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.futures

from . import callbacks, process
from .collective_error import HFReduceError
from .opaque import methods

if TYPE_CHECKING:
    from .completer import Completer


class _Asked(threading.local):
    """Whose future this thread has asked for last."""

    work: HFReduceWork | None = None


asked = _Asked()


@methods
class HFReduceWork(dist.Work):
    """One call of a collective."""

    def __init__(self, what: str, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._what = what
        self._outputs: list[torch.Tensor] | None = outputs
        self._results: list[weakref.ref[torch.Tensor]] = []
        self._process = process.own()
        self._lock = threading.Lock()
        self._is_over = False
        # Held until it is over: an event would be three objects, and there is one for each bucket of each step.
        self._latch = threading.Lock()
        self._latch.acquire()
        self._error: HFReduceError | None = None
        #: Why its future is an error although the operation has succeeded.
        self._refused: HFReduceError | None = None
        self._participants: int | None = None
        #: Who ends it, until it is over, and whether that is begun without anybody's waiting.
        self.completer: Completer | None = None
        self.is_hurried = False
        #: Of tensors on a GPU: makes the current stream wait for them, and sets another one for who resolves a future.
        self.gate: Callable[[], None] | None = None
        self.resolving: Callable[[], AbstractContextManager[None]] = nullcontext
        self._source: torch.futures.Future | None = None
        #: How many callbacks whoever has asked for the future was inside of.
        self._depth = 0
        self._future: torch.futures.Future | None = None

    @property
    def what(self) -> str:
        """What was called."""
        return self._what

    @property
    def is_over(self) -> bool:
        """Whether it is over, for who does not mind when."""
        return self._is_over

    def complete(self, error: HFReduceError | None, participants: int | None = None) -> None:
        """The operation is over. Called once."""
        with self._lock:
            self._error = error
            self._participants = participants
            source = self._source
            # Before who waits may forget them.
            outputs = self._take_outputs() if source is not None else []
            self._is_over = True
            self.completer = None
        self._latch.release()
        if source is not None:
            # Elsewhere: a callback may wait for an operation that this thread has to end.
            callbacks.run(functools.partial(self._resolve, source, outputs), self._depth)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the tensors hold the result; a positive `timeout` limits that."""
        if process.own() != self._process:
            # Nobody completes it here: the thread that does is the parent's.
            raise HFReduceError(
                f"failed to wait for {self._what} in process {os.getpid()}: process {self._process} has called it; "
                "wait there, before DataLoader workers are started"
            )
        if not self._is_over:
            self._await(timeout.total_seconds())
        if self._error is not None:
            # A new one each time: a raised exception collects the traceback of every wait.
            raise HFReduceError(str(self._error)) from self._error.__cause__
        if self.gate is not None:
            self.gate()
        self._take_outputs()
        return True

    def _await(self, limit_seconds: float) -> None:
        """Waits until it is over; a positive limit ends that with an error."""
        completer = self.completer
        if completer is not None and limit_seconds <= 0:
            # Here rather than in the other thread: a turn at the interpreter costs more than a small operation.
            completer.complete(self)
            return
        self._hurry()
        if not self._latch.acquire(timeout=limit_seconds if limit_seconds > 0 else -1):
            raise HFReduceError(
                f"{self._what} timed out after {limit_seconds:g} s: a rank is missing or slow, "
                "and the sidecar's log names it"
            )
        self._latch.release()

    def _hurry(self) -> None:
        """Somebody wants to know of its end without waiting for it in `wait`."""
        completer = self.completer
        if completer is not None:
            completer.hurry(self)

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        self._hurry()
        return self._is_over

    def is_success(self) -> bool:
        """Whether the tensors hold the result."""
        self._hurry()
        return self._is_over and self._error is None

    def participants(self) -> int | None:
        """How many ranks took part, which is what an average was divided by; none before it has succeeded, and of
        what goes over gloo."""
        return self._participants

    def exception(self) -> HFReduceError | None:
        """Why it failed, if it did."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The caller's tensors, as far as it still has them."""
        outputs = self._outputs  # Another thread may take them meanwhile.
        if outputs is not None:
            return outputs
        return [tensor for tensor in (one() for one in self._results) if tensor is not None]

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors; its error is PyTorch's, with the name of ours in its text."""
        asked.work = self
        with self._lock:
            if self._future is None:
                self._depth = callbacks.depth()
                devices = {one.device for one in self._outputs or () if one.is_cuda}
                source: torch.futures.Future = torch.futures.Future(devices=list(devices))
                # An exception set on a future is a value to C++; one raised in a callback is an error.
                self._future = source.then(self._deliver)
                if self._is_over:
                    self._resolve(source, self._take_outputs())
                else:
                    self._source = source
            future = self._future
        self._hurry()
        return future

    def _resolve(
        self,
        source: torch.futures.Future,
        outputs: list[torch.Tensor],
        refused: HFReduceError | None = None,
    ) -> None:
        """Resolves the future, with the outcome or with an error that takes its place."""
        self._refused = refused
        with self.resolving():
            if self.gate is not None:
                self.gate()  # Who waits for the future waits for the stream that is current here.
            source.set_result(outputs)

    def _take_outputs(self) -> list[torch.Tensor]:
        """The tensors, which the caller or a future holds from here on."""
        outputs = self.result()
        # The caller owns its tensors: a handle that was waited for does not keep them.
        self._results = [weakref.ref(tensor) for tensor in outputs]
        self._outputs = None
        return outputs

    def _deliver(self, source: torch.futures.Future) -> list[torch.Tensor]:
        error = self._error or self._refused
        if error is not None:
            raise error
        return source.value()
