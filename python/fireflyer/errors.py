"""The errors of checkpoints."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or loaded. The message names the file or the state."""


class CheckpointUnavailable(CheckpointError):
    """Checkpoints exist and cannot be read now: a failing disk or server, too little memory, or a volume that is not mounted.

    Nothing is wrong with them as far as is known, so no other one may be taken. In a job the attempt
    ends and the next one tries again.
    """


class NoUsableCheckpoint(CheckpointError):
    """Checkpoints exist, and none of them can be loaded. The message says what was tried.

    In a job this ends the job. ``resume(fresh=True)`` starts without them.
    """


class StateError(CheckpointError):
    """A state holds something that cannot be stored. The message names it."""
