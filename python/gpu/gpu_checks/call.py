"""A process of a check: ``python -m gpu_checks.call MODULE FUNCTION ARGUMENTS RESULT`` calls a function with arguments in
JSON and writes what it returns to the file RESULT. SIGUSR1 has it print where each of its threads is.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

#: Of the C library's prctl: which signal a process gets when the one that started it is gone.
_PR_SET_PDEATHSIG = 1


def main(module: str, function: str, arguments: str, result: str) -> None:
    """Calls it. A process that failed ends at once: its peers may be gone."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        called = getattr(importlib.import_module(module), function)
        answer = {"value": called(**json.loads(arguments))}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    fresh = Path(f"{result}.new")
    fresh.write_text(json.dumps(answer))
    fresh.rename(result)
    if "error" in answer:
        print(answer["error"], file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
