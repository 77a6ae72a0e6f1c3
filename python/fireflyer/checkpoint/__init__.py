"""Checkpoints that survive interruption, node loss and a kill at any moment.

A checkpoint is a directory ``attempt-N/step-S`` of shard files and a manifest that is written last. The
manifest lists, for every tensor, its file, offset, length, type, shape and SHA-256. Importing this
installs a SIGTERM handler: the process is asked to stop, not ended (see `Checkpoint.step`).
"""

import multiprocessing

from . import stop
from .checkpoint import Checkpoint, should_stop
from .stop import request as request_stop

__all__ = ["Checkpoint", "request_stop", "should_stop"]

# Not in a worker that the training process spawned: it is ended by SIGTERM and must die of it.
if multiprocessing.parent_process() is None:
    stop.install()
