"""``fireflyer run``: a script on this machine, over real sidecars, without a cluster.

Starts one sidecar for each simulated node, and the script's processes with the variables that a job gives
them. The sidecars reduce over the loopback; everything else is as in a job of one machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from .limits import GRACE_SECONDS, PROCS_LIMIT
from .sidecars import NotReadyError, Sidecars, free_port

#: Names the sidecar's program, if it is not in PATH.
SIDECAR = "FIREFLYER_SIDECAR"
_PAUSE_SECONDS = 0.05


class RunError(Exception):
    """Why nothing was run, in words for the terminal."""


def main(arguments: list[str] | None = None) -> int:
    """The command ``fireflyer``; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="fireflyer", description="HFReduce for PyTorch on one machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a training script over real sidecars on this machine",
        description="Runs a script in several processes whose collectives go over real sidecars on "
        "this machine: no cluster and no root needed. Ends with 0 when every process did, else with the first "
        "failure's status.",
    )
    run.add_argument("-n", "--procs", type=int, default=2, help="processes in all (default: 2)")
    run.add_argument(
        "--nodes",
        type=int,
        help="simulated nodes, each with a sidecar (default: 2, or 1 for an odd number of processes)",
    )
    run.add_argument(
        "--sidecar",
        metavar="PROGRAM",
        default=os.environ.get(SIDECAR),
        help=f"the sidecar's program (default: {SIDECAR}, else hfreduce-sidecar in PATH)",
    )
    run.add_argument("script", help="a Python script that calls init_process_group('hfreduce')")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's arguments")
    options = parser.parse_args(arguments)
    # Whoever ends this command ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _run(options)
    except RunError as error:
        print(f"fireflyer run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(options: argparse.Namespace) -> int:
    nodes = options.nodes or (2 if options.procs % 2 == 0 else 1)
    per_node, rest = divmod(options.procs, nodes) if nodes > 0 else (0, 0)
    if not 1 <= per_node <= PROCS_LIMIT or rest:
        raise RunError(
            f"failed to divide {options.procs} processes between {nodes} nodes: use a multiple of the nodes, "
            f"at most {PROCS_LIMIT} for each"
        )
    if not Path(options.script).is_file():
        raise RunError(f"failed to find the script {options.script}")
    program = shutil.which(options.sidecar or "hfreduce-sidecar")
    if program is None:
        raise RunError(
            f"failed to find {options.sidecar or 'hfreduce-sidecar'}: build it with `cargo build --release -p "
            f"hfreduce-sidecar` and name it with --sidecar or {SIDECAR}"
        )
    with ExitStack() as ends:
        try:
            sidecars = ends.enter_context(Sidecars(program, nodes, per_node))
        except NotReadyError as error:
            raise RunError(str(error)) from error
        ranks = _Processes()
        ends.callback(ranks.end)
        port = free_port()
        for rank in range(options.procs):
            node, local_rank = divmod(rank, per_node)
            variables = {
                "RANK": rank,
                "LOCAL_RANK": local_rank,
                "WORLD_SIZE": options.procs,
                "LOCAL_WORLD_SIZE": per_node,
                "NODE_RANK": node,
                "GROUP_RANK": node,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "FIREFLYER_RUN_DIR": sidecars.run_dir(node),
            }
            environment = {
                # As torchrun does: processes that share a machine share its cores.
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                **os.environ,
                **{name: str(value) for name, value in variables.items()},
            }
            ranks.start([sys.executable, options.script, *options.arguments], environment)
        return ranks.wait()


class _Processes:
    """Processes that are ended together."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """Starts one more."""
        self._processes.append(subprocess.Popen(command, env=environment))

    def wait(self) -> int:
        """Waits until all have ended; when one fails, the others have a grace. The first failure's status, or 0."""
        status, deadline = 0, float("inf")
        running = list(self._processes)
        while running and time.monotonic() < deadline:
            for process in [process for process in running if process.poll() is not None]:
                running.remove(process)
                if process.returncode != 0 and status == 0:
                    # Ended by a signal: as a shell says it.
                    code = process.returncode
                    status = code if code > 0 else 128 - code
                    deadline = time.monotonic() + GRACE_SECONDS
            time.sleep(_PAUSE_SECONDS)
        return status

    def end(self) -> None:
        """Asks those that run to end, then makes them."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
