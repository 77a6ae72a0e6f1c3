"""The command ``./run``: runs the checks, prints what came of each and writes one file of JSON.

Exit status 0 when no check failed, 1 when one did, 2 when they cannot run here.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import signal
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from . import kit, machine, runner
from .findings import FAIL
from .processes import Process, ProcessError

#: The folder of the archive.
_HOME = Path(__file__).resolve().parent.parent
_NEEDS_GPU = "needs PyTorch with CUDA, which a stand-in for the driver is not"
#: Of one check.
_REHEARSAL_SECONDS = 600.0
_NOT_REHEARSED = "cannot be rehearsed on the CPU"


def main(words: list[str] | None = None) -> int:
    """Runs what the command line asks for."""
    asked = _parse(words)
    # Whoever ends this command ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="fireflyer-gpu-") as folder:
            return _run(asked, Path(folder))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run", description="Checks HFReduce on this machine's first CUDA GPU."
    )
    names = [check.name for check in (*runner.CHECKS, runner.SOAK)]
    parser.add_argument("--only", metavar="NAME", choices=names, help=", ".join(names))
    parser.add_argument(
        "--soak",
        metavar="SECONDS",
        type=float,
        nargs="?",
        const=3600.0,
        help="only train for an hour, or so long",
    )
    parser.add_argument("--json", metavar="FILE", default="gpu-checks.json", help="the report")
    parser.add_argument("--driver", metavar="PATH", help="a stand-in for libcuda.so.1")
    parser.add_argument(
        "--rehearse", action="store_true", help="try the checks' own code on the CPU, without a GPU"
    )
    return parser.parse_args(words)


def _run(asked: argparse.Namespace, folder: Path) -> int:
    about_archive = json.loads((_HOME / "archive.json").read_text())
    site, scratch = folder / "site", folder / "tmp"
    scratch.mkdir()
    with zipfile.ZipFile(next(_HOME.glob("fireflyer-*.whl"))) as wheel:
        wheel.extractall(site)
    run = kit.Kit(
        sidecar=str(_HOME / "hfreduce-sidecar"),
        kernels=str(_HOME / "kernels.ptx"),
        driver=os.path.abspath(asked.driver) if asked.driver else None,
        rehearses=asked.rehearse,
        soak_seconds=asked.soak or 3600.0,
        began_uptime=kit.uptime(),
    )
    # Set here, so that processes of this one have them, too.
    paths = [str(site), str(_HOME), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = str(scratch)
    try:
        with Process("gpu_checks.machine", "facts", {}) as process:
            about = process.value()
    except ProcessError as error:
        print(f"run: failed to look at this machine: {error}", file=sys.stderr)
        return 2
    without_gpu = bool(asked.driver) or asked.rehearse
    refused = machine.refusals(
        about,
        about_archive["architecture"],
        needs_gpu=not without_gpu,
        needs_pytorch=not asked.driver,
    )
    if refused:
        for why in refused:
            print(f"run: {why}", file=sys.stderr)
        return 2
    reports = _reports(asked, folder, run)
    document = {
        "format": 1,
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "archive": about_archive,
        "stand_in": bool(asked.driver),
        "rehearsal": asked.rehearse,
        "machine": about,
        "checks": reports,
    }
    Path(asked.json).write_text(json.dumps(document, indent=1) + "\n")
    print(f"{runner.totals(reports)}; the report is {asked.json}")
    return int(any(report["outcome"] == FAIL for report in reports))


def _reports(asked: argparse.Namespace, folder: Path, run: kit.Kit) -> list[dict[str, Any]]:
    checks = [runner.SOAK] if asked.soak is not None else runner.CHECKS
    if asked.only:
        checks = [one for one in (*runner.CHECKS, runner.SOAK) if one.name == asked.only]
    reports = []
    for check in checks:
        if check is runner.SOAK:
            # Both of its runs, and their starts.
            check = runner.Check("soak", run.soak_seconds + 1200, is_rehearsed=True)
        if asked.rehearse:
            # A few cores take longer than a GPU.
            check = dataclasses.replace(check, limit_seconds=_REHEARSAL_SECONDS)
        if asked.rehearse and not check.is_rehearsed:
            report = runner.not_run(check, _NOT_REHEARSED)
        elif asked.driver and check.needs_pytorch:
            report = runner.not_run(check, _NEEDS_GPU)
        else:
            report = runner.run(check, folder, run.variable())
        if asked.rehearse:
            report = runner.rehearsed(report)
        reports.append(report)
        print(runner.line(report), flush=True)
        for printed in report.get("log", []):
            print(f"  | {printed}")
    return reports


if __name__ == "__main__":
    sys.exit(main())
