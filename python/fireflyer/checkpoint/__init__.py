"""Checkpoints that survive interruption, node loss and a kill at any moment.

A checkpoint is a directory ``attempt-N/step-S`` of shard files and a manifest that is written last. The
manifest lists, for every tensor, its file, offset, length, type, shape and SHA-256. In a job, importing this
installs a SIGTERM handler: the process is asked to stop, not ended (see `Checkpoint.step`). In a process
of multiprocessing only `Checkpoint` and `should_stop` do that. Outside a job no handler is installed.
"""

import multiprocessing

from . import stop
from .checkpoint import Checkpoint, should_stop
from .stop import request as request_stop

__all__ = ["Checkpoint", "request_stop", "should_stop"]

# Not in a worker that the training process spawned: it is ended by SIGTERM and must die of it. While such
# a worker still reads what it is to do, it has no parent process yet, but it is marked.
_reads = getattr(multiprocessing.current_process(), "_inheriting", False)
if multiprocessing.parent_process() is None and not _reads:
    stop.install()
