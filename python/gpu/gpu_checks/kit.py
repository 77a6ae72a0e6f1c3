"""What a run gives each of its checks, across processes: the archive's parts, and what it runs on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

#: The variable that carries it.
VARIABLE = "FIREFLYER_GPU_KIT"


@dataclass(frozen=True)
class Kit:
    """One run."""

    #: The sidecar's program.
    sidecar: str
    #: The file with the text of our kernels.
    kernels: str
    #: The library of CUDA's driver, if it is not the machine's.
    driver: str | None = None
    #: Tensors of the CPU are in place of the GPU's: only the checks' own code is tried.
    rehearses: bool = False
    #: How long the soak trains.
    soak_seconds: float = 3600.0
    #: When the run began, in seconds since the machine was started.
    began_uptime: float = 0.0

    def variable(self) -> dict[str, str]:
        """What a process finds in its environment."""
        return {VARIABLE: json.dumps(asdict(self))}


def current() -> Kit:
    """The run that this process belongs to."""
    return Kit(**json.loads(os.environ[VARIABLE]))


def uptime() -> float:
    """Seconds since the machine was started, as the kernel's log counts them."""
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])
