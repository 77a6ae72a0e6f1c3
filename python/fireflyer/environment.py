"""What a rank gets from the platform: the variables set by the operator and the launcher.

Owns their names, defaults and validation. Outside a job everything has a default, so a script runs
unchanged on a laptop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The folder that the launcher, the sidecar and the ranks of a pod share.
RUN_DIR = "/run/fireflyer"
#: Time between two periodic checkpoints, in seconds; the paper's five minutes.
INTERVAL_SECONDS = 300.0
#: Durable checkpoints that stay, as many as a job keeps by default: the newest, and two to fall back to
#: should it turn out corrupt.
KEEP_LAST = 3
#: Who performs collectives: the sidecar, or the program itself.
BACKENDS = ("HFReduce", "None")
#: The variable by which a job goes over gloo where it should have a sidecar and has none: ``gloo``, or not set.
FALLBACK = "FIREFLYER_FALLBACK"
#: How sums of floats are rounded.
NUMERICS = ("Fast", "Precise", "Bitwise")
#: What becomes of the other nodes when one is lost.
ON_PEER_LOSS = ("Restart", "Shrink")
#: Whether tensors of GPUs that share an NVLink are added up before the host. Alpha: not run on GPUs yet.
NVLINK = ("Never", "Auto")
#: The smallest tensor for which that should pay, in bytes, by estimate: two processes exchange messages twice, some 100 us in
#: all, and half of so many bytes less take some 200 us over PCIe and through the sidecars of a full node.
NVLINK_LEAST_BYTES = 4 << 20

_CHECKPOINT_NAME = re.compile(r"attempt-(\d{1,9})/step-(\d{1,18})")


@dataclass(frozen=True)
class Environment:
    """The run as the platform describes it."""

    #: Name and namespace of the job; empty outside a job.
    job: str
    namespace: str
    #: Number of the attempt, from 1.
    attempt: int
    #: Rank of this process, on its node and in the gang, the size of the gang, and this node's rank.
    local_rank: int
    rank: int
    world_size: int
    node_rank: int
    #: The job's ``spec.failurePolicy.onPeerLoss``, one of `ON_PEER_LOSS`.
    on_peer_loss: str
    #: The job's ``spec.communication.backend``, one of `BACKENDS`.
    backend: str
    #: Whether a pod without its sidecar trains over gloo.
    falls_back: bool
    #: The job's ``spec.communication.numerics``, one of `NUMERICS`.
    numerics: str
    #: The job's ``spec.communication.nvlink``, one of `NVLINK`, and from how many bytes on pairs are used.
    nvlink: str
    nvlink_least_bytes: int
    #: The pod's run directory; none outside a job.
    run_dir: Path | None
    #: Where the job's checkpoints lie; none when it keeps none.
    checkpoint_dir: Path | None
    #: Seconds between periodic checkpoints; 0 saves after every step.
    interval_seconds: float
    #: Durable checkpoints that stay, at least 1.
    keep_last: int
    #: Attempt and step of the checkpoint that the last attempt acknowledged at its end: there is none after it.
    resume: tuple[int, int] | None
    #: Attempt and step of the newest one that the job's status has: it, or one after it, lies in `checkpoint_dir`.
    last_checkpoint: tuple[int, int] | None

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Reads and checks the variables; a ``ValueError`` names the one that is wrong."""
        v = os.environ if variables is None else variables
        run_dir = Path(v.get("FIREFLYER_RUN_DIR") or RUN_DIR)
        checkpoint_dir = v.get("FIREFLYER_CHECKPOINT_DIR")
        return cls(
            job=v.get("FIREFLYER_JOB", ""),
            namespace=v.get("FIREFLYER_NAMESPACE", ""),
            attempt=_integer(v, "FIREFLYER_ATTEMPT", 1, least=1),
            local_rank=_integer(v, "LOCAL_RANK", 0),
            rank=_integer(v, "RANK", 0),
            world_size=_integer(v, "WORLD_SIZE", 1, least=1),
            node_rank=_integer(v, "NODE_RANK", 0),
            on_peer_loss=_one_of(v, "FIREFLYER_ON_PEER_LOSS", ON_PEER_LOSS),
            backend=_one_of(v, "FIREFLYER_BACKEND", BACKENDS),
            falls_back=_falls_back(v),
            numerics=_one_of(v, "FIREFLYER_NUMERICS", NUMERICS),
            nvlink=_one_of(v, "FIREFLYER_NVLINK", NVLINK),
            nvlink_least_bytes=_integer(v, "FIREFLYER_NVLINK_LEAST_BYTES", NVLINK_LEAST_BYTES),
            run_dir=run_dir if run_dir.is_dir() else None,
            checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir else None,
            interval_seconds=_seconds(v, "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS", INTERVAL_SECONDS),
            keep_last=_integer(v, "FIREFLYER_CHECKPOINT_KEEP_LAST", KEEP_LAST, least=1),
            resume=_checkpoint_name(v, "FIREFLYER_RESUME"),
            last_checkpoint=_checkpoint_name(v, "FIREFLYER_LAST_CHECKPOINT"),
        )


def parse_checkpoint_name(text: str) -> tuple[int, int] | None:
    """Attempt and step of a name such as ``attempt-1/step-120``; none if it is not such a name."""
    match = _CHECKPOINT_NAME.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def _integer(variables: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    text = variables.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {text!r}")
    return value


def _one_of(variables: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of `words`; the first by default."""
    text = variables.get(name) or words[0]
    if text not in words:
        raise ValueError(f"{name} must be {' or '.join(words)}, not {text!r}")
    return text


def _falls_back(variables: Mapping[str, str]) -> bool:
    text = variables.get(FALLBACK) or ""
    if text not in ("", "gloo"):
        raise ValueError(f"{FALLBACK} must be gloo or not set, not {text!r}")
    return text == "gloo"


def _seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number of seconds, not {text!r}")
    return value


def _checkpoint_name(variables: Mapping[str, str], name: str) -> tuple[int, int] | None:
    text = variables.get(name)
    if not text:
        return None
    parsed = parse_checkpoint_name(text)
    if parsed is None:
        raise ValueError(f"{name} must look like attempt-1/step-120, not {text!r}")
    return parsed
