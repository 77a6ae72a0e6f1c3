"""Memory as a sidecar shares it: a memfd whose size is sealed, which both write, or of which others only read."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

#: Python's `fcntl` has no name for it.
_F_SEAL_FUTURE_WRITE = 0x0010
_PROT = {False: mmap.PROT_READ | mmap.PROT_WRITE, True: mmap.PROT_READ}
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Mapping:
    """A mapping of a descriptor, by its address: `mmap` of Python has none for what is mapped for reading."""

    def __init__(self, fd: int, nbytes: int, *, read_only: bool = False) -> None:
        self.nbytes = nbytes
        start = _libc.mmap(None, nbytes, _PROT[read_only], mmap.MAP_SHARED, fd, 0)
        if start is None or start == _MAP_FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"failed to map {nbytes} bytes: {os.strerror(error)}")
        self.start: int = start

    def close(self) -> None:
        """Unmaps it."""
        _libc.munmap(self.start, self.nbytes)

    def fill(self, offset: int, content: bytes) -> None:
        """Writes bytes at a place of it."""
        ctypes.memmove(self.start + offset, content, len(content))

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes at a place of it."""
        return ctypes.string_at(self.start + offset, nbytes)

    def touch(self, value: int) -> None:
        """Fills it, so that all its pages are there."""
        ctypes.memset(self.start, value, self.nbytes)


def create(nbytes: int) -> int:
    """The descriptor of a segment that everybody who has it writes to."""
    fd = os.memfd_create("gpu-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    return fd


def seal(fd: int, *, read_only: bool) -> None:
    """Seals its size, and with `read_only` lets nobody map it for writing from here on."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | (_F_SEAL_FUTURE_WRITE if read_only else 0))
