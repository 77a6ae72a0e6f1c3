"""The bytes of tensors in shard files: one after the other, each at an aligned offset, each with its sum.

Owns the container. What a tensor is called and which shard it belongs to is the manifest's. One tensor at
a time is in memory beside the state itself.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from .disk import Disk
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


def read(directory: Path, index: dict[str, dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Reads and verifies the tensors of `index`; a `CheckpointError` names the one that is damaged."""
    by_file: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, entry in index.items():
        by_file.setdefault(entry["file"], []).append((name, entry))
    tensors = {}
    for file_name, entries in sorted(by_file.items()):
        path = directory / file_name
        try:
            with open(path, "rb", buffering=0) as file:
                for name, entry in sorted(entries, key=lambda one: one[1]["offset"]):
                    tensors[name] = _read_one(file, path, name, entry)
        except OSError as error:
            raise CheckpointError(f"failed to read {path}: {error.strerror}") from error
    return tensors


def _read_one(file: Any, path: Path, name: str, entry: dict[str, Any]) -> torch.Tensor:
    dtype, length = DTYPES[entry["dtype"]], entry["length"]
    if math.prod(entry["shape"]) * dtype.itemsize != length:
        raise CheckpointError(
            f"failed to read {path}: {name} has {length} bytes, which is not its shape"
        )
    # Before memory is taken for it.
    if os.fstat(file.fileno()).st_size < entry["offset"] + length:
        raise CheckpointError(f"failed to read {path}: it ends inside {name}")
    tensor = torch.empty(entry["shape"], dtype=dtype)
    data = _bytes(tensor)
    file.seek(entry["offset"])
    digest = hashlib.sha256()
    done = 0
    while done < len(data):
        count = file.readinto(data[done : done + READ_BYTES])
        if not count:
            raise CheckpointError(f"failed to read {path}: it ends inside {name}")
        digest.update(data[done : done + count])
        done += count
    if digest.hexdigest() != entry["sha256"]:
        raise CheckpointError(f"failed to verify {path}: the bytes of {name} have another SHA-256")
    return tensor


def _bytes(tensor: torch.Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
