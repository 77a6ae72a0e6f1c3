"""Sidecars on the loopback of this machine, one for each simulated node, without a cluster."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .limits import READY_SECONDS

_PAUSE_SECONDS = 0.02


class NotReadyError(Exception):
    """The sidecars did not join; the message has what they printed."""


class Sidecars:
    """The sidecars of `nodes` nodes with `procs` ranks each, run with `flags`; killed on leaving the context."""

    def __init__(self, program: str, nodes: int, procs: int, *flags: str) -> None:
        self.program = program
        self.nodes = nodes
        self.procs = procs
        self.flags = flags
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Sidecars:
        self._folder = tempfile.TemporaryDirectory(prefix="fireflyer-")
        self.folder = Path(self._folder.name)
        first = free_port(self.nodes)
        members = [
            {
                "rank": rank,
                "address": "127.0.0.1",
                "port": first + rank,
                "name": f"node-{rank}",
                "zone": "a",
            }
            for rank in range(self.nodes)
        ]
        roster = json.dumps({"procsPerNode": self.procs, "nodes": members})
        (self.folder / "roster.json").write_text(roster)
        try:
            for rank in range(self.nodes):
                self.run_dir(rank).mkdir()
                self.start(rank)
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def command(self, rank: int) -> list[str]:
        """What starts the sidecar of a node."""
        command = [self.program, "serve", f"--run-dir={self.run_dir(rank)}", f"--rank={rank}"]
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

    def logs(self) -> str:
        """What all of them printed."""
        return "\n".join(self.log(node).read_text(errors="replace") for node in range(self.nodes))

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        for node in range(self.nodes):
            ready = [self.program, "ready", f"--run-dir={self.run_dir(node)}"]
            while subprocess.run(ready, stdout=subprocess.DEVNULL, check=False).returncode != 0:
                if time.monotonic() > end or self.processes[node].poll() is not None:
                    raise NotReadyError(
                        f"the sidecar of node {node} did not join. The sidecars' output:\n{self.logs()}"
                    )
                time.sleep(_PAUSE_SECONDS)


def free_port(count: int = 1) -> int:
    """A port that was free a moment ago, and so were the next `count - 1`.

    Below the range that the kernel hands out: no connection of another process can take it meanwhile.
    """
    for _ in range(100):
        first = random.randrange(20_000, 30_000)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise OSError("failed to find free ports between 20000 and 30000")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True
