"""compute-sanitizer finds nothing in the streams' order, in PyTorch's way to us and in our kernels; the kernel logs no Xid.

memcheck looks at all three, initcheck and racecheck at the kernels, which are the only ones of ours.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import kit, order, torchpath
from .findings import Findings
from .processes import Process, ProcessError

_PLACES = [
    Path("/usr/local/cuda/bin/compute-sanitizer"),
    Path("/usr/local/cuda/compute-sanitizer/compute-sanitizer"),
]
#: What it ends with when it has found something.
_FOUND = 86


def check(found: Findings) -> None:
    """Runs parts of other checks under it, then looks at the kernel's log."""
    program = _program()
    if program is None:
        found.not_judged("compute-sanitizer", "it is not installed (CUDA's toolkit has it)")
    else:
        memcheck = _under(program, "memcheck")
        _judge(found, "memcheck of order", partial(order.quick, found, memcheck))
        _judge(found, "memcheck of torchpath", partial(torchpath.quick, found, memcheck))
        for tool in ("memcheck", "initcheck", "racecheck"):
            _judge(found, f"{tool} of ptx", partial(_kernels, _under(program, tool)))
    _look_for_xid(found)


def _program() -> str | None:
    named = shutil.which("compute-sanitizer")
    return named or next((str(place) for place in _PLACES if place.exists()), None)


def _under(program: str, tool: str) -> list[str]:
    # Errors of calls are ours to see: some are asked for to learn what a GPU can do.
    return [
        program, "--tool", tool, "--target-processes", "all", "--error-exitcode", str(_FOUND),
        "--report-api-errors", "no",
    ]  # fmt: skip


def _judge(found: Findings, what: str, run: Callable[[], None]) -> None:
    try:
        run()
    except ProcessError as error:
        found.holds(what, False, str(error))
    else:
        found.holds(what, True)


def _kernels(before: list[str]) -> None:
    with Process("gpu_checks.sanitizer", "run_kernels", {}, before=before) as process:
        process.value()


def run_kernels() -> None:
    """Under the sanitizer: what `ptx` does."""
    from . import ptx

    found = Findings()
    ptx.check(found)
    outcome, reason = found.outcome()
    assert outcome == "PASS", reason


def _look_for_xid(found: Findings) -> None:
    """Faults of the GPU that the driver has written to the kernel's log since the run began."""
    claim = "the kernel's log has no Xid"
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found.not_judged(claim, "this user may not read it: `dmesg | grep Xid` as root")
        return
    began = kit.current().began_uptime
    lines = [line for line in log.splitlines() if "NVRM: Xid" in line]
    fresh = [line for line in lines if _seconds(line) >= began]
    found.figure("xid_lines", len(fresh))
    # A clean log alone is no run of the sanitizer.
    if fresh or _program() is not None:
        found.holds(claim, not fresh, "; ".join(fresh[:3]))


def _seconds(line: str) -> float:
    """When a line such as `[  123.456] NVRM: Xid` was written; now, if it does not say so."""
    match = re.match(r"\[\s*(\d+\.\d+)\]", line)
    return float(match[1]) if match else float("inf")
