"""Real sidecars whose ranks are a gang of the tests. The program is named by FIREFLYER_SIDECAR."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any

import gang
from fireflyer import sidecars

#: The sidecar's program; tests that need it are skipped without.
PROGRAM = os.environ.get("FIREFLYER_SIDECAR", "")

needed = unittest.skipUnless(PROGRAM, "FIREFLYER_SIDECAR names no sidecar")


class Sidecars(sidecars.Sidecars):
    """Prints what they printed when a test fails."""

    #: What the launcher sets for the ranks.
    on_peer_loss = "Restart"

    def __init__(self, nodes: int, procs: int, *flags: str) -> None:
        super().__init__(PROGRAM, nodes, procs, *flags)

    def __exit__(self, kind: type[BaseException] | None = None, *others: object) -> None:
        if kind is not None:
            print(self.logs(), file=sys.stderr)
        super().__exit__(kind, *others)

    def variables(self) -> list[dict[str, str]]:
        """The environment of each rank."""
        return [
            {
                "FIREFLYER_RUN_DIR": str(self.run_dir(node)),
                "FIREFLYER_ON_PEER_LOSS": self.on_peer_loss,
                "NODE_RANK": str(node),
                "LOCAL_RANK": str(local),
            }
            for node in range(self.nodes)
            for local in range(self.procs)
        ]

    def run(self, function: Any, *arguments: Any, **options: Any) -> list[Any]:
        """Calls `function` in every rank of the gang, over hfreduce."""
        options.setdefault("variables", self.variables())
        return gang.run(
            function, self.nodes * self.procs, *arguments, backend="hfreduce", **options
        )
