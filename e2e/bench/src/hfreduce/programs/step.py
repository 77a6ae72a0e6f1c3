"""A training step of a model that is nothing but square layers, with its gradients exchanged in some way or not at all,
under the conductor's words: how much longer a step takes than one without exchange is what the exchange costs the training.

Usage: step.py EXCHANGE CONDUCTOR MASTER INTERFACE PROCS NODE...
EXCHANGE is one of `alone`, `gloo`, `hfreduce`, `hook` and `arena`.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist

#: Rows of a rank's batch: two cores, with the plain BLAS of the trainer's root, then compute about as long as Gloo communicates.
ROWS = 1
#: Where the conductor's folder is, with the run directory of each node.
FOLDER = Path("/tmp/bench")


class Rank:
    """One rank, its model and what exchanges the gradients."""

    def __init__(self, exchange: str, rank: int) -> None:
        self._exchange = exchange
        self._rank = rank
        self.end()

    def end(self) -> None:
        """Frees the model."""
        self._model: Any = None
        self._arena: Any = None
        self._optimizer: Any = None
        self._rows = torch.empty(0)

    def case(self, size: int, tensors: int, dtype: str) -> str:
        """Makes the model and takes a step; all ranks then have to hold the same, and another than before."""
        self.end()
        width = math.isqrt(size // 4)
        if dtype != "f32" or width * width * 4 != size:
            return "failed the layers of a step are square and f32"
        torch.manual_seed(0)
        layers: list[torch.nn.Module] = []
        for _ in range(tensors):
            layer = torch.nn.Linear(width, width, bias=False)
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            layers += [layer, torch.nn.ReLU()]
        self._model = torch.nn.Sequential(*layers)
        before = self._sum()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        torch.manual_seed(1 + self._rank)
        self._rows = torch.randn(ROWS, width)
        self._wrap()
        self.run()
        after = self._sum()
        if self._exchange == "alone":
            return "ok"
        sums = [torch.zeros_like(after) for _ in range(dist.get_world_size())]
        dist.all_gather(sums, after)
        alike = all(torch.equal(one, after) for one in sums) and not torch.equal(before, after)
        return "ok" if alike else "failed the ranks have different models after a step"

    def run(self) -> None:
        """Takes a step."""
        if self._arena is not None:
            self._arena.zero_grad()
        else:
            self._optimizer.zero_grad()
        self._model(self._rows).square().mean().backward()
        if self._arena is not None:
            self._arena.wait()
        self._optimizer.step()

    def _wrap(self) -> None:
        if self._exchange == "alone":
            return
        if self._exchange == "arena":
            import fireflyer

            self._arena = fireflyer.Arena(self._model)
            return
        self._model = torch.nn.parallel.DistributedDataParallel(self._model)
        if self._exchange == "hook":
            from fireflyer import hooks

            self._model.register_comm_hook(hooks.State(), hooks.allreduce)

    def _sum(self) -> torch.Tensor:
        weights = (one.detach().double() for one in self._model.parameters())
        return torch.stack([one.sum() for one in weights])


def main() -> None:
    """Forks the ranks."""
    exchange, conductor, master, interface, procs, *nodes = sys.argv[1:]

    def make(rank: int, world: int) -> Rank:
        node, local_rank = divmod(rank, int(procs))
        os.environ |= {
            "GLOO_SOCKET_IFNAME": interface,
            "USE_LIBUV": "0",
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(world),
            "FIREFLYER_RUN_DIR": str(FOLDER / f"node-{node}"),
        }
        torch.set_num_threads(1)
        if exchange != "alone":
            backend = "gloo" if exchange == "gloo" else "hfreduce"
            init = f"tcp://{master}"
            dist.init_process_group(backend, init_method=init, rank=rank, world_size=world)
            # Without a sidecar it would go over gloo, and nobody would notice.
            if backend == "hfreduce" and not dist.group.WORLD.uses_sidecar:
                raise RuntimeError("hfreduce has found no sidecar")
        return Rank(exchange, rank)

    ranks.fork(conductor, int(procs), nodes, make)


main()
