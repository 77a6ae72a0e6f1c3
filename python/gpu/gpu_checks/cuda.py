"""CUDA's driver below PyTorch: the few calls that checks make by themselves, with its errors as exceptions."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from . import kit

PORTABLE, READ_ONLY = 1, 8
#: Whether the device takes host memory that is mapped for reading.
READ_ONLY_HOST_REGISTER = 113
#: A stream that does not wait for the default stream.
_NON_BLOCKING = 1
_LAZY_PEER_ACCESS = 1
IPC_HANDLE_BYTES = 64

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, c_void_p),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuMemGetInfo_v2": (c_void_p, c_void_p),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuIpcGetMemHandle": (c_void_p, c_uint64),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuModuleLoadData": (c_void_p, c_char_p),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
}


class CudaError(Exception):
    """What the driver refused."""

    def __init__(self, function: str, status: int, text: str) -> None:
        super().__init__(f"failed to call {function}: CUDA says {text} ({status})")
        self.status = status


class _IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * IPC_HANDLE_BYTES)]


class Cuda:
    """The first GPU and its primary context, current in the thread that makes this."""

    def __init__(self) -> None:
        path = kit.current().driver
        self.library = ctypes.CDLL(path or "libcuda.so.1")
        #: A driver for machines without GPUs: it knows fewer kernels, has no rates, and does not look at mappings.
        self.is_stand_in = hasattr(self.library, "fake_seed")
        if self.is_stand_in:
            self.library.fake_seed(c_uint64(1), c_int(1))
        self("cuInit", 0)
        device, context = c_int(), c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxPushCurrent_v2", context)
        self.device = device.value

    def has(self, function: str) -> bool:
        """Whether the driver has a function; the stand-in lacks some."""
        return hasattr(self.library, function)

    def __call__(self, function: str, *arguments: Any) -> None:
        """Calls a function of the driver."""
        status = self.status(function, *arguments)
        if status != 0:
            text = c_char_p()
            known = self.status("cuGetErrorString", status, ctypes.byref(text)) == 0
            said = text.value.decode() if known and text.value else "an error without a name"
            raise CudaError(function, status, said)

    def status(self, function: str, *arguments: Any) -> int:
        """The same; what the driver answers."""
        called = getattr(self.library, function)
        called.argtypes, called.restype = _SIGNATURES[function], c_int
        return called(*arguments)

    def attribute(self, number: int) -> int:
        """An attribute of the GPU; 0 of one that the driver does not know."""
        value = c_int()
        self.status("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def allocate(self, nbytes: int) -> int:
        """Memory of the GPU."""
        start = c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(start), nbytes)
        return start.value

    def free(self, start: int) -> None:
        """Lets it go."""
        self("cuMemFree_v2", start)

    def host(self, nbytes: int) -> int:
        """Memory of the host that the driver has allocated, pinned."""
        start = c_void_p()
        self("cuMemHostAlloc", ctypes.byref(start), nbytes, PORTABLE)
        return start.value or 0

    def used_bytes(self) -> int | None:
        """Memory of the GPU that is in use, by whomever."""
        if not self.has("cuMemGetInfo_v2"):
            return None
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def stream(self) -> int:
        """A stream that does not wait for the default one."""
        handle = c_void_p()
        self("cuStreamCreate", ctypes.byref(handle), _NON_BLOCKING)
        return handle.value or 0

    def event(self, stream: int) -> int:
        """The end of all that a stream was given so far, with its time."""
        handle = c_void_p()
        self("cuEventCreate", ctypes.byref(handle), 0)
        self("cuEventRecord", handle, stream)
        return handle.value or 0

    def wait(self, stream: int) -> None:
        """Waits for all that a stream was given so far."""
        event = self.event(stream)
        self("cuEventSynchronize", event)
        self("cuEventDestroy_v2", event)

    def seconds_between(self, first: int, second: int) -> float:
        """The time between two events that have come."""
        elapsed = ctypes.c_float()
        self("cuEventElapsedTime", ctypes.byref(elapsed), first, second)
        return elapsed.value / 1000

    def write(self, target: int, content: bytes, stream: int) -> None:
        """Copies bytes to the GPU, and waits."""
        with self._copied(content) as host:
            self("cuMemcpyHtoDAsync_v2", target, host, len(content), stream)
            self.wait(stream)

    def read(self, source: int, nbytes: int, stream: int) -> bytes:
        """Copies bytes from the GPU, and waits."""
        with self._copied(bytes(nbytes)) as host:
            self("cuMemcpyDtoHAsync_v2", host, source, nbytes, stream)
            self.wait(stream)
            return ctypes.string_at(host, nbytes)

    @contextlib.contextmanager
    def _copied(self, content: bytes) -> Iterator[int]:
        """Where a copy of these bytes lies. The stand-in copies between registered memory alone."""
        buffer = ctypes.create_string_buffer(content, len(content))
        host = ctypes.addressof(buffer)
        if self.is_stand_in:
            self("cuMemHostRegister_v2", host, len(content), PORTABLE)
        yield host
        if self.is_stand_in:
            self("cuMemHostUnregister", host)

    def export(self, start: int) -> bytes:
        """What another process opens memory of the GPU by."""
        handle = _IpcHandle()
        self("cuIpcGetMemHandle", ctypes.byref(handle), start)
        return bytes(handle.bytes)

    def open(self, exported: bytes) -> int:
        """Opens memory that another process has exported."""
        function = self.library.cuIpcOpenMemHandle_v2
        function.argtypes, function.restype = (c_void_p, _IpcHandle, c_uint), c_int
        start, handle = c_uint64(), _IpcHandle.from_buffer_copy(exported)
        status = function(ctypes.byref(start), handle, _LAZY_PEER_ACCESS)
        if status != 0:
            raise CudaError("cuIpcOpenMemHandle_v2", status, "no memory by this handle")
        return start.value

    def module(self, text: str) -> int:
        """Has the driver translate kernels."""
        module = c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), text.encode() + b"\0")
        return module.value or 0

    def kernel(self, module: int, name: str) -> int | None:
        """A kernel of a module; None if it has none of this name."""
        function = c_void_p()
        status = self.status("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function.value if status == 0 else None

    def launch(self, kernel: int, blocks: int, threads: int, stream: int, *parameters: Any) -> None:
        """Gives a kernel to a stream; its parameters are values of ctypes."""
        places = (c_void_p * len(parameters))(*(ctypes.addressof(one) for one in parameters))
        self(
            "cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, stream,
            ctypes.cast(places, c_void_p), None,
        )  # fmt: skip


def kernels() -> str:
    """The text of our kernels."""
    return Path(kit.current().kernels).read_text()
