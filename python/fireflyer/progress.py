"""Tells the platform how far training is: ``progress.json``, ``ack.json`` and ``cause.json`` in the run directory.

Owns the three files and the rate at which they change. The node's sidecar reads them and forwards them
to the operator; the launcher reads the cause of a failure. Only the lowest rank that is left writes, but a cause, which
is the same on all ranks; telling never fails the training.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import SupportsFloat

from .limits import PERIOD_SECONDS, TEXT_LIMIT

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointRef:
    """A durable checkpoint: who saved it, what it holds, and the SHA-256 of its manifest in hex."""

    attempt: int
    step: int
    digest: str

    @property
    def name(self) -> str:
        """Its directory, seen from the directory of checkpoints."""
        return f"attempt-{self.attempt}/step-{self.step}"


class Progress:
    """The progress of one run. Does nothing without a run directory."""

    def __init__(self, run_dir: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._written_at = -math.inf
        self._failed = False
        self._checkpoint: CheckpointRef | None = None
        self._passed_over: str | None = None

    def step(self, step: int, loss: SupportsFloat | None) -> None:
        """Step `step` is done. Written at most once in `PERIOD_SECONDS`; `loss` is read only then."""
        now = self._clock()
        if self._run_dir is None or now - self._written_at < PERIOD_SECONDS:
            return
        self._written_at = now
        value = math.nan if loss is None else float(loss)
        # JSON has no words for what is not finite, and a diverged run must still be seen to move.
        fields = {"loss": value} if math.isfinite(value) else {}
        self._write_progress({"step": step, **fields})

    def durable(self, checkpoint: CheckpointRef) -> None:
        """`checkpoint` is durable: written at once, saves are rarer than the period allows."""
        self._checkpoint = checkpoint
        self._write_progress({"step": checkpoint.step})

    def passed_over(self, text: str) -> None:
        """Another checkpoint was loaded than should have been. Written with the next `durable`."""
        self._passed_over = _cut(text)

    def ending(self, cause: str, text: str) -> None:
        """This run ends, and not by a fault of its program. Written by every rank: any may be the first that ends."""
        self._write("cause.json", {"kind": cause, "message": _cut(text)})

    def goes_on(self) -> None:
        """Takes back what `ending` wrote: the program goes on without."""
        if self._run_dir is not None:
            try:
                (self._run_dir / "cause.json").unlink(missing_ok=True)
            except OSError as error:
                _log.warning("failed to remove cause.json: %s", error)

    def acknowledge(self, checkpoint: CheckpointRef) -> None:
        """`checkpoint` was saved because the gang was asked to stop."""
        self._write("ack.json", asdict(checkpoint))

    def _write_progress(self, content: dict) -> None:
        if self._checkpoint is not None:
            content["checkpoint"] = asdict(self._checkpoint)
        if self._passed_over is not None:
            content["passedOver"] = self._passed_over
        self._write("progress.json", content)

    def _write(self, name: str, content: dict) -> None:
        if self._run_dir is None:
            return
        path = self._run_dir / name
        # The ranks of a node may write the same file at once.
        new = path.with_suffix(f".{os.getpid()}.new")
        try:
            new.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            os.replace(new, path)
        except OSError as error:
            if not self._failed:
                _log.warning(
                    "failed to write %s: %s; the platform does not see progress", path, error
                )
            self._failed = True


def _cut(text: str) -> str:
    """The text as the platform takes it: short, on one line, in printable characters."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line if len(line) <= TEXT_LIMIT else line[: TEXT_LIMIT - 1] + "…"
