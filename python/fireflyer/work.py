"""Operations in flight: the handle that PyTorch waits for, and the thread that completes them.

Owns completion in the order of submission, and the lifetime of handles. What an operation's result means
for the tensors is a function that the group passes in.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.futures

from . import process
from .errors import HFReduceError

_log = logging.getLogger(__name__)

#: Handles kept alive after they completed. PyTorch's C++ side holds the C++ half of a handle only, and its
#: `wait` hangs once the Python half is gone; 4096 x 1 KiB = 4 MiB, DDP has a few dozen at once.
KEPT_HANDLES = 4096


class HFReduceWork(dist.Work):
    """One call of a collective."""

    def __init__(self, what: str, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._what = what
        self._outputs: list[torch.Tensor] | None = outputs
        # The caller owns its tensors: a handle that was waited for does not keep them.
        self._results = [weakref.ref(tensor) for tensor in outputs]
        self._process = process.own()
        self._lock = threading.Lock()
        self._is_over = False
        # Held until it is over: an event would be three objects, and there is one for each bucket of each step.
        self._latch = threading.Lock()
        self._latch.acquire()
        self._error: HFReduceError | None = None
        self._participants: int | None = None
        #: Of tensors on a GPU: makes the current stream wait for them.
        self.gate: Callable[[], None] | None = None
        self._source: torch.futures.Future | None = None
        self._future: torch.futures.Future | None = None

    def complete(self, error: HFReduceError | None, participants: int | None = None) -> None:
        """The operation is over. Called once."""
        with self._lock:
            self._error = error
            self._participants = participants
            self._is_over = True
            source = self._source
        self._latch.release()
        if source is not None:
            self._resolve(source)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the tensors hold the result; a positive `timeout` limits that."""
        if process.own() != self._process:
            # Nobody completes it here: the thread that does is the parent's.
            raise HFReduceError(
                f"failed to wait for {self._what} in process {os.getpid()}: process {self._process} has called it; "
                "wait there, before DataLoader workers are started"
            )
        limit = timeout.total_seconds()
        if not self._is_over and not self._await(limit if limit > 0 else -1):
            raise HFReduceError(
                f"{self._what} is not finished after {limit:g} s: a rank is missing or slow"
            )
        if self._error is not None:
            # A new one each time: a raised exception collects the traceback of every wait.
            raise HFReduceError(str(self._error)) from self._error.__cause__
        if self.gate is not None:
            self.gate()
        self._take_outputs()
        return True

    def _await(self, limit_seconds: float) -> bool:
        """Whether it is over within a time; -1 for any."""
        if not self._latch.acquire(timeout=limit_seconds):
            return False
        self._latch.release()
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._is_over

    def is_success(self) -> bool:
        """Whether the tensors hold the result."""
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
        return [tensor for tensor in (one() for one in self._results) if tensor is not None]

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors; its error is PyTorch's, with the name of ours in its text."""
        with self._lock:
            if self._future is None:
                devices = {one.device for one in self._outputs or () if one.is_cuda}
                source: torch.futures.Future = torch.futures.Future(devices=list(devices))
                # An exception set on a future is a value to C++; one raised in a callback is an error.
                self._future = source.then(self._deliver)
                if self._is_over:
                    self._resolve(source)
                else:
                    self._source = source
            return self._future

    def _resolve(self, source: torch.futures.Future) -> None:
        if self.gate is not None:
            self.gate()  # Who waits for the future waits for this thread's stream.
        source.set_result(self._take_outputs())

    def _take_outputs(self) -> list[torch.Tensor]:
        """The tensors, which the caller or a future holds from here on."""
        outputs, self._outputs = self._outputs, None
        return self.result() if outputs is None else outputs

    def _deliver(self, source: torch.futures.Future) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return source.value()


class Completer:
    """The thread that waits for operations, in the order in which they were called."""

    def __init__(self) -> None:
        self._process = process.own()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._kept: deque[HFReduceWork] = deque(maxlen=KEPT_HANDLES)
        self._thread = threading.Thread(target=self._run, name="hfreduce", daemon=True)
        self._thread.start()

    def add(self, work: HFReduceWork, finish: Callable[[], int | None]) -> HFReduceWork:
        """Completes `work` when `finish` has returned how many ranks took part, or raised."""
        self._kept.append(work)

        def complete() -> None:
            error, participants = None, None
            try:
                participants = finish()
            except HFReduceError as raised:
                error = raised
            except Exception as raised:  # A bug of ours must not leave the waiting rank waiting.
                error = HFReduceError(f"failed to finish {work._what}: {raised!r}")
                error.__cause__ = raised
            work.complete(error, participants)

        self._queue.put(complete)
        return work

    def close(self, limit_seconds: float) -> None:
        """Ends the thread after what was added before. Nothing in a forked child, which has no such thread."""
        if process.own() != self._process:
            return
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(limit_seconds)

    def _run(self) -> None:
        while True:
            complete = self._queue.get()
            if complete is None:
                return
            try:
                complete()
            except Exception:  # A callback that the script attached to a future.
                _log.exception("a callback of a collective failed")
            del complete
