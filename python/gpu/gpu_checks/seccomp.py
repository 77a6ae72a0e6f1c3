"""The system calls that container runtimes refuse by default, refused to this process and those that it starts.

Only those that a program of ours or a driver might want: policies of memory, keys, tracing, other processes' memory. The full
list is the runtime's own, which a check in a pod meets by itself.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

#: Numbers of x86-64: ptrace is left out, which newer runtimes allow.
_REFUSED = {
    "move_pages": 279, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239,
    "add_key": 248, "request_key": 249, "keyctl": 250, "perf_event_open": 298,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "bpf": 321,
    "userfaultfd": 323, "io_uring_setup": 425, "unshare": 272, "setns": 308, "mount": 165,
}  # fmt: skip

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
#: Of the classic packet filter: load a word, jump if equal, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def restrict() -> bool:
    """Refuses them from here on, for good. False where the numbers are others."""
    if platform.machine() != "x86_64":
        return False
    numbers = sorted(_REFUSED.values())
    code = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for at, number in enumerate(numbers):
        code.append(struct.pack("HBBI", _JUMP_IF_EQUAL, len(numbers) - at, 0, number))
    code.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    code.append(struct.pack("HBBI", _RETURN, 0, 0, _REFUSE))
    text = b"".join(code)
    buffer = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    pointer = ctypes.create_string_buffer(program, len(program))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "failed to give up privileges")
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_void_p(ctypes.addressof(pointer)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "failed to refuse system calls")
    return True
