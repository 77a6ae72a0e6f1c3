"""What copies cost the trainer's processor: ``python3 python/benches/copies.py``, with FIREFLYER_SIDECAR set.

Two ranks of one node take steps of a model that is nothing but 64 MiB of parameters. Printed is processor time, user and
system, of one step of rank 0, with autograd and optimizer, and the bytes that were copied to and from the sidecar's
memory for each byte of gradients; the sidecar's own work is not in it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fireflyer
import gang
from fireflyer import hooks
from sidecars import Sidecars

TENSORS, COUNT, STEPS, WARM = 16, 1 << 20, 8, 3


class Model(torch.nn.Module):
    """Parameters, and a loss whose gradients are made in one pass over them."""

    def __init__(self) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList(torch.ones(COUNT) for _ in range(TENSORS))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return sum((one * factor).sum() for one in self.all)


def steps(how: str) -> tuple[float, float, float]:
    """Seconds of a step, and bytes copied in and out for each byte of gradients."""
    model, client = Model(), dist.group.WORLD.communicator.client
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    arena = ddp = None
    if how.startswith("Arena"):
        arena = fireflyer.Arena(model)
    else:
        ddp = torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view="views" in how, bucket_cap_mb=4
        )
        if "hook" in how:
            ddp.register_comm_hook(hooks.State(), hooks.bf16 if "bf16" in how else hooks.allreduce)
    copied = 0, 0
    for step in range(STEPS + WARM):
        if step == WARM:
            dist.barrier()
            start, copied = time.process_time(), (client.copied_in, client.copied_out)
        if arena is not None and "optimizer" not in how:
            arena.zero_grad()
        else:
            optimizer.zero_grad()
        (ddp or model)(torch.full((COUNT,), float(step))).backward()
        if arena is not None:
            arena.wait()
        if "clipped" in how:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = (time.process_time() - start) / STEPS
    nbytes = 4 * COUNT * TENSORS * STEPS
    moved = [client.copied_in - copied[0], client.copied_out - copied[1]]
    if arena is not None:
        moved = [a + b * STEPS // (STEPS + WARM) for a, b in zip(moved, arena.copied_bytes)]
    return seconds, moved[0] / nbytes, moved[1] / nbytes


CASES = [
    "DDP",
    "DDP, gradients as views",
    "DDP, hook",
    "DDP, bf16 hook, gradients as views",
    "Arena",
    "Arena, optimizer's zero_grad",
    "DDP, clipped",
    "Arena, clipped",
]


def run() -> list[tuple[float, float, float]]:
    """All cases."""
    return [steps(how) for how in CASES]


def main() -> None:
    """Prints a table."""
    with Sidecars(1, 2) as sidecars:
        results = gang.successes(sidecars.run(run, deadline_seconds=400))[0]
    print(f"{'a step over 64 MiB of gradients':40} {'ms':>8} {'in':>6} {'out':>6}")
    for how, (seconds, copied_in, copied_out) in zip(CASES, results):
        print(f"{how:40} {seconds * 1e3:8.1f} {copied_in:6.2f} {copied_out:6.2f}")


if __name__ == "__main__":
    main()
