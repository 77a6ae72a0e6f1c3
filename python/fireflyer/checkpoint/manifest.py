"""The manifest: the one file that makes a directory of shards a checkpoint.

Owns its format, its checks, and what a directory of checkpoints holds. A directory without a manifest is
what an interrupted save left behind. Untrusted bytes are checked here once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..environment import parse_checkpoint_name
from ..errors import CheckpointError, CheckpointUnavailable
from ..limits import MANIFEST_LIMIT_BYTES
from .disk import MISSING, Disk
from .state import DTYPES

NAME = "manifest.json"
FORMAT = "fireflyer-checkpoint/1"
#: How the names of tensors begin that one rank has of its own.
_OWN = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.")


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds."""

    attempt: int
    step: int
    #: Grows with every save into the same directory, across attempts: the largest is the newest.
    sequence: int
    #: How many ranks took part: those that were left.
    world_size: int
    #: Who saved it, for people: job and namespace.
    job: str
    namespace: str
    #: Lengths of the shard files, in bytes.
    shards: dict[str, int]
    #: For every tensor its file, offset, length, dtype, shape and SHA-256.
    tensors: dict[str, dict[str, Any]]
    #: The states that all ranks share, without the tensors.
    state: dict[str, Any]
    #: The states that each rank has of its own, in the order of `members`.
    ranks: list[dict[str, Any]]
    #: How many ranks the gang had; 0 if all of them took part.
    gang_size: int = 0

    @functools.cached_property
    def members(self) -> list[int]:
        """The ranks that took part, in order: those whose tensors are here, because each has a generator's."""
        members = set()
        for name in self.tensors:
            if name.startswith("rank-"):
                rank = _OWN.match(name)
                if rank is None:
                    raise ValueError(f"tensor {name!r} is of no rank")
                members.add(int(rank[1]))
        # Without any tensor of a rank nothing says more than the positions.
        return sorted(members) or list(range(self.world_size))

    @property
    def whose(self) -> str:
        """Who took part, in words."""
        if self.is_of_gang(self.world_size):
            return f"{self.world_size} ranks"
        first = ", ".join(str(rank) for rank in self.members[:8])
        more = f" and {self.world_size - 8} more" if self.world_size > 8 else ""
        return f"{self.world_size} ranks that were left ({first}{more})"

    def is_of_gang(self, size: int) -> bool:
        """Whether all ranks of a gang of `size` took part, so that each of them finds its own states."""
        return self.members == list(range(size)) and self.gang_size in (0, size)

    @property
    def name(self) -> str:
        """Its directory, seen from the directory of checkpoints."""
        return f"attempt-{self.attempt}/step-{self.step}"

    def encode(self) -> tuple[bytes, str]:
        """Its bytes, and their SHA-256 in hex. A `CheckpointError` if it would be too large to be read."""
        value = {"format": FORMAT, **asdict(self)}
        if not self.gang_size:
            # As releases read it that did not know the field.
            del value["gang_size"]
        content = _json({**value, "sha256": _digest(_json(value))})
        if len(content) > MANIFEST_LIMIT_BYTES:
            raise CheckpointError(
                f"the manifest has {len(content)} bytes, at most {MANIFEST_LIMIT_BYTES} can be read: {len(self.tensors)} "
                f"tensors of {self.world_size} ranks are too many; save fewer, larger ones"
            )
        return content, _digest(content)


def read(directory: Path, disk: Disk | None = None) -> tuple[Manifest, str]:
    """The manifest of a checkpoint and its digest.

    A `CheckpointError` says why it cannot be used, a `CheckpointUnavailable` why it cannot be read now.
    """
    path = directory / NAME
    try:
        with (disk or Disk()).open(path) as file:
            content = file.read(MANIFEST_LIMIT_BYTES + 1)
    except MISSING as error:
        raise CheckpointError(f"failed to read {path}: {error.strerror}") from error
    except (OSError, MemoryError) as error:
        raise CheckpointUnavailable(f"failed to read {path}: {error or 'out of memory'}") from error
    if len(content) > MANIFEST_LIMIT_BYTES:
        raise CheckpointError(
            f"failed to read {path}: it is larger than {MANIFEST_LIMIT_BYTES} bytes"
        )
    try:
        value = json.loads(content)
        if value.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        # It holds what is no tensor: step counts, learning rates.
        if value.pop("sha256", None) != _digest(_json(value)):
            raise ValueError("its content has another SHA-256")
        del value["format"]
        manifest = Manifest(**value)
        _check(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"failed to parse {path}: {error}") from error
    except MemoryError as error:
        raise CheckpointUnavailable(f"failed to parse {path}: out of memory") from error
    if numbers(directory) != (manifest.attempt, manifest.step):
        raise CheckpointError(f"failed to use {path}: it describes {manifest.name}")
    return manifest, _digest(content)


@dataclass
class Found:
    """What lies below a directory of checkpoints."""

    #: The checkpoints whose manifests are whole, with their digests, newest first.
    durable: list[tuple[Manifest, str]] = field(default_factory=list)
    #: Names of those whose manifests are damaged, and why.
    damaged: dict[str, str] = field(default_factory=dict)
    #: Names of those whose manifests cannot be read now, and why.
    unavailable: dict[str, str] = field(default_factory=dict)


def find(root: Path, disk: Disk | None = None) -> Found:
    """The checkpoints below `root`. An `OSError` if it cannot be listed."""
    disk = disk or Disk()
    found = Found()
    for directory in step_directories(root, disk):
        name = "/".join(directory.parts[-2:])
        try:
            if disk.exists(directory / NAME):
                found.durable.append(read(directory, disk))
        except (CheckpointUnavailable, OSError, MemoryError) as error:
            found.unavailable[name] = str(error) or "out of memory"
        except CheckpointError as error:
            found.damaged[name] = str(error)
    found.durable.sort(key=lambda one: (one[0].sequence, one[0].attempt, one[0].step), reverse=True)
    return found


def leftovers(root: Path, attempt: int, disk: Disk) -> list[Path]:
    """What saves of `attempt` or of an earlier one left when they were interrupted.

    A later attempt may be saving: then `attempt` is void and does not know it.
    """
    return [
        directory
        for directory in step_directories(root, disk)
        if numbers(directory)[0] <= attempt and not disk.exists(directory / NAME)
    ]


def step_directories(root: Path, disk: Disk) -> list[Path]:
    """All directories below `root` that are named like a checkpoint; none if there is no `root`.

    An `OSError` if they cannot be listed: what cannot be seen must not look like nothing.
    """
    return [
        step
        for attempt in disk.folders(root)
        if attempt.name.startswith("attempt-")
        for step in disk.folders(attempt)
        if parse_checkpoint_name(f"{attempt.name}/{step.name}") is not None
    ]


def numbers(directory: Path) -> tuple[int, int]:
    """Attempt and step in the name of a directory; (-1, -1) if it is named otherwise."""
    return parse_checkpoint_name("/".join(directory.parts[-2:])) or (-1, -1)


def _json(value: dict[str, Any]) -> bytes:
    """The same bytes for the same value, also after it was read back."""
    return json.dumps(value, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check(manifest: Manifest) -> None:
    for name in ("attempt", "step", "sequence", "world_size", "gang_size"):
        if type(getattr(manifest, name)) is not int or getattr(manifest, name) < 0:
            raise ValueError(f"{name} is not a whole number")
    if type(manifest.ranks) is not list:
        raise ValueError("ranks is not a list")
    if len(manifest.ranks) != manifest.world_size:
        raise ValueError(f"it holds {len(manifest.ranks)} ranks of {manifest.world_size}")
    if len(manifest.members) != manifest.world_size:
        raise ValueError(
            f"it holds states of {manifest.world_size} ranks, and tensors of {len(manifest.members)}"
        )
    for name, length in manifest.shards.items():
        if "/" in name or name.startswith("."):
            raise ValueError(f"shard {name!r} is not a file of its directory")
        if type(length) is not int:
            raise ValueError(f"the length of shard {name!r} is not a whole number")
    for name, entry in manifest.tensors.items():
        end = entry["offset"] + entry["length"]
        if not 0 <= entry["offset"] <= end <= manifest.shards[entry["file"]]:
            raise ValueError(f"tensor {name!r} lies outside its shard")
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"tensor {name!r} is of unknown type {entry['dtype']!r}")
        if not all(type(size) is int and size >= 0 for size in entry["shape"]):
            raise ValueError(f"tensor {name!r} has no shape")
