"""The error of collectives. Apart from the other errors, because importing it imports PyTorch."""

from torch.distributed import DistBackendError


class HFReduceError(DistBackendError):
    """A collective failed, or the sidecar cannot be used. The message names the cause.

    Every rank that took part gets the same cause. It says "timed out" where time was up. PyTorch's C++ code
    (DistributedDataParallel's backward pass) may turn it into a plain ``RuntimeError`` whose text starts with this
    class's name.
    """
