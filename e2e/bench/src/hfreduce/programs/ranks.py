"""Ranks of a gang in PyTorch: one process forks all of them, because importing PyTorch costs seconds; each enters its node
and obeys the conductor, a line at a time."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

#: For prctl: the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


class Rank(Protocol):
    """What a rank can do."""

    def case(self, size: int, tensors: int, dtype: str) -> str:
        """Prepares, runs once and says whether the result is right."""

    def run(self) -> None:
        """What is measured, once."""

    def end(self) -> None:
        """Frees what `case` has prepared."""


def _go(rank: Rank, times: int) -> str:
    """Runs so often; all nanoseconds, then each."""
    ends = [time.monotonic_ns()]
    for _ in range(times):
        rank.run()
        ends.append(time.monotonic_ns())
    each = [end - begin for begin, end in zip(ends, ends[1:])]
    return " ".join(map(str, [sum(each), *each]))


def _obey(rank: Rank, words: list[str]) -> str:
    if words[0] == "case":
        return rank.case(int(words[1]), int(words[2]), words[3])
    if words[0] == "go":
        return _go(rank, int(words[1]))
    if words[0] == "end":
        rank.end()
        return "ok"
    return f"failed unknown words {words}"


def _serve(conductor: str, number: int, rank: Rank) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(conductor)
    stream = connection.makefile("rw", buffering=1)
    stream.write(f"rank {number} {os.getpid()}\n")
    for line in stream:
        words = line.split()
        if words == ["quit"]:
            break
        try:
            answer = _obey(rank, words)
        except Exception as error:  # What went wrong is for the conductor to report.
            answer = "failed " + " ".join(str(error).split())
        stream.write(answer + "\n")


def _enter(node: str) -> None:
    """Enters the network namespace of a node, and has its processors: `FILE@CORES`, with commas between them, or none for all."""
    file, _, cores = node.partition("@")
    with open(file, "rb") as namespace:
        os.setns(namespace.fileno(), os.CLONE_NEWNET)
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})


def fork(
    conductor: str, procs: int, nodes: Sequence[str], make: Callable[[int, int], Rank]
) -> None:
    """Forks the ranks, node by node, and ends with the first that fails. `make` makes one of its number and the size of
    the gang, in its own process."""
    world = procs * len(nodes)
    for number in range(world):
        if os.fork() == 0:
            # A bench that is over, however it ends, leaves nobody behind.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                _enter(nodes[number // procs])
                _serve(conductor, number, make(number, world))
            except BaseException:  # A forked copy never goes on as its parent.
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    for _ in range(world):
        _, status = os.wait()
        if status != 0:
            # The others, which may wait for it for ever, die with their parent.
            sys.exit("a rank has failed")
