"""Saving and resuming a training run, by all of its ranks together.

Owns when to save, the order in which ranks write, and which checkpoint is resumed. The manifest is written
last and by one rank alone, the lowest that is left, so a process killed at any point leaves the earlier
checkpoints as they were.
"""

from __future__ import annotations

import logging
import operator
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, SupportsFloat

import torch

from ..environment import Environment
from ..errors import CheckpointError, HFReduceError
from ..progress import CheckpointRef, Progress
from . import agreement, manifest, shard, state, stop
from .disk import Disk, explain, may_write, remedy
from .manifest import Manifest

_log = logging.getLogger(__name__)


class Checkpoint:
    """The checkpoints of a training run.

    Name everything that a run needs to go on; each has ``state_dict()`` and ``load_state_dict()``::

        checkpoint = Checkpoint(model=model, optimizer=optimizer)

    A ``DistributedDataParallel`` model is saved without its wrapper. The lowest rank writes the states, which are
    the same on all ranks; states named in `sharded` differ by rank and are written by each. The random
    number generators of every rank are saved too, as ``random``.

    `directory` is where checkpoints lie, a folder that all nodes see; `interval_seconds` (0 or more) the
    time between periodic ones, `keep_last` (1 or more) how many stay. What is not given comes from the job
    (``FIREFLYER_CHECKPOINT_DIR``, …_INTERVAL_SECONDS, …_KEEP_LAST). Without a directory nothing is saved,
    and the script runs as it is.

    All methods are collective: every rank calls them at the same place. A `TypeError` or `ValueError` here
    names the argument or variable that cannot be used.
    """

    def __init__(
        self,
        *,
        sharded: Collection[str] = (),
        directory: str | os.PathLike[str] | None = None,
        interval_seconds: float | None = None,
        keep_last: int | None = None,
        environment: Environment | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        **states: Any,
    ) -> None:
        told = Environment.read() if environment is None else environment
        for name, part in states.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(
                    f"{name} is a {type(part).__name__} without state_dict() and load_state_dict()"
                )
        unknown = set(sharded) - set(states)
        if unknown or "random" in states:
            raise ValueError(
                "`random` is saved already"
                if not unknown
                else f"sharded names {sorted(unknown)}, not given"
            )
        if interval_seconds is not None and not interval_seconds >= 0:
            raise ValueError(f"interval_seconds must be at least 0, not {interval_seconds}")
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, not {keep_last}")
        self._environment = told
        self._root = Path(directory) if directory is not None else told.checkpoint_dir
        self._interval = told.interval_seconds if interval_seconds is None else interval_seconds
        self._keep_last = told.keep_last if keep_last is None else keep_last
        self._shared = {n: _unwrap(part) for n, part in states.items() if n not in sharded}
        self._own = {n: _unwrap(part) for n, part in states.items() if n in sharded}
        self._disk = Disk() if disk is None else disk
        self._clock = clock
        self._progress = Progress(told.run_dir, clock)
        self._saved_at = clock()
        self._last: CheckpointRef | None = None
        self._sequence: int | None = None
        #: The lowest rank that is left, as all ranks knew it last: it decides and writes what is written once.
        self._first = 0
        #: Digests of the checkpoints that were there when this run first looked; on rank 0.
        self._inherited: set[str] | None = None
        stop.install()

    @property
    def enabled(self) -> bool:
        """Whether there is a directory to save to."""
        return self._root is not None

    @property
    def last(self) -> CheckpointRef | None:
        """The newest durable checkpoint that this run has saved, or resumed from."""
        return self._last

    def resume(self, first: int = 0) -> int:
        """Loads the checkpoint to go on from and returns the step to do next; `first` if there is none.

        That is the one the operator recorded (``FIREFLYER_RESUME``), else the newest; one that cannot be
        read by all ranks is skipped with a warning. The lowest rank decides. A `CheckpointError`, the same on all
        ranks: the directory cannot be looked through, or the checkpoint lacks a state that is named here.
        What a ``load_state_dict()`` raises, as for a model of another shape, is passed on.
        """
        if self._root is None:
            return first
        self._first = agreement.first_left()
        candidates = self._candidates()
        if agreement.standing()[0] == self._first and not may_write(self._root):
            # Now, and not when the first interval is over.
            _log.warning(
                "checkpoints cannot be saved: no right to write to %s; %s", self._root, remedy()
            )
        attempted = 0
        while True:
            # Only one rank looks at the list; a rank whose disk lags behind must not choose another one.
            offered = None
            if attempted < len(candidates):
                found, digest = candidates[attempted]
                offered = {"name": found.name, "digest": digest}
            offered = agreement.from_first(offered, self._first)
            if offered is None:
                return first
            attempted += 1
            loaded, error = self._load(offered["name"], offered["digest"])
            failures = self._failures(error)
            if loaded is not None and not failures:
                return self._apply(*loaded, offered["digest"]) + 1
            if agreement.standing()[0] == self._first:
                _log.warning(
                    "checkpoint %s cannot be loaded: %s; trying the one before",
                    offered["name"],
                    failures,
                )

    def step(self, step: int, loss: SupportsFloat | None = None) -> bool:
        """Step `step` (0 or more) is done on this rank. Returns whether the run has to stop now.

        Saves when the interval is over, and when any rank was asked to stop; all ranks decide the same. A
        save that fails is logged and tried again after the next interval; a stop is then not acknowledged.
        `loss` is a number or a tensor of one element; it is told to the platform about once a second, and
        read from the accelerator only then.
        """
        step = _checked(step)
        rank, _ = agreement.standing()
        due = (
            self._root is not None
            and rank == self._first
            and self._clock() - self._saved_at >= self._interval
        )
        stopping, saving, first = agreement.largest([stop.requested(), due, -rank])
        self._first = -first
        if rank == self._first:
            self._progress.step(step, loss)
        saved = None
        if self._root is not None and (stopping or saving):
            try:
                saved = self.save(step)
            except CheckpointError as error:
                _log.error("step %d was not saved: %s", step, error)
                self._saved_at = self._clock()
        if stopping and saved is not None and rank == self._first:
            self._progress.acknowledge(saved)
        return bool(stopping)

    def save(self, step: int) -> CheckpointRef:
        """Saves the state after step `step` (0 or more), durably, and returns what identifies it.

        For the end of a run, and for moments of your own; `step` calls it when it is time. A
        `CheckpointError`, the same on all ranks, says what failed (also when there is no directory, see
        `enabled`); earlier checkpoints are untouched then.
        """
        step = _checked(step)
        if self._root is None:
            raise CheckpointError(
                "failed to save: no directory; set spec.checkpoint of the job or pass directory="
            )
        attempt = self._environment.attempt
        if self._last is not None and (self._last.attempt, self._last.step) == (attempt, step):
            return self._last
        self._first = agreement.first_left()
        if self._sequence is None:
            self._candidates()
        assert self._sequence is not None
        self._sequence += 1
        rank, _ = agreement.standing()
        part = self._write_shard(step, rank)
        try:
            parts = agreement.to_first(part, self._first)
            outcome = None
            if parts is not None:
                outcome = self._write_manifest(step, parts)
                if "digest" in outcome:
                    self._progress.durable(CheckpointRef(attempt, step, outcome["digest"]))
                    # While the others wait: none of them is writing what looks like a leftover.
                    self._prune(step)
            outcome = agreement.from_first(outcome, self._first)
        except HFReduceError as error:
            # The rank that writes was lost meanwhile: all ranks hear of it, and the next save is another's.
            self._saved_at = self._clock()
            raise CheckpointError(f"failed to save step {step}: {error}") from error
        self._saved_at = self._clock()
        if "error" in outcome:
            raise CheckpointError(outcome["error"])
        self._last = CheckpointRef(attempt, step, outcome["digest"])
        return self._last

    def _write_shard(self, step: int, rank: int) -> dict[str, Any]:
        """Writes this rank's shard. Errors travel as values: all ranks must come to the same end."""
        directory = self._directory(step)
        try:
            shared = self._shared if rank == self._first else {}
            values, tensors = {}, []
            for name, part in shared.items():
                values[name], found = state.encode(part.state_dict(), name)
                tensors += found
            own: dict[str, Any] = {"random": state.capture_random()}
            own.update((name, part.state_dict()) for name, part in self._own.items())
            own_value, found = state.encode(own, f"rank-{rank}")
            tensors += found
            self._disk.make_directory(directory)
            # The sequence in the name: saving a step again leaves the old shards for the old manifest.
            path = directory / f"shard-{rank:05}.{self._sequence}"
            length, index = shard.write(self._disk, path, tensors)
        except (OSError, CheckpointError) as error:
            return {"error": f"rank {rank}: {explain(error)}"}
        return {
            "file": path.name,
            "length": length,
            "tensors": index,
            "shared": values,
            "own": own_value,
        }

    def _write_manifest(self, step: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
        errors = [part["error"] for part in parts if "error" in part]
        if errors:
            return {"error": f"failed to save step {step}: {_some(errors)}"}
        directory = self._directory(step)
        try:
            for part in parts:
                # Also finds a directory that is not shared between the nodes.
                length = (directory / part["file"]).stat().st_size
                if length != part["length"]:
                    return {
                        "error": f"failed to save step {step}: {part['file']} has {length} bytes"
                    }
            content, digest = Manifest(
                attempt=self._environment.attempt,
                step=step,
                sequence=self._sequence or 0,
                world_size=len(parts),
                job=self._environment.job,
                namespace=self._environment.namespace,
                shards={part["file"]: part["length"] for part in parts},
                tensors={name: entry for part in parts for name, entry in part["tensors"].items()},
                state=parts[0]["shared"],
                ranks=[part["own"] for part in parts],
            ).encode()
            self._disk.write(directory / manifest.NAME, [content])
        except FileNotFoundError as error:
            return {
                "error": f"failed to save step {step}: {error}; is {self._root} shared by all nodes?"
            }
        except OSError as error:
            return {"error": f"failed to save step {step}: {explain(error)}"}
        return {"digest": digest}

    def _candidates(self) -> list[tuple[Manifest, str]]:
        """On the first rank the checkpoints to try, best first. On all ranks, learns where the sequence stands."""
        found: list[tuple[Manifest, str]] = []
        failure = None
        if agreement.standing()[0] == self._first:
            assert self._root is not None
            try:
                found, unusable = manifest.durable(self._root)
            except OSError as error:
                failure, unusable = f"failed to look for checkpoints: {explain(error)}", []
            for reason in unusable:
                _log.warning("a checkpoint is left out: %s", reason)
            if self._inherited is None and failure is None:
                self._inherited = {digest for _, digest in found}
        newest = found[0][0].sequence if found else 0
        self._sequence, failure = agreement.from_first([newest, failure], self._first)
        if failure is not None:
            self._sequence = None
            raise CheckpointError(failure)
        pinned = self._environment.resume
        if pinned is None or agreement.standing()[0] != self._first:
            return found
        chosen = [one for one in found if (one[0].attempt, one[0].step) == pinned]
        if not chosen:
            _log.warning(
                "the checkpoint attempt-%d/step-%d, named by FIREFLYER_RESUME, cannot be loaded; "
                "taking the newest that verifies",
                *pinned,
            )
        return chosen + [one for one in found if one not in chosen]

    def _load(self, name: str, digest: str) -> tuple[tuple[Manifest, Any, Any] | None, str | None]:
        """Reads a checkpoint without touching the run. Returns what was read, or why it could not be."""
        assert self._root is not None
        rank, world_size = agreement.standing()
        try:
            found, actual = manifest.read(self._root / name)
            if actual != digest:
                raise CheckpointError(
                    f"failed to verify {name}: rank {self._first} sees another manifest"
                )
            if self._own and found.world_size != world_size:
                raise CheckpointError(
                    f"failed to load {name}: {sorted(self._own)} are sharded over {found.world_size} ranks, "
                    f"there are {world_size} now"
                )
            prefix = f"rank-{rank}."
            wanted = {
                tensor: entry
                for tensor, entry in found.tensors.items()
                if tensor.startswith(prefix) or not tensor.startswith("rank-")
            }
            tensors = shard.read(self._root / name, wanted)
            shared = state.decode({"dict": found.state}, tensors.__getitem__)
            own = {}
            if found.world_size == world_size:
                own = state.decode(found.ranks[rank], tensors.__getitem__)
            return (found, shared, own), None
        except CheckpointError as error:
            return None, str(error)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            return None, f"failed to load {name}: its manifest is inconsistent: {error!r}"

    def _apply(
        self, found: Manifest, shared: dict[str, Any], own: dict[str, Any], digest: str
    ) -> int:
        """Puts the run into the state that was read. A model that does not fit is the caller's error."""
        missing = sorted((set(self._shared) - set(shared)) | (set(self._own) - set(own)))
        if missing:
            raise CheckpointError(f"failed to resume from {found.name}: it does not hold {missing}")
        for name, part in self._shared.items():
            part.load_state_dict(shared[name])
        for name, part in self._own.items():
            part.load_state_dict(own[name])
        rank, world_size = agreement.standing()
        if own:
            state.restore_random(own["random"])
        elif rank == self._first:
            _log.warning(
                "%s was saved by %d ranks, there are %d now: random numbers start anew",
                found.name, found.world_size, world_size,
            )  # fmt: skip
        self._last = CheckpointRef(found.attempt, found.step, digest)
        if rank == self._first:
            self._progress.durable(self._last)
        self._saved_at = self._clock()
        return found.step

    def _failures(self, error: str | None) -> str | None:
        rank, _ = agreement.standing()
        errors = agreement.to_first(error and f"rank {rank}: {error}", self._first)
        said = None if errors is None else [one for one in errors if one is not None]
        return agreement.from_first(_some(said) if said else None, self._first)

    def _prune(self, step: int) -> None:
        """Removes what the durable checkpoint of `step` replaces, and what interrupted saves left.

        What a later attempt has saved meanwhile stays and does not count: then this attempt is void and was
        not told. What a job of before left under higher numbers was there at the start.
        """
        assert self._root is not None
        inherited = self._inherited or set()
        newest = self._directory(step)
        try:
            replaced = [
                found
                for found, digest in manifest.durable(self._root)[0]
                if found.attempt <= self._environment.attempt or digest in inherited
            ]
            for old in replaced[self._keep_last :]:
                if self._root / old.name != newest:
                    self._disk.remove_directory(self._root / old.name, first=manifest.NAME)
            for directory in manifest.leftovers(self._root, self._environment.attempt):
                self._disk.remove_directory(directory, first=manifest.NAME)
            current, _ = manifest.read(newest)
            for path in sorted(newest.iterdir()):
                if path.name != manifest.NAME and path.name not in current.shards:
                    self._disk.remove(path)
        except (OSError, CheckpointError) as error:
            _log.warning("failed to remove old checkpoints: %s", error)

    def _directory(self, step: int) -> Path:
        assert self._root is not None
        return self._root / f"attempt-{self._environment.attempt}" / f"step-{step}"


def should_stop() -> bool:
    """Whether the run has to stop: true on all ranks as soon as any was asked to. Collective.

    For scripts that save in their own way: call it after every step on every rank, save and leave when it
    is true. `Checkpoint.step` does it all. From its first call on, SIGTERM no longer ends this process.
    """
    stop.install()
    return bool(agreement.largest([stop.requested()])[0])


def _unwrap(part: Any) -> Any:
    # A checkpoint must not depend on how the model is run.
    parallel = torch.nn.parallel.DistributedDataParallel
    return part.module if isinstance(part, parallel) else part


def _checked(step: int) -> int:
    """The step as an `int`, also one that counted in numpy's or in a tensor."""
    number = operator.index(step)
    if number < 0:
        raise ValueError(f"step must be at least 0, not {number}")
    return number


def _some(errors: list[str]) -> str:
    """The first few errors; a broken disk says the same on every rank."""
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    return "; ".join(errors[:3]) + more
