"""At most one `flask dtq up` in a directory, and none beside what one that was killed has left behind.

Both locks are flock(2): the kernel frees them, however a process ends. `up.lock` is held by `up` alone, so a crash
frees it at once; `children.lock` is inherited by what it starts, and free only when the last of that has ended.
`up.json` tells others about the one that runs; it is still there after one that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from dtq.errors import ConfigurationError, DtqError

OPEN_ATTEMPTS = 10


class AlreadyRunning(DtqError):
    """Another `up` runs in this directory; `context["facts"]` is what it has written about itself."""

    code = "ALREADY_RUNNING"


class Instance:
    """The locks of one directory."""

    def __init__(self, directory: Path) -> None:
        """directory: where `.dtq/` is made."""
        self.directory = directory.resolve() / ".dtq"
        self._made = False
        """Whether `take` has made the directory."""
        self._up: FileIO | None = None
        self._children: FileIO | None = None

    def take(self) -> None:
        """Become the one. Raises AlreadyRunning, ConfigurationError when the directory cannot be used."""
        self._made = not self.directory.exists()
        up = _locked(self.directory / "up.lock")
        if up is None:
            raise AlreadyRunning("flask dtq up runs here already", facts=self.facts())
        self._up = up

    def take_children(self) -> bool:
        """Take the lock that children inherit. False: those that an `up` before has left still run."""
        self._children = _locked(self.directory / "children.lock")
        return self._children is not None

    @property
    def children_fd(self) -> int:
        """What children must inherit."""
        assert self._children is not None
        return self._children.fileno()

    def facts(self) -> Mapping[str, Any]:
        """Return what the one that runs, or one that did not end in order, has written; empty when there is nothing."""
        try:
            facts = json.loads((self.directory / "up.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write down what others should know of this one, if the disk lets us. Only for who has the place."""
        fresh = self.directory / "up.json.new"
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(facts))
            fresh.replace(self.directory / "up.json")

    def release(self) -> None:
        """Free the locks, and leave no directory that nothing but this was made for. Idempotent."""
        if self._up is not None:
            with contextlib.suppress(OSError):
                (self.directory / "up.json").unlink(missing_ok=True)
                if self._made and self._children is not None:
                    self._remove_if_empty()
            self._up.close()
        if self._children is not None:
            self._children.close()
        self._up = self._children = None

    def _remove_if_empty(self) -> None:
        """Remove the directory when only our locks are in it. Both are held: whoever waits for one opens it anew."""
        names = ("up.lock", "children.lock")
        if set(os.listdir(self.directory)) == set(names):
            for name in names:
                (self.directory / name).unlink()
            self.directory.rmdir()


def _locked(path: Path) -> FileIO | None:
    """Return the open file with its lock; None: another process holds it. Raises ConfigurationError."""
    for _ in range(OPEN_ATTEMPTS):
        file = _open(path)
        if not _lock(file):
            file.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # removed between the two by one that left: its lock is worth nothing
    raise ConfigurationError(f"{path} is removed again and again; set DTQ_DIRECTORY to a directory of yours")


def _open(path: Path) -> FileIO:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    except OSError as error:
        raise ConfigurationError(
            f"{path.parent} cannot be used ({error.strerror}); set DTQ_DIRECTORY to a directory of yours"
        ) from error


def _lock(file: FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ConfigurationError(
            f"{file.name} cannot be locked ({error}): set DTQ_DIRECTORY to a directory on a local disk"
        ) from error
    return True
