"""Who started when: each handler call leaves a mark in a mapped file of its process, which costs it about 1 us.

Imported by the handlers of every system, so it needs nothing but Python. Times are CLOCK_MONOTONIC in ns, which all
processes of a machine share.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
import time
from pathlib import Path

DIRECTORY = "BENCH_RECORD"
"""The variable that names the directory of the files."""

_MARK = struct.Struct("<qq")
_CAPACITY = 2_000_000  # marks of a process; the file is sparse


class _Pages:
    """The mapped file of this process."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Have no file yet: also after a fork."""
        self.mapped: mmap.mmap | None = None
        self.numbers = itertools.count()
        self.opening = threading.Lock()

    def open(self) -> mmap.mmap:
        with self.opening:
            if self.mapped is None:
                path = Path(os.environ[DIRECTORY]) / str(os.getpid())
                with path.open("w+b") as file:
                    file.truncate(_CAPACITY * _MARK.size)
                    self.mapped = mmap.mmap(file.fileno(), 0)
            return self.mapped


_pages = _Pages()
os.register_at_fork(after_in_child=_pages.begin)


def mark(sent_ns: int) -> None:
    """Say that a handler starts now, for a task that was sent at `sent_ns`."""
    mapped = _pages.mapped or _pages.open()
    _MARK.pack_into(mapped, next(_pages.numbers) * _MARK.size, time.monotonic_ns(), sent_ns)


class Record:
    """The marks of all processes, for whoever measures."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def count(self) -> int:
        """Return how many handlers have started."""
        return sum(self._filled(path) for path in self._directory.iterdir())

    def marks(self) -> list[tuple[int, int]]:
        """Return start and time of sending of each, in order of the starts."""
        found: list[tuple[int, int]] = []
        for path in self._directory.iterdir():
            with path.open("rb") as file:
                data = file.read(self._filled(path) * _MARK.size)
            found += _MARK.iter_unpack(data)
        return sorted(found)

    def clear(self) -> None:
        """Forget all; nothing that writes must be running."""
        for path in self._directory.iterdir():
            path.unlink()

    @staticmethod
    def _filled(path: Path) -> int:
        """Marks are written in the order of their numbers, so what is filled ends once."""
        low, high = 0, _CAPACITY
        with path.open("rb") as file:
            while low < high:
                middle = (low + high) // 2
                file.seek(middle * _MARK.size)
                if file.read(8) in (b"", bytes(8)):  # it may not have its length yet
                    high = middle
                else:
                    low = middle + 1
        return low
