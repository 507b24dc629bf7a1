"""How the processes of one web server add up their figures: files in a directory, one set a process at a time.

The library prometheus_client keeps a set of files for each process id, for ever, so that every process that is replaced
makes each scrape slower. Here a process takes a number that no living process has, and goes on in the files of the
last one that had it: nothing is lost, and there are never more files than there were processes at once.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
from pathlib import Path

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that prometheus_client reads when it is imported."""

_FILES = ("*.db", "slot-*")
_MADE = "dtq-metrics-"
_taken: tuple[int, int, int] | None = None  # the process, its number, and the descriptor that holds the lock


def prepare() -> Path | None:
    """Choose and empty the directory, before any process starts and before prometheus_client is imported.

    It is the one that PROMETHEUS_MULTIPROC_DIR names, else a new one. Returns the latter, for `forget` at the end.
    """
    given = os.environ.get(DIRECTORY)
    if given and not Path(given).name.startswith(_MADE):  # else it is that of the web server that started this one
        directory = Path(given)
        directory.mkdir(parents=True, exist_ok=True)
        for pattern in _FILES:
            for file in directory.glob(pattern):
                file.unlink(missing_ok=True)
        return None
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # the figures must not wait for a disk
    made = Path(tempfile.mkdtemp(prefix=_MADE, dir=memory))
    os.environ[DIRECTORY] = str(made)
    return made


def forget(directory: Path | None) -> None:
    """Remove what `prepare` made."""
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def slot() -> int:
    """Return the number of this process: it keeps it until it ends, and no other living process has it."""
    global _taken  # noqa: PLW0603
    if _taken is None or _taken[0] != os.getpid():  # a fork shares the lock of its parent, but is another process
        _taken = (os.getpid(), *_take())
    return _taken[1]


def _take() -> tuple[int, int]:
    directory = Path(os.environ[DIRECTORY])
    for number in itertools.count():
        descriptor = os.open(directory / f"slot-{number}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
        except BlockingIOError:
            os.close(descriptor)
        else:
            return number, descriptor
    raise AssertionError("unreachable")
