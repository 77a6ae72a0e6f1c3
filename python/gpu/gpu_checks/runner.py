"""Runs checks one after another, each as a process of its own with a time limit, and says what came of them.

A check that hangs is a failure: before it is ended, each of its processes prints where its threads are. Whatever a check has
started ends with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .findings import FAIL, NOT_RUN, PASS, Findings

#: How long processes may take to print where their threads are.
_DUMP_SECONDS = 1.0
#: Lines of what a failed check has printed that are kept.
_LOG_LINES = 60


@dataclass(frozen=True)
class Check:
    """A check: a module with a function `check`."""

    name: str
    #: After so long it hangs.
    limit_seconds: float = 60.0
    #: What it needs: PyTorch with CUDA, or the driver alone, of which there is a stand-in.
    needs_pytorch: bool = True
    #: Whether its code can be tried with tensors of the CPU.
    is_rehearsed: bool = False
    module: str = ""

    @property
    def home(self) -> str:
        """The module's name."""
        return self.module or f"gpu_checks.{self.name}"


#: In order of risk.
CHECKS = [
    Check("reg", needs_pytorch=False),
    Check("uaf", is_rehearsed=True),
    Check("order", 120.0, is_rehearsed=True),
    Check("torchpath", 90.0, is_rehearsed=True),
    Check("hang"),
    Check("sanitizer", 180.0),
    Check("trace"),
    Check("rate", needs_pytorch=False),
    Check("capture"),
    Check("ptx", needs_pytorch=False),
    Check("ipc", needs_pytorch=False),
    Check("death", 120.0, is_rehearsed=True),
]
#: Apart from the others, because it takes an hour.
SOAK = Check("soak", is_rehearsed=True)


def run(check: Check, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """What came of a check; `folder` is for its files."""
    log, result = folder / f"{check.name}.log", folder / f"{check.name}.json"
    command = [sys.executable, "-m", "gpu_checks.call", __name__, "perform"]
    command += [json.dumps({"module": check.home}), str(result)]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A process group of its own, by which all of it is ended.
            start_new_session=True,
        )
        try:
            process.wait(check.limit_seconds)
            hangs = False
        except subprocess.TimeoutExpired:
            hangs = True
            _signal(process, signal.SIGUSR1)
            time.sleep(_DUMP_SECONDS)
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()
    report = {"name": check.name, "seconds": round(time.monotonic() - started, 1)}
    if hangs:
        report |= _failed(f"hangs: not over after {check.limit_seconds:g} s; the log says where")
    else:
        report |= _answer(result, process.returncode)
    if report["outcome"] == FAIL:
        lines = log.read_text(errors="replace").splitlines()
        report["log"] = lines[-_LOG_LINES:]
    return report


def perform(module: str) -> dict[str, Any]:
    """In a check's process: the check."""
    found = Findings()
    importlib.import_module(module).check(found)
    return found.report()


def not_run(check: Check, why: str) -> dict[str, Any]:
    """The report of a check that did not run."""
    found = Findings()
    found.not_judged(check.name, why)
    return {"name": check.name, "seconds": 0.0, **found.report(), "reason": why}


def rehearsed(report: dict[str, Any]) -> dict[str, Any]:
    """The report of a check whose code was tried on the CPU: that it passed says nothing about a GPU."""
    if report["outcome"] == PASS:
        reason = f"rehearsed on the CPU: {report['reason']}"
        report = {**report, "outcome": NOT_RUN, "reason": reason}
    return report


def line(report: dict[str, Any]) -> str:
    """One check for the terminal."""
    reason = " ".join(report["reason"].split())
    return f"{report['name']:<10} {report['outcome']:<8} {report['seconds']:>6.1f} s  {reason}"


def totals(reports: list[dict[str, Any]]) -> str:
    """All checks for the terminal."""
    outcomes = [report["outcome"] for report in reports]
    passed, failed, rest = (outcomes.count(one) for one in (PASS, FAIL, NOT_RUN))
    return f"{passed} passed, {failed} failed, {rest} not run"


def _answer(result: Path, status: int) -> dict[str, Any]:
    try:
        answer = json.loads(result.read_text())
    except FileNotFoundError:
        return _failed(f"its process ended with {status} and no result")
    if "error" in answer:
        return _failed(answer["error"].strip().splitlines()[-1])
    return answer["value"]


def _failed(reason: str) -> dict[str, Any]:
    return {"outcome": FAIL, "reason": reason, "claims": [], "figures": {}}


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To all that a check has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
