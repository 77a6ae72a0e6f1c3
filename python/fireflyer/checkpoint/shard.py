"""The bytes of tensors in shard files: one after the other, each at an aligned offset, each with its sum.

Owns the container. What a tensor is called and which shard it belongs to is the manifest's. One tensor at
a time is in memory beside the state itself.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, CheckpointUnavailable
from .disk import MISSING, Disk
from .state import DTYPES, dtype_name

#: Offsets are multiples of this, in bytes: a page, so that a shard can be mapped or read directly.
ALIGNMENT = 4096
#: Read and hashed at once, in bytes.
READ_BYTES = 8 << 20


def write(
    disk: Disk, path: Path, tensors: Iterable[tuple[str, torch.Tensor]]
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Writes the tensors to a new shard, durably. Returns its length and the tensors' index."""
    index: dict[str, dict[str, Any]] = {}
    end = 0

    def chunks() -> Iterator[memoryview]:
        nonlocal end
        for name, tensor in tensors:
            padding = -end % ALIGNMENT
            if padding:
                yield memoryview(bytes(padding))
            local = tensor.cpu().contiguous()
            data = _bytes(local)
            index[name] = {
                "file": path.name,
                "offset": end + padding,
                "length": len(data),
                "dtype": dtype_name(local),
                "shape": list(local.shape),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
            end += padding + len(data)
            yield data

    disk.write(path, chunks())
    return end, index


def read(disk: Disk, directory: Path, index: dict[str, dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Reads and verifies the tensors of `index`.

    A `CheckpointError` names the one that is damaged, a `CheckpointUnavailable` the file that cannot be read now.
    """
    tensors = {}

    def place(name: str, entry: dict[str, Any]) -> memoryview:
        try:
            tensors[name] = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
        except (RuntimeError, MemoryError) as error:  # Its size was compared with the file's.
            raise CheckpointUnavailable(f"failed to take memory for {name}: {error}") from error
        return _bytes(tensors[name])

    _read(disk, directory, index, place)
    return tensors


def verify(disk: Disk, directory: Path, index: dict[str, dict[str, Any]]) -> None:
    """Reads the tensors of `index` back and forgets them; raises what `read` does."""
    for file in {entry["file"] for entry in index.values()}:
        _forget_pages(disk, directory / file)
    _read(disk, directory, index, lambda name, entry: None)


def _read(
    disk: Disk,
    directory: Path,
    index: dict[str, dict[str, Any]],
    place: Callable[[str, dict[str, Any]], memoryview | None],
) -> None:
    """Reads and verifies the tensors of `index`, into the memory that `place` gives for each."""
    by_file: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, entry in index.items():
        by_file.setdefault(entry["file"], []).append((name, entry))
    for file_name, entries in sorted(by_file.items()):
        path = directory / file_name
        try:
            with disk.open(path) as file:
                for name, entry in sorted(entries, key=lambda one: one[1]["offset"]):
                    _read_one(file, path, name, entry, place)
        except MISSING as error:
            raise CheckpointError(f"failed to read {path}: {error.strerror}") from error
        except (OSError, MemoryError) as error:
            raise CheckpointUnavailable(
                f"failed to read {path}: {error or 'out of memory'}"
            ) from error


def _read_one(
    file: FileIO,
    path: Path,
    name: str,
    entry: dict[str, Any],
    place: Callable[[str, dict[str, Any]], memoryview | None],
) -> None:
    dtype, length = DTYPES[entry["dtype"]], entry["length"]
    if math.prod(entry["shape"]) * dtype.itemsize != length:
        raise CheckpointError(
            f"failed to read {path}: {name} has {length} bytes, which is not its shape"
        )
    # Before memory is taken for it.
    if os.fstat(file.fileno()).st_size < entry["offset"] + length:
        raise CheckpointError(f"failed to read {path}: it ends inside {name}")
    data = place(name, entry)
    window = memoryview(bytearray(min(length, READ_BYTES) if data is None else 0))
    file.seek(entry["offset"])
    digest = hashlib.sha256()
    done = 0
    while done < length:
        size = min(READ_BYTES, length - done)
        part = data[done : done + size] if data is not None else window[:size]
        count = file.readinto(part)
        if not count:
            raise CheckpointError(f"failed to read {path}: it ends inside {name}")
        digest.update(part[:count])
        done += count
    if digest.hexdigest() != entry["sha256"]:
        raise CheckpointError(f"failed to verify {path}: the bytes of {name} have another SHA-256")


def _forget_pages(disk: Disk, path: Path) -> None:
    """Makes the next read of a file ask the disk, where the system lets it."""
    try:
        with disk.open(path) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        pass  # The read itself says what is wrong.


def _bytes(tensor: torch.Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
