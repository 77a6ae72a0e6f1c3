"""Brings operations to their end, in the order in which they were called.

Owns who does it: the thread that waits for one, or a thread of its own. A call whose end somebody may learn of without
waiting, and one that would hold much memory until then, are the other thread's at once. A small one is left to who waits
for it, which nearly everybody does: two threads that take turns at the interpreter cost more than the whole call. What an
operation's result means for the tensors is a function that the group passes in. Callbacks of futures are run elsewhere
(`callbacks`): they may wait for operations that are to be ended here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from . import callbacks, process
from .collective_error import HFReduceError
from .work import HFReduceWork

#: Handles kept alive after they completed. PyTorch's C++ side holds the C++ half of a handle only, and its
#: `wait` hangs once the Python half is gone; 4096 x 1 KiB = 4 MiB, DDP has a few dozen at once.
RETAINED_HANDLES = 4096
#: Bytes of the largest result that may wait for who reads it: the smallest piece of memory that a sidecar hands out.
LEFT_BYTES = 64 << 10
#: Operations that may wait so: 2 MiB of a node's memory for each of its ranks.
LEFT_OPERATIONS = 32

#: Waits for an operation and puts its result where it belongs; how many ranks took part. Called again where a signal
#: has interrupted it.
Finish = Callable[[], "int | None"]


class Completer:
    """Ends the operations of a group."""

    def __init__(self) -> None:
        self._process = process.own()
        #: What nobody has begun to end, oldest first.
        self._called: deque[tuple[HFReduceWork, Finish]] = deque()
        #: Of who ends them, one at a time. A signal's handler that runs inside it may wait for others.
        self._turn = threading.RLock()
        #: Which ones are not left to who waits; none for the end.
        self._hurried: queue.SimpleQueue[HFReduceWork | None] = queue.SimpleQueue()
        self._retained: deque[HFReduceWork] = deque(maxlen=RETAINED_HANDLES)
        self._thread = threading.Thread(target=self._run, name="hfreduce", daemon=True)
        self._thread.start()

    def add(self, work: HFReduceWork, finish: Finish, *, nbytes: int | None = None) -> HFReduceWork:
        """Completes `work` when `finish` has returned or raised. With the size of its result it may be left to who waits."""
        self._retained.append(work)
        work.completer = self
        self._called.append((work, finish))
        if nbytes is None or nbytes > LEFT_BYTES or len(self._called) > LEFT_OPERATIONS:
            self.hurry(work)
        return work

    def hurry(self, work: HFReduceWork) -> None:
        """Has an operation and those before it ended by the other thread."""
        if not work.is_hurried:
            work.is_hurried = True
            self._hurried.put(work)

    def complete(self, work: HFReduceWork) -> None:
        """Ends an operation and those before it, or waits until another thread has."""
        while not work.is_over:
            with self._turn:
                if not work.is_over:
                    self._complete_oldest()

    def close(self, limit_seconds: float) -> None:
        """Ends the thread after what was added before. Nothing in a forked child, which has no such thread."""
        if process.own() != self._process:
            return
        self._hurried.put(None)
        if threading.current_thread() is not self._thread:
            end = time.monotonic() + limit_seconds
            self._thread.join(limit_seconds)
            callbacks.drain(end - time.monotonic())

    def _complete_oldest(self) -> None:
        work, finish = self._called.popleft()
        error, participants = None, None
        try:
            participants = finish()
        except HFReduceError as raised:
            error = raised
        except BaseException as raised:
            if threading.current_thread() is not self._thread:
                # A signal's handler has raised in who waits. A bug of ours hits the other thread too.
                self._called.appendleft((work, finish))
                self.hurry(work)
                raise
            # It must not leave a rank waiting.
            error = HFReduceError(f"failed to finish {work.what}: {raised!r}")
            error.__cause__ = raised
        work.complete(error, participants)

    def _run(self) -> None:
        while True:
            work = self._hurried.get()
            if work is None:
                break
            self.complete(work)
            del work
        with self._turn:
            while self._called:
                self._complete_oldest()
