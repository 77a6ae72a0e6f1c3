"""Says where this process is when the platform asks: SIGUSR1 prints the stack of each of its threads.

The launcher asks when the job makes no progress (``failurePolicy.stallSeconds``), and only processes that catch the
signal. It is caught in C, so it is answered also where Python waits in a call that never returns.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from .environment import RUN_DIR

_STDERR = 2


def install() -> None:
    """In a job, makes SIGUSR1 print all stacks to standard error, unless the script has a handler for it. One that the script
    sets later replaces this one."""
    run_dir = Path(os.environ.get("FIREFLYER_RUN_DIR") or RUN_DIR)
    if run_dir.is_dir() and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=True)
