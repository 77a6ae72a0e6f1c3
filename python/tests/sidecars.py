"""Real sidecars on the loopback, one for each node of a gang.

Owns their processes, run directories and roster. The program is named by FIREFLYER_SIDECAR.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import gang

#: The sidecar's program; tests that need it are skipped without.
PROGRAM = os.environ.get("FIREFLYER_SIDECAR", "")

needed = unittest.skipUnless(PROGRAM, "FIREFLYER_SIDECAR names no sidecar")

#: A sidecar that is not ready by then never is, in seconds.
_READY_SECONDS = 30.0


class Sidecars:
    """The sidecars of `nodes` nodes with `procs` ranks each, run with `flags`. A context manager."""

    #: What the launcher tells the ranks.
    on_peer_loss = "Restart"

    def __init__(self, nodes: int, procs: int, *flags: str) -> None:
        self.nodes = nodes
        self.flags = flags
        self.procs = procs
        self.processes: list[subprocess.Popen] = []

    def __enter__(self) -> Sidecars:
        self._folder = tempfile.TemporaryDirectory(prefix="sidecars")
        self.folder = Path(self._folder.name)
        members = [
            {
                "rank": rank,
                "address": "127.0.0.1",
                "port": gang.free_port(),
                "name": f"node-{rank}",
                "zone": "a",
            }
            for rank in range(self.nodes)
        ]
        roster = json.dumps({"procsPerNode": self.procs, "nodes": members})
        (self.folder / "roster.json").write_text(roster)
        for rank in range(self.nodes):
            self.run_dir(rank).mkdir()
            self.start(rank)
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: Any) -> None:
        if kind is not None:
            print(self.logs(), file=sys.stderr)
        for process in self.processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def command(self, rank: int) -> list[str]:
        """Starts the sidecar of a node."""
        command = [PROGRAM, "serve", f"--run-dir={self.run_dir(rank)}", f"--rank={rank}"]
        command += [f"--roster={self.folder}/roster.json", "--metrics-listen=127.0.0.1:0"]
        return [*command, *self.flags]

    def start(self, rank: int) -> None:
        """Starts the sidecar of a node, in place of the one before if there was one."""
        with open(self.log(rank), "ab") as log:
            process = subprocess.Popen(self.command(rank), stdout=log, stderr=subprocess.STDOUT)
        self.processes[rank : rank + 1] = [process]

    def run_dir(self, node: int) -> Path:
        """The run directory of a node."""
        return self.folder / f"node-{node}"

    def log(self, node: int) -> Path:
        """What the sidecar of a node printed."""
        return self.folder / f"node-{node}.log"

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

    def logs(self) -> str:
        """What all of them printed."""
        return "\n".join(self.log(node).read_text(errors="replace") for node in range(self.nodes))

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + _READY_SECONDS
        for node in range(self.nodes):
            ready = [PROGRAM, "ready", f"--run-dir={self.run_dir(node)}"]
            while subprocess.run(ready, stdout=subprocess.DEVNULL, check=False).returncode != 0:
                if time.monotonic() > end or self.processes[node].poll() is not None:
                    raise AssertionError(f"sidecar {node} is not ready:\n{self.logs()}")
                time.sleep(0.02)
