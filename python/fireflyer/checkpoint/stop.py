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

_asked = threading.Event()
_previous: Any = None
_installed_by: int | None = None


def install() -> None:
    """Makes SIGTERM ask for a stop instead of ending the process. A handler that the script set before
    is still called. Only the main thread can do this; elsewhere the launcher's file must do."""
    global _previous, _installed_by
    if _installed_by == os.getpid() or threading.current_thread() is not threading.main_thread():
        return
    _previous = signal.signal(signal.SIGTERM, _on_signal)
    _installed_by = os.getpid()


def request() -> None:
    """Asks for a stop, as SIGTERM does."""
    _asked.set()


def requested() -> bool:
    """Whether this process was asked to stop; stays true once it was."""
    if not _asked.is_set():
        run_dir = os.environ.get("FIREFLYER_RUN_DIR") or RUN_DIR
        if Path(run_dir, "stop").exists():
            _asked.set()
    return _asked.is_set()


def forget() -> None:
    """Forgets a request, for a process that goes on."""
    _asked.clear()


def _on_signal(number: int, frame: FrameType | None) -> None:
    _asked.set()
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
