"""Saving and resuming a training run, by all of its ranks together.

Owns when to save, the order in which ranks write, and what all ranks make of a checkpoint that one of them cannot read.
The manifest is written last and by one rank alone, the lowest that is left, so a process killed at any point leaves the
earlier checkpoints as they were.
"""

from __future__ import annotations

import logging
import operator
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from ..collective_error import HFReduceError
from ..environment import Environment
from ..errors import (
    CheckpointError,
    CheckpointUnavailable,
    NoUsableCheckpoint,
    StateError,
)
from ..progress import CheckpointRef, Progress
from . import agreement, loading, manifest, shard, state, stop, wrappers
from .disk import Disk, explain, may_write, remedy
from .loading import Loaded, some
from .manifest import Found, Manifest
from .retention import Retention

_log = logging.getLogger(__name__)

#: Names of states: they become parts of tensors' names, and those of `rank-...` are the ranks' own.
_NAME = re.compile(r"(?!rank-)[A-Za-z_][A-Za-z0-9_-]{0,99}")
#: Steps are below this: a directory's name has no more digits.
_STEPS = 10**18


class Checkpoint:
    """The checkpoints of a training run.

    Name everything that a run needs to go on; each has ``state_dict()`` and ``load_state_dict()``::

        checkpoint = Checkpoint({"model": model, "optimizer": optimizer})
        for step in checkpoint.steps(total_steps):
            checkpoint.report(train(step))

    A model is saved without the wrappers of ``DistributedDataParallel`` and ``torch.compile``. The lowest rank writes
    the states, which are the same on all ranks; states named in `sharded` differ by rank and are written by each. The
    random number generators of every rank are saved too, as ``random``.

    All methods are collective: every rank calls them at the same place. What is not given comes from the job. Without a
    directory nothing is saved, and the script runs as it is.

    Args:
        states: what is saved, by name. Names are letters, digits, ``-`` and ``_``, and do not begin with ``rank-``.
        sharded: the names of those that differ by rank.
        directory: where checkpoints lie, a folder that all nodes see (``FIREFLYER_CHECKPOINT_DIR``).
        interval_seconds: the time between periodic ones, 0 or more (``FIREFLYER_CHECKPOINT_INTERVAL_SECONDS``).
        keep_last: how many stay, 1 or more (``FIREFLYER_CHECKPOINT_KEEP_LAST``).

    Raises:
        TypeError, ValueError: an argument or a variable cannot be used. The text names it.
    """

    def __init__(
        self,
        states: Mapping[str, Any],
        *,
        sharded: Collection[str] = (),
        directory: str | os.PathLike[str] | None = None,
        interval_seconds: float | None = None,
        keep_last: int | None = None,
        environment: Environment | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = Environment.read() if environment is None else environment
        _check_states(states, sharded)
        if interval_seconds is not None and not interval_seconds >= 0:
            raise ValueError(f"interval_seconds must be at least 0, not {interval_seconds}")
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, not {keep_last}")
        self._environment = settings
        self._root = Path(directory) if directory is not None else settings.checkpoint_dir
        self._interval = settings.interval_seconds if interval_seconds is None else interval_seconds
        self._shared = {n: wrappers.unwrap(part) for n, part in states.items() if n not in sharded}
        self._own = {n: wrappers.unwrap(part) for n, part in states.items() if n in sharded}
        self._disk = Disk() if disk is None else disk
        self._clock = clock
        self._progress = Progress(settings.run_dir, clock)
        self._saved_at = clock()
        self._last: CheckpointRef | None = None
        self._sequence: int | None = None
        #: The last step given to `step`, whether the run stopped after it, and what `report` was given since.
        self._done: int | None = None
        #: The step to do next, once this run has resumed.
        self._next: int | None = None
        self._stopped = False
        self._loss: SupportsFloat | None = None
        #: The lowest rank that is left, as all ranks knew it last: it decides and writes what is written once.
        self._first = 0
        #: Digests of the checkpoints that were there when this run first looked; on rank 0.
        self._inherited: set[str] | None = None
        self._retention = Retention(settings.keep_last if keep_last is None else keep_last)
        stop.install()

    @property
    def enabled(self) -> bool:
        """Whether there is a directory to save to."""
        return self._root is not None

    @property
    def last(self) -> CheckpointRef | None:
        """The newest durable checkpoint that this run has saved, or resumed from."""
        return self._last

    @property
    def stopped(self) -> bool:
        """Whether the run had to stop: its state is saved, and the rest is another attempt's to train."""
        return self._stopped

    def steps(self, total: int, first: int = 0, *, fresh: bool = False) -> Iterator[int]:
        """The steps that are left of `total`: resumes, unless that was done, and yields each step that is to be trained.

        Saves when the interval is over, when the run has to stop (it yields no more then, see `stopped`), and after the
        last step. A step counts as trained when the next one is asked for: after a ``break`` nothing is saved. `first`
        and `fresh` are those of `resume`, whose errors it raises. `total` counts the steps of earlier attempts, too.
        """
        start = self._next if self._next is not None else self.resume(first, fresh=fresh)
        for step in range(start, total):
            yield step
            loss, self._loss = self._loss, None
            if self.step(step, loss):
                return
        if self._root is not None and start < total:
            self.save(total - 1)

    def report(self, loss: SupportsFloat) -> None:
        """The loss of the step under way, for the platform: a number, or a tensor of one element."""
        self._loss = loss

    def resume(self, first: int = 0, *, fresh: bool = False) -> int:
        """Loads the checkpoint to go on from and returns the step to do next; `first` if there never was one.

        That is the one that the job acknowledged (``FIREFLYER_RESUME``), else the newest. One that is damaged on any rank
        is passed over, with a warning and a condition of the job.

        With `fresh` none is loaded, and training starts over beside what is there.

        Raises:
            CheckpointUnavailable: one exists and cannot be read now, and nothing is known to be wrong with it; or none is
                there, and the job has saved one (``FIREFLYER_LAST_CHECKPOINT``).
            NoUsableCheckpoint: some exist, and none can be loaded.
            StateError: a state of this run holds what cannot be stored.
            CheckpointError: the checkpoint lacks a state that is named here.

        These are the same on all ranks. What a ``load_state_dict()`` raises is passed on.
        """
        self._try_states()
        self._next = first
        if self._root is None:
            return first
        try:
            following = self._resume(first, fresh)
        except (CheckpointUnavailable, NoUsableCheckpoint) as error:
            self._progress.ending(type(error).__name__, str(error))
            raise
        self._progress.goes_on()
        self._next = following
        return following

    def step(self, step: int, loss: SupportsFloat | None = None) -> bool:
        """Step `step` (0 or more) is trained on this rank. Returns whether the run has to stop now.

        For loops of your own; `steps` calls it. Saves when the interval is over, and when any rank was asked to stop; all
        ranks decide the same. A save that fails is logged and tried again after the next interval; a stop is then not
        acknowledged.

        Args:
            loss: a number or a tensor of one element. It is reported to the platform about once a second, and read from the
                accelerator only then.

        Raises:
            StateError: a state holds what cannot be stored.
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
        self._done, self._next = step, step + 1
        if rank == self._first:
            self._progress.step(step, loss)
        saved = None
        if self._root is not None and (stopping or saving):
            try:
                saved = self._save(step, proof=not stopping)
            except StateError:
                raise
            except CheckpointError as error:
                _log.error("step %d was not saved: %s", step, error)
                self._saved_at = self._clock()
        if stopping and saved is not None and rank == self._first:
            self._progress.acknowledge(saved)
        self._stopped = self._stopped or bool(stopping)
        return bool(stopping)

    def save(self, step: int) -> CheckpointRef:
        """Saves the state after step `step` (0 or more), durably, and returns what identifies it.

        For moments of your own; `step` calls it when it is time, and `steps` at the end. After a stop, or where the run has
        resumed past that step, it saves nothing and returns what is saved.

        Raises:
            CheckpointError: what failed, the same on all ranks; also when there is no directory, see `enabled`. Earlier
                checkpoints are untouched then.
            ValueError: the step was not trained, or later ones are.
        """
        step = _checked(step)
        if self._stopped and self._root is not None:
            refusal = f"step {step} is not saved: the run had to stop after step {self._done}"
            if self._last is None:
                raise CheckpointError(refusal)
            _log.warning("%s, and its checkpoint is %s", refusal, self._last.name)
            return self._last
        at = step if self._next is None else self._next - 1
        if step < at:
            refusal = f"the run is past it, at step {at}"
            if self._last is None or self._last.step != at:
                raise ValueError(f"failed to save step {step}: {refusal}")
            _log.warning("step %d is not saved: %s, which is %s", step, refusal, self._last.name)
            return self._last
        if self._done is not None and step > self._done + 1:
            raise ValueError(
                f"failed to save step {step}: it was not trained, the last one was {self._done}"
            )
        return self._save(step, proof=True)

    def _save(self, step: int, proof: bool) -> CheckpointRef:
        """Saves; with `proof` old checkpoints may go, once newer ones were read back."""
        if self._root is None:
            raise CheckpointError(
                "failed to save: no directory; set spec.checkpoint of the job or pass directory="
            )
        attempt = self._environment.attempt
        if self._last is not None and (self._last.attempt, self._last.step) == (attempt, step):
            return self._last
        self._first = agreement.first_left()
        if self._sequence is None:
            self._look()
        assert self._sequence is not None
        self._sequence += 1
        rank, _ = agreement.standing()
        part = self._write_shard(step, rank)
        try:
            parts = agreement.to_first(part, self._first)
            outcome = None
            if parts is not None:
                outcome = self._write_manifest(step, parts)
                if proof and "digest" in outcome:
                    # While the others wait: none of them is writing what looks like a leftover.
                    outcome = self._prune(step, outcome)
                if "digest" in outcome:
                    self._progress.durable(CheckpointRef(attempt, step, outcome["digest"]))
            outcome = agreement.from_first(outcome, self._first)
        except HFReduceError as error:
            # The rank that writes was lost meanwhile: all ranks learn of it, and the next save is another's.
            self._saved_at = self._clock()
            raise CheckpointError(f"failed to save step {step}: {error}") from error
        self._saved_at = self._clock()
        if "error" in outcome:
            kind = StateError if outcome.get("state") else CheckpointError
            raise kind(outcome["error"])
        self._last = CheckpointRef(attempt, step, outcome["digest"])
        return self._last

    def _write_shard(self, step: int, rank: int) -> dict[str, Any]:
        """Writes this rank's shard. Errors travel as values: all ranks must come to the same end."""
        directory = self._directory(step)
        try:
            shared, own, tensors = self._encoded(rank)
            self._disk.make_directory(directory)
            # The sequence in the name: saving a step again leaves the old shards for the old manifest.
            path = directory / f"shard-{rank:05}.{self._sequence}"
            length, index = shard.write(self._disk, path, tensors)
        except StateError as error:
            return {"error": f"rank {rank}: {error}", "state": True}
        except (OSError, CheckpointError) as error:
            return {"error": f"rank {rank}: {explain(error)}"}
        except Exception as error:  # Of a state_dict(), or too little memory.
            return {"error": f"rank {rank}: {error!r}"}
        return {
            "file": path.name,
            "length": length,
            "tensors": index,
            "shared": shared,
            "own": own,
        }

    def _encoded(self, rank: int) -> tuple[dict[str, Any], Any, list[tuple[str, Any]]]:
        """What this rank writes: the shared states, its own, and the tensors of both."""
        shared = self._shared if rank == self._first else {}
        values, tensors = {}, []
        for name, part in shared.items():
            values[name], found = state.encode(wrappers.state_of(part), name)
            tensors += found
        own: dict[str, Any] = {"random": state.capture_random()}
        own.update((name, wrappers.state_of(part)) for name, part in self._own.items())
        own_value, found = state.encode(own, f"rank-{rank}")
        return values, own_value, tensors + found

    def _try_states(self) -> None:
        """Finds what cannot be stored before anything is trained."""
        rank, _ = agreement.standing()
        self._first = agreement.first_left()
        error = None
        try:
            self._encoded(rank)
        except StateError as raised:
            error = f"rank {rank}: {raised}"
        errors = agreement.to_first(error, self._first)
        said = None if errors is None else [one for one in errors if one is not None]
        if said := agreement.from_first(some(said) if said else None, self._first):
            raise StateError(said)

    def _write_manifest(self, step: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
        errors = [part["error"] for part in parts if "error" in part]
        if errors:
            unstorable = any("state" in part for part in parts)
            return {"error": f"failed to save step {step}: {some(errors)}", "state": unstorable}
        directory = self._directory(step)
        _, gang_size = agreement.standing()
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
                gang_size=0 if len(parts) == gang_size else gang_size,
            ).encode()
            self._disk.write(directory / manifest.NAME, [content])
        except FileNotFoundError as error:
            return {
                "error": f"failed to save step {step}: {error}; is {self._root} shared by all nodes?"
            }
        except (OSError, CheckpointError) as error:
            return {"error": f"failed to save step {step}: {explain(error)}"}
        except MemoryError:
            return {"error": f"failed to save step {step}: no memory for its manifest"}
        return {"digest": digest}

    def _resume(self, first: int, fresh: bool) -> int:
        assert self._root is not None
        if agreement.standing()[0] == self._first and not may_write(self._root):
            # Now, and not when the first interval is over.
            _log.warning(
                "checkpoints cannot be saved: no permission to write to %s; %s",
                self._root,
                remedy(),
            )
        found = self._look()
        if fresh:
            return first
        pinned = self._environment.resume
        candidates = loading.order(found, pinned)
        # Only one rank looks at the list; a rank whose disk lags behind must not choose another one.
        tried, unclear = agreement.from_first(
            loading.passed_over(found, self._root, pinned, self._last_known()), self._first
        )
        if unclear is not None:
            raise CheckpointUnavailable(f"failed to look for checkpoints: {unclear}")
        saved = loading.name_of(pinned or self._last_known())
        if saved in tried and agreement.standing()[0] == self._first:
            _log.warning(
                "the checkpoint %s, which the job has saved, cannot be loaded: %s; trying the one before",
                saved, tried[saved],
            )  # fmt: skip
        while True:
            # Those of the first rank: on the others there are none.
            offered = None
            if candidates:
                best, digest = candidates.pop(0)
                offered = [best.name, digest]
            offered = agreement.from_first(offered, self._first)
            if offered is None:
                break
            name, digest = offered
            loaded, problem = self._load(name, digest)
            if problem is None:
                assert loaded is not None
                following = self._apply(*loaded, digest) + 1
                self._tell_passed_over(loaded[0], tried)
                return following
            if not problem["damaged"]:
                raise CheckpointUnavailable(f"failed to load {name}: {problem['text']}")
            tried[name] = problem["text"]
            self._retention.skipped.add(name)
            if agreement.standing()[0] == self._first:
                _log.warning(
                    "checkpoint %s cannot be loaded: %s; trying the one before",
                    name,
                    problem["text"],
                )
        if not tried:
            return first
        reasons = some([f"{name}: {text}" for name, text in tried.items()])
        raise NoUsableCheckpoint(
            f"none of the checkpoints in {self._root} can be loaded; tried {reasons}; repair one, or start over with "
            "resume(fresh=True)"
        )

    def _last_known(self) -> tuple[int, int] | None:
        """The newest checkpoint that the job's status has. It lies in the job's folder, and says nothing about another."""
        settings = self._environment
        return settings.last_checkpoint if self._root == settings.checkpoint_dir else None

    def _look(self) -> Found:
        """On the first rank what there is to load. On all ranks, learns how far the sequence is."""
        assert self._root is not None
        found, failure = Found(), None
        if agreement.standing()[0] == self._first:
            try:
                found = manifest.find(self._root, self._disk)
            except (OSError, MemoryError) as error:
                failure = f"failed to look for checkpoints: {explain(error) or 'out of memory'}"
            for name, reason in (*found.damaged.items(), *found.unavailable.items()):
                _log.warning("checkpoint %s is ignored: %s", name, reason)
            if self._inherited is None and failure is None:
                self._inherited = {digest for _, digest in found.durable}
        newest = found.durable[0][0].sequence if found.durable else 0
        sequence, failure = agreement.from_first([newest, failure], self._first)
        if failure is not None:
            raise CheckpointUnavailable(failure)
        self._sequence = sequence
        return found

    def _load(self, name: str, digest: str) -> tuple[Loaded | None, dict[str, Any] | None]:
        """Reads a checkpoint on every rank. What was read, or what all ranks make of the failures of some."""
        assert self._root is not None
        rank, world_size = agreement.standing()
        loaded, problem = loading.load(
            self._disk, self._root, name, digest, rank, world_size, list(self._own)
        )
        if problem is not None:
            problem["text"] = f"rank {rank}: {problem['text']}"
        problems = agreement.to_first(problem, self._first)
        verdict = None
        if problems is not None and any(problems):
            reported = [one for one in problems if one is not None]
            # One rank that cannot read it now says nothing about the checkpoint.
            unclear = [one["text"] for one in reported if not one["damaged"]]
            texts = unclear or [one["text"] for one in reported]
            verdict = {"damaged": not unclear, "text": some(texts)}
        return loaded, agreement.from_first(verdict, self._first)

    def _apply(
        self, found: Manifest, shared: dict[str, Any], own: dict[str, Any], digest: str
    ) -> int:
        """Puts the run into the state that was read. A model that does not fit is the caller's error."""
        missing = sorted((set(self._shared) - set(shared)) | (set(self._own) - set(own)))
        if missing:
            raise CheckpointError(f"failed to resume from {found.name}: it does not hold {missing}")
        for name, part in self._shared.items():
            wrappers.load_into(part, shared[name])
        for name, part in self._own.items():
            wrappers.load_into(part, own[name])
        rank, world_size = agreement.standing()
        if own:
            state.restore_random(own["random"])
        elif rank == self._first:
            _log.warning(
                "%s was saved by %s, there are %d now: random number generators are not restored",
                found.name, found.whose, world_size,
            )  # fmt: skip
        self._last = CheckpointRef(found.attempt, found.step, digest)
        self._retention.verified.add(digest)
        self._saved_at = self._clock()
        return found.step

    def _tell_passed_over(self, loaded: Manifest, tried: dict[str, str]) -> None:
        """Tells the platform what was loaded, and what should have been if that is something else."""
        if agreement.standing()[0] != self._first:
            return
        assert self._last is not None
        numbers = {name: manifest.numbers(Path(name)) for name in tried}
        older = (loaded.attempt, loaded.step)
        pinned = self._environment.resume
        reasons = [
            f"{name}: {tried[name]}"
            for name in tried
            if name in self._retention.skipped or numbers[name] > older or numbers[name] == pinned
        ]
        if reasons:
            self._progress.passed_over(f"resumed from {loaded.name}; {some(reasons)}")
        self._progress.durable(self._last)

    def _prune(self, step: int, saved: dict[str, Any]) -> dict[str, Any]:
        """Reads back what was saved, if need be; removes what it replaces, and what interrupted saves left.

        What a later attempt has saved meanwhile stays and does not count: then this attempt is void and was
        not reported. What a job of before left under higher numbers was there at the start.
        """
        assert self._root is not None
        inherited = self._inherited or set()
        newest = self._directory(step)
        if self._own:
            self._retention.world_size = agreement.standing()[1]
        try:
            found = [
                one
                for one in manifest.find(self._root, self._disk).durable
                if one[0].attempt <= self._environment.attempt or one[1] in inherited
            ]
            current, digest = manifest.read(newest, self._disk)
            if self._retention.needs_proof(found, current):
                shard.verify(self._disk, newest, current.tensors)
                self._retention.verified.add(digest)
        except (OSError, CheckpointUnavailable, MemoryError) as error:
            _log.warning("old checkpoints are kept, the new one cannot be read back now: %s", error)
            return saved
        except CheckpointError as error:
            return {
                "error": f"failed to save step {step}: it was written, and reading it back failed: {error}"
            }
        if not self._retention.has_verified(found):
            return saved
        try:
            for old in self._retention.removable(found):
                if self._root / old.name != newest:
                    self._disk.remove_directory(self._root / old.name, first=manifest.NAME)
            for directory in manifest.leftovers(self._root, self._environment.attempt, self._disk):
                self._disk.remove_directory(directory, first=manifest.NAME)
            for path in sorted(newest.iterdir()):
                if path.name != manifest.NAME and path.name not in current.shards:
                    self._disk.remove(path)
        except (OSError, MemoryError) as error:
            _log.warning("failed to remove old checkpoints: %s", error)
        return saved

    def _directory(self, step: int) -> Path:
        assert self._root is not None
        return self._root / f"attempt-{self._environment.attempt}" / f"step-{step}"


def should_stop() -> bool:
    """Whether the run has to stop: true on all ranks as soon as any was asked to. Collective.

    For scripts that save in their own way: call it after every step on every rank, save and leave when it
    is true. `Checkpoint.steps` does it all. In a job, from its first call on, SIGTERM no longer ends this process.
    """
    stop.install()
    return bool(agreement.largest([stop.requested()])[0])


def _check_states(states: Mapping[str, Any], sharded: Collection[str]) -> None:
    if not isinstance(states, Mapping):
        raise TypeError(f'states must be a mapping such as {{"model": model}}, not {states!r:.80}')
    for name, part in states.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a state: use letters, digits, _ and -, and do not begin with rank-"
            )
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise TypeError(
                f"{name} is a {type(part).__name__} without state_dict() and load_state_dict()"
            )
    if "random" in states:
        raise ValueError("`random` cannot name a state: it is saved already; use another name")
    unknown = set(sharded) - set(states)
    if unknown:
        raise ValueError(f"sharded names {sorted(unknown)}, which states does not have")


def _checked(step: int) -> int:
    """The step as an `int`, also one that counted in numpy's or in a tensor."""
    number = operator.index(step)
    if number < 0:
        raise ValueError(f"step must be at least 0, not {number}")
    if number >= _STEPS:
        raise ValueError(f"step must be below {_STEPS}, not {number}")
    return number
