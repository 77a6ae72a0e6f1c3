"""Processes of a check: started with a function, asked for what it returns, ended with the check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: A process that takes longer hangs, in seconds. The runner's limit on the whole check comes first on a GPU.
LIMIT_SECONDS = 400.0
_PAUSE_SECONDS = 0.02


class ProcessError(Exception):
    """A process of a check raised or died."""


class Process:
    """One that calls a function of a module; see `call`. Killed on leaving the context."""

    def __init__(
        self,
        module: str,
        function: str,
        arguments: Mapping[str, Any],
        *,
        variables: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        before: Sequence[str] = (),
    ) -> None:
        self.what = f"{module}.{function}"
        self._folder = tempfile.TemporaryDirectory(prefix="fireflyer-gpu-")
        self._result = Path(self._folder.name) / "result.json"
        command = [*before, sys.executable, "-m", "gpu_checks.call", module, function]
        command += [json.dumps(arguments), str(self._result)]
        environment = {**os.environ, **(variables or {})}
        self.popen = subprocess.Popen(command, env=environment, pass_fds=pass_fds)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    def value(self, limit_seconds: float = LIMIT_SECONDS) -> Any:
        """What the function returned, when the process has ended well; else a `ProcessError`."""
        status = self.status(limit_seconds)
        try:
            answer = json.loads(self._result.read_text())
        except FileNotFoundError:
            raise ProcessError(f"{self.what} ended with {status} and no result") from None
        if "error" in answer:
            raise ProcessError(f"{self.what} raised: {answer['error']}")
        if status != 0:
            raise ProcessError(f"{self.what} ended with {status} after its result")
        return answer["value"]

    def status(self, limit_seconds: float = LIMIT_SECONDS) -> int:
        """How the process ended."""
        try:
            return self.popen.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.what} has not ended after {limit_seconds:g} s") from None

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self.popen.kill()
        self.popen.wait()


def wait_until(condition: Any, what: str, limit_seconds: float = LIMIT_SECONDS) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > end:
            raise ProcessError(f"{what} has not come after {limit_seconds:g} s")
        time.sleep(_PAUSE_SECONDS)
