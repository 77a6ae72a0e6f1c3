"""The errors of this package."""


class HFReduceError(RuntimeError):
    """A collective failed, or the sidecar cannot be used. The message names the cause.

    Every rank that took part gets the same cause. PyTorch's C++ code (DistributedDataParallel's
    backward pass) may turn it into a plain ``RuntimeError`` whose text starts with this class's name.
    """


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or loaded. The message names the file or the state."""
