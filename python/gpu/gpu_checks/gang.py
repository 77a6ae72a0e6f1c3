"""Ranks over real sidecars on the loopback, all of them on one GPU."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from fireflyer.sidecars import Sidecars, free_port

from . import kit
from .processes import LIMIT_SECONDS, Process

#: How long a rank waits for the others in a collective.
TIMEOUT_SECONDS = 60.0


class Gang:
    """The sidecars of `nodes` nodes and their ranks, one a node unless `procs` says otherwise: each calls a function of a
    module. All end with the context. With another `backend` there are no sidecars."""

    def __init__(
        self,
        module: str,
        function: str,
        arguments: Mapping[str, Any],
        *,
        nodes: int = 2,
        procs: int = 1,
        backend: str = "hfreduce",
        variables: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._called = {
            "module": module,
            "function": function,
            "arguments": dict(arguments),
            "backend": backend,
            "timeout_seconds": timeout_seconds,
        }
        self._nodes, self._procs, self._backend = nodes, procs, backend
        self._variables, self._before = dict(variables or {}), before
        self.sidecars: Sidecars | None = None
        self.ranks: list[Process] = []

    def __enter__(self) -> Gang:
        with ExitStack() as ends:
            if self._backend == "hfreduce":
                program = kit.current().sidecar
                self.sidecars = ends.enter_context(Sidecars(program, self._nodes, self._procs))
            port = free_port()
            for rank in range(self._nodes * self._procs):
                started = Process(
                    __name__,
                    "member",
                    self._called,
                    variables={**self._environment(rank, port), **self._variables},
                    before=self._before,
                )
                self.ranks.append(ends.enter_context(started))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        node, local = divmod(rank, self._procs)
        run_dir = "" if self.sidecars is None else str(self.sidecars.run_dir(node))
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(self._nodes * self._procs),
            "NODE_RANK": str(node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            # Some builds of PyTorch have no libuv, which its store asks for by default.
            "USE_LIBUV": "0",
            "FIREFLYER_RUN_DIR": run_dir or "/nonexistent",
        }

    def values(self, limit_seconds: float = LIMIT_SECONDS) -> list[Any]:
        """What the ranks returned; the first error of one is raised."""
        return [rank.value(limit_seconds) for rank in self.ranks]


def run(module: str, function: str, arguments: Mapping[str, Any], **options: Any) -> list[Any]:
    """What the ranks of a gang returned; options as for `Gang`."""
    with Gang(module, function, arguments, **options) as gang:
        return gang.values()


def member(
    module: str,
    function: str,
    arguments: dict[str, Any],
    backend: str,
    timeout_seconds: float,
) -> Any:
    """A rank: makes the group, then calls the function."""
    import torch.distributed as dist

    from . import device

    device.use()
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    if backend == "hfreduce":
        import fireflyer

        ours = fireflyer.backend_of()
        assert ours is not None and ours.uses_sidecar, "the group goes over gloo, not the sidecar"
    return getattr(importlib.import_module(module), function)(**arguments)


def rank() -> int:
    """This process's rank."""
    return int(os.environ["RANK"])
