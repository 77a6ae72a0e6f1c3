"""Resolves futures, whose callbacks are the script's, on threads of their own.

Owns these threads, for all groups of the process. A callback may call an operation and wait for its future. So whoever ends
operations must not run callbacks, and a future that is asked for inside a callback is resolved on another thread than those
that were asked for outside. Callbacks of one depth run one after another, in the order of the operations: those that call
operations do so in one order on all ranks, as far as the script does.

A callback may also wait for a future that comes after its own. When one has run for some seconds, the next one begins beside
it. So many at once are bounded: at the bound a future becomes an error, which ends callbacks that wait for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from .collective_error import HFReduceError
from .limits import CALLBACK_DEPTH, CALLBACK_SECONDS, CALLBACKS_BESIDE

_log = logging.getLogger(__name__)

#: Resolves a future: with its operation's outcome, or with an error that takes its place.
Resolve = Callable[["HFReduceError | None"], None]


class _Depth(threading.local):
    """How many callbacks the current thread is inside of."""

    value = 0


_depth = _Depth()


class Level:
    """Futures that were asked for at one depth, and the threads that resolve them."""

    def __init__(
        self, depth: int, beside: int = CALLBACKS_BESIDE, patience_seconds: float = CALLBACK_SECONDS
    ) -> None:
        self._depth, self._beside, self._patience = depth, beside, patience_seconds
        self._changed = threading.Condition()
        self._waiting: deque[Resolve] = deque()
        #: Callbacks that run, and when the last of them has begun.
        self._running, self._begun_at = 0, 0.0
        #: Threads that wait for a turn.
        self._idle = 0

    def run(self, resolve: Resolve) -> None:
        """Has a future resolved after those before it. Returns at once."""
        with self._changed:
            self._waiting.append(resolve)
            if self._idle == 0:
                self._idle += 1
                _start(self._work)
            else:
                # All: one that drains waits here, too.
                self._changed.notify_all()

    def drain(self, until: float) -> None:
        """Waits until that time at most for all futures to be resolved."""
        with self._changed:
            while (self._waiting or self._running) and time.monotonic() < until:
                self._changed.wait(max(until - time.monotonic(), 0.0))

    def _work(self) -> None:
        _depth.value = self._depth + 1
        while True:
            with self._changed:
                while (pause := self._pause()) != 0.0:
                    self._changed.wait(pause)
                resolve = self._waiting.popleft()
                is_refused = self._running == self._beside
                if self._running == 1:
                    _log.warning(
                        "a callback of a future has run for %g s: the next one begins beside it",
                        self._patience,
                    )
                self._begun_at = time.monotonic()
                if not is_refused:
                    self._running += 1
                    self._idle -= 1
                    if self._waiting and self._idle == 0:
                        self._idle += 1
                        _start(self._work)
            if is_refused:
                self._refuse(resolve)
                continue
            _call(resolve, None)
            del resolve  # It holds the operation's tensors.
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
                # Two take turns without a new thread for each.
                if self._idle > 1:
                    return
                self._idle += 1

    def _pause(self) -> float | None:
        """How long to wait for the next turn, in seconds: none for ever, as long as there is nothing to do."""
        if not self._waiting:
            return None
        if self._running == 0:
            return 0.0
        return max(self._begun_at + self._patience - time.monotonic(), 0.0)

    def _refuse(self, resolve: Resolve) -> None:
        error = HFReduceError(
            f"failed to resolve a future: {self._beside} callbacks of futures run, and none has ended for "
            f"{self._patience:g} s; do not wait inside callbacks, or chain them with then()"
        )
        _log.error("%s", error)
        # Its callbacks may wait, too.
        _start(lambda: _call(resolve, error))


def _start(target: Callable[[], None]) -> None:
    threading.Thread(target=target, name="hfreduce-callbacks", daemon=True).start()


def _call(resolve: Resolve, error: HFReduceError | None) -> None:
    try:
        resolve(error)
    except Exception:  # A callback that the script attached to a future.
        _log.exception("a callback of a collective failed")


#: Of this process.
_levels: list[Level] = []


def depth() -> int:
    """How many callbacks the current thread is inside of: a future that it asks for is resolved at this depth."""
    return min(_depth.value, CALLBACK_DEPTH)


def run(resolve: Resolve, at: int) -> None:
    """Has a future of this depth resolved. Returns at once."""
    _levels[at].run(resolve)


def drain(limit_seconds: float) -> None:
    """Waits a little until all futures of this process are resolved. Returns at once in a callback, which would wait for
    itself."""
    until = time.monotonic() + limit_seconds
    for level in _levels if _depth.value == 0 else ():
        level.drain(until)


def _reset() -> None:
    """Begins anew. In a forked child the threads are the parent's, and one of them may hold a lock."""
    _depth.value = 0
    _levels[:] = [Level(one) for one in range(CALLBACK_DEPTH + 1)]


_reset()
os.register_at_fork(after_in_child=_reset)
