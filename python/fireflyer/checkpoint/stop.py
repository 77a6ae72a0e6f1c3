"""Whether this process was asked to stop: SIGTERM, or the launcher's file ``stop``.

Owns the signal handler and the local flag. That one rank's request stops all of them is decided in
`should_stop` and `Checkpoint.step`, by a collective.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from ..environment import RUN_DIR

#: Whether this process was asked. Not an `Event`: the handler may interrupt the main thread anywhere,
#: also where that thread holds the event's lock, and would wait for it for ever.
_asked = False
_previous: Any = None
_installed_by: int | None = None


def install() -> None:
    """In a job, makes SIGTERM ask for a stop instead of ending the process. Elsewhere nobody waits for a save, and
    SIGTERM does what it did before. A handler that the script set before is still called. Only the main thread can do
    this; elsewhere the launcher's file must do."""
    global _previous, _installed_by
    if not _run_dir().is_dir():
        return
    if _installed_by == os.getpid() or threading.current_thread() is not threading.main_thread():
        return
    _previous = signal.signal(signal.SIGTERM, _on_signal)
    _installed_by = os.getpid()


def request() -> None:
    """Asks for a stop, as SIGTERM does. From any thread."""
    global _asked
    _asked = True


def requested() -> bool:
    """Whether this process was asked to stop; stays true once it was."""
    if not _asked:
        if (_run_dir() / "stop").exists():
            request()
    return _asked


def forget() -> None:
    """Forgets a request, for a process that goes on."""
    global _asked
    _asked = False


def _run_dir() -> Path:
    return Path(os.environ.get("FIREFLYER_RUN_DIR") or RUN_DIR)


def _on_signal(number: int, frame: FrameType | None) -> None:
    request()
    if callable(_previous):
        _previous(number, frame)


def _after_fork() -> None:
    # A DataLoader's worker is ended by SIGTERM and must die of it.
    global _installed_by
    if _installed_by is None:
        return
    _installed_by = None
    try:
        signal.signal(signal.SIGTERM, _previous if _previous is not None else signal.SIG_DFL)
    except ValueError:
        pass  # Forked by another thread than the main one: the worker sets its own handler.


os.register_at_fork(after_in_child=_after_fork)
