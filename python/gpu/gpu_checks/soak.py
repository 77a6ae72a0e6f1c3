"""An hour of DDP: the loss is that of another backend to the bit, and what the ranks hold does not grow.

Two ranks add two numbers, whichever backend does it, so both runs have the same bits. The other backend is Gloo, which takes
tensors of a GPU: NCCL takes one rank a GPU.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import device, gang, kit
from .findings import Findings

_BATCH, _LAYERS = 32, 8
_WIDTH, _REHEARSED_WIDTH = 1024, 64
#: Steps whose losses are compared.
_COMPARED_STEPS, _REHEARSED_STEPS = 200, 5
_SLACK_FDS, _SLACK_BYTES = 8, 256 << 20


def check(found: Findings) -> None:
    """Gloo for some steps, then the sidecars until the time is over."""
    run = kit.current()
    compared = _REHEARSED_STEPS if run.rehearses else _COMPARED_STEPS
    limit = run.soak_seconds + 600
    losses = {}
    for backend, seconds in (("gloo", 0.0), ("hfreduce", run.soak_seconds)):
        arguments = {"compared": compared, "seconds": seconds}
        with gang.Gang(__name__, "train", arguments, backend=backend) as ranks:
            seen = ranks.values(limit)
        losses[backend] = [one["losses"] for one in seen]
    found.figure("steps", [one["steps"] for one in seen])
    found.holds(
        f"{compared} losses are those over gloo, to the bit",
        losses["gloo"] == losses["hfreduce"],
        "they differ",
    )
    for rank, one in enumerate(seen):
        found.figure(f"held_rank_{rank}", one["held"])
        before, after = one["held"]
        for what, slack in (("fds", _SLACK_FDS), ("resident", _SLACK_BYTES)):
            found.holds(
                f"{what} are flat (rank {rank})",
                after[what] <= before[what] + slack,
                f"{before[what]} before, {after[what]} after",
            )


def train(compared: int, seconds: float) -> dict[str, Any]:
    """In each rank: the first losses, how many steps there were, and what it held after them and at the end."""
    torch.manual_seed(5)
    width = _REHEARSED_WIDTH if kit.current().rehearses else _WIDTH
    layers = [
        layer for _ in range(_LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())
    ]
    model = torch.nn.Sequential(*layers).to(device.DEVICE)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    random = torch.Generator().manual_seed(dist.get_rank())
    losses: list[str] = []
    steps, end = 0, time.monotonic() + seconds
    held: list[dict[str, int]] = []
    over = torch.zeros(1)
    while steps < compared or not over.item():
        batch = torch.randn(_BATCH, width, generator=random).to(device.DEVICE)
        loss = torch.nn.functional.mse_loss(ddp(batch), batch.roll(1, dims=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps <= compared:
            losses.append(loss.item().hex())
        if steps == compared:
            held.append(_held())
        # The ranks stop together.
        over = torch.tensor([float(time.monotonic() >= end)])
        dist.all_reduce(over, dist.ReduceOp.MAX)
    held.append(_held())
    return {"losses": losses, "steps": steps, "held": held}


def _held() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
    }
