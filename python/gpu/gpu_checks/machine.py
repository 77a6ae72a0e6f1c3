"""What machine this is, and whether the checks can run on it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

#: What the wheel and the checks need at least.
GLIBC, PYTORCH = (2, 28), (2, 6)


def facts() -> dict[str, Any]:
    """What a report says of the machine. In a process of its own: PyTorch opens the GPU for it."""
    about: dict[str, Any] = {
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "glibc": _glibc(),
        "kernel": platform.release(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "driver": _driver(),
        "numpy": None,
        "pytorch": None,
        "cuda": None,
        "cuda_is_available": False,
        "gpus": 0,
        "gpu": None,
    }
    try:
        import numpy

        about["numpy"] = numpy.__version__
    except ImportError:
        pass
    try:
        import torch
    except ImportError as error:
        about["pytorch_error"] = str(error)
        return about
    about["pytorch"] = torch.__version__
    about["cuda"] = torch.version.cuda
    about["cuda_is_available"] = torch.cuda.is_available()
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        about["gpus"] = torch.cuda.device_count()
        about["gpu"] = properties.name
        about["gpu_bytes"] = properties.total_memory
    return about


def refusals(
    about: dict[str, Any], architecture: str, *, needs_gpu: bool, needs_pytorch: bool
) -> list[str]:
    """Why the checks cannot run, and what to do about it."""
    found = []
    if about["architecture"] != architecture:
        found.append(
            f"the archive is for {architecture} and this machine is {about['architecture']}: build one there with `cargo xtask gpu`"
        )
    if _numbers(about["glibc"]) < GLIBC:
        found.append(
            f"glibc 2.28 or later is needed, this is {about['glibc'] or 'another C library'}"
        )
    if about["numpy"] is None:
        found.append("NumPy is missing: install it for this Python (`pip install numpy`)")
    if not needs_pytorch:
        return found
    if about["pytorch"] is None:
        why = about.get("pytorch_error", "")
        found.append(
            f"PyTorch is missing ({why}): install it for this Python, or name one with PYTHON=..."
        )
    elif _numbers(about["pytorch"]) < PYTORCH:
        found.append(f"PyTorch 2.6 or later is needed, this is {about['pytorch']}")
    elif needs_gpu and about["cuda"] is None:
        found.append(f"PyTorch {about['pytorch']} is built without CUDA: install a build with it")
    elif needs_gpu and not about["cuda_is_available"]:
        found.append(
            "PyTorch sees no GPU: is there one, does `nvidia-smi` work, and has the container got it?"
        )
    return found


def available_bytes() -> int:
    """Memory of the host that is free, or can be made so."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _numbers(version: str | None) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _glibc() -> str | None:
    """The version, or None where the C library is another."""
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None
    return said.split()[-1] if said else None


def _cpu() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return None


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else text.splitlines()[0]
