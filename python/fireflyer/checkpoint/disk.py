"""The file system as checkpoints use it. Each effect of saving may be the last one before a crash, and each read may fail.

Owns the order of write, fsync and rename, and what a person can do about a missing right. What is written, and what a
directory full of leftovers means, is decided elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

Bytes = bytes | memoryview

#: Errors that say that a file is not there. Any other one says nothing about what is there.
MISSING = (FileNotFoundError, NotADirectoryError)


class Disk:
    """The file system. Tests override `before` to crash at any effect, and `reading` to fail at any read."""

    def before(self, effect: str, path: Path) -> None:
        """Called before every effect."""

    def reading(self, path: Path) -> None:
        """Called before `path` is looked at."""

    def open(self, path: Path) -> FileIO:
        """Opens a file to be read, without a buffer."""
        self.reading(path)
        return open(path, "rb", buffering=0)

    def exists(self, path: Path) -> bool:
        """Whether there is such a file; an `OSError` if that cannot be seen."""
        self.reading(path)
        try:
            os.stat(path)
        except MISSING:
            return False
        return True

    def folders(self, path: Path) -> list[Path]:
        """The folders in a folder, in order; none if it is not there. An `OSError` if it cannot be listed."""
        self.reading(path)
        try:
            with os.scandir(path) as entries:
                return sorted(Path(entry.path) for entry in entries if entry.is_dir())
        except MISSING:
            return []

    def make_directory(self, path: Path) -> None:
        """Makes `path` and its parents, durably."""
        missing = []
        at = path
        while not at.is_dir():
            missing.append(at)
            at = at.parent
        for directory in reversed(missing):
            self.before("make", directory)
            directory.mkdir(exist_ok=True)
            self._sync_directory(directory.parent)

    def write(self, path: Path, chunks: Iterable[Bytes]) -> None:
        """Replaces `path` as a whole: a reader finds the old content or the new one. Durable on return."""
        new = path.with_name(path.name + ".new")
        self.before("create", new)
        with open(new, "wb", buffering=0) as file:
            for chunk in chunks:
                view = memoryview(chunk)
                while len(view):
                    self.before("write", new)
                    view = view[file.write(view) :]
            self.before("sync", new)
            os.fsync(file.fileno())
        self.before("rename", path)
        os.replace(new, path)
        self._sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Removes a file, if it is there."""
        self.before("remove", path)
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path, first: str) -> None:
        """Removes a directory of files; `first` is gone durably before the others go."""
        self.remove(path / first)
        self._sync_directory(path)
        for entry in sorted(path.iterdir()):
            self.remove(entry)
        self.before("remove", path)
        path.rmdir()

    def _sync_directory(self, path: Path) -> None:
        self.before("sync", path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def may_write(directory: Path) -> bool:
    """Whether this process may write to `directory`, or make it."""
    at = directory
    while not os.path.exists(at) and at != at.parent:
        at = at.parent
    return os.access(at, os.W_OK | os.X_OK)


def explain(error: Exception) -> str:
    """The error, with what helps where that is known."""
    return f"{error}; {remedy()}" if isinstance(error, PermissionError) else str(error)


def remedy() -> str:
    """What helps a process that may not write."""
    return (
        f"this process has user {os.getuid()} and group {os.getgid()}: give them the folder, "
        "in a job by template.spec.securityContext.fsGroup"
    )
