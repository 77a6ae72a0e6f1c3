"""Choosing the checkpoint to go on from, and reading it.

Owns the order in which checkpoints are tried and what a failure means: one that is *damaged* is passed over, one that is
*unavailable* ends the attempt, because nothing is known to be wrong with it. What all ranks make of it together is in
`checkpoint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, CheckpointUnavailable
from . import manifest, shard, state
from .disk import Disk
from .manifest import Found
from .retention import Known

#: What was read of a checkpoint: its manifest, the shared states, and this rank's own.
Loaded = tuple[manifest.Manifest, dict[str, Any], dict[str, Any]]
#: Why it could not be read: whether another may be taken in its place, and a sentence.
Problem = dict[str, Any]


def order(found: Found, pinned: tuple[int, int] | None) -> list[Known]:
    """The checkpoints to try, best first.

    The pinned one, those before it, then what is newer than it: the job has acknowledged the pinned one as its last.
    """
    if pinned is None:
        return list(found.durable)
    chosen = [one for one in found.durable if _numbers(one) == pinned]
    others = [one for one in found.durable if one not in chosen]
    if chosen:
        older = [one for one in others if one[0].sequence < chosen[0][0].sequence]
    else:
        older = [one for one in others if _numbers(one) < pinned]
    return chosen + older + [one for one in others if one not in older]


def passed_over(
    found: Found, root: Path, pinned: tuple[int, int] | None, last: tuple[int, int] | None
) -> tuple[dict[str, str], str | None]:
    """The damaged ones, by name, and why nothing may be chosen now: what cannot be seen may be the newest.

    `last` was saved by this job: it lies there, or one after it does. A folder with neither is not the job's folder now,
    and says nothing about what the job has.
    """
    damaged = dict(found.damaged)
    wanted = pinned or last
    name = name_of(wanted)
    if pinned is not None:
        is_there = any(_numbers(one) == pinned for one in found.durable)
    else:
        is_there = wanted is None or any(_numbers(one) >= wanted for one in found.durable)
    is_certain = pinned is not None and (is_there or name in damaged)
    if found.unavailable and not is_certain:
        own = found.unavailable.get(name) if pinned is not None else None
        return damaged, own or some(list(found.unavailable.values()))
    if not is_there and name not in damaged:
        if not found.durable and not damaged:
            return damaged, (
                f"the job has saved {name}, and there is no checkpoint in {root}; is the right volume mounted? Mount or "
                "restore it, or start over with resume(fresh=True)"
            )
        damaged[name] = "it is not there, and the job has saved it"
    return damaged, None


def load(
    disk: Disk, root: Path, name: str, digest: str, rank: int, world_size: int, own: Sequence[str]
) -> tuple[Loaded | None, Problem | None]:
    """Reads a checkpoint without touching the run. Errors are values: all ranks must come to the same end."""
    try:
        found = _same_manifest(disk, root / name, digest)
        is_whole = found.is_of_gang(world_size)
        if own and not is_whole:
            raise CheckpointError(
                f"{sorted(own)} are sharded over {found.whose}, there are {world_size} now"
            )
        prefix = f"rank-{rank}."
        wanted = {
            tensor: entry
            for tensor, entry in found.tensors.items()
            if not tensor.startswith("rank-") or (is_whole and tensor.startswith(prefix))
        }
        tensors = shard.read(disk, root / name, wanted)
        shared = state.decode({"dict": found.state}, tensors.__getitem__)
        mine = {}
        if is_whole:
            mine = state.decode(found.ranks[rank], tensors.__getitem__)
        return (found, shared, mine), None
    except CheckpointUnavailable as error:
        return None, {"damaged": False, "text": str(error)}
    except CheckpointError as error:
        return None, {"damaged": True, "text": str(error)}
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        return None, {"damaged": True, "text": f"its manifest is inconsistent: {error!r}"}
    except Exception as error:  # Too little memory for one.
        return None, {"damaged": False, "text": f"failed to load {name}: {error!r}"}


def _same_manifest(disk: Disk, directory: Path, digest: str) -> manifest.Manifest:
    """The manifest that the first rank has read. A rank that sees none or another has a disk that lags behind."""
    try:
        found, actual = manifest.read(directory, disk)
    except CheckpointError as error:
        raise CheckpointUnavailable(str(error)) from error
    if actual != digest:
        raise CheckpointUnavailable(
            f"failed to verify {directory}: this rank sees another manifest than the first one"
        )
    return found


def name_of(numbers: tuple[int, int] | None) -> str:
    """The name of a checkpoint of this attempt and step; empty for none."""
    return "" if numbers is None else f"attempt-{numbers[0]}/step-{numbers[1]}"


def some(errors: Sequence[str]) -> str:
    """The first few errors; a broken disk says the same on every rank."""
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    return "; ".join(list(errors)[:3]) + more


def _numbers(one: Known) -> tuple[int, int]:
    return one[0].attempt, one[0].step
