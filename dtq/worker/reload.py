"""`worker.py --reload`: a worker for development that begins anew when a file of its tasks changes."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5


class Reloader:
    """Watches the modules that were loaded from a directory. `look` is called by the supervisor now and then."""

    def __init__(self, directory: Path) -> None:
        """directory: only modules below it are watched, libraries in an environment below it are not."""
        self.due = False
        """A file has changed: when the worker has ended, `restart`."""
        self._directory = directory.resolve()
        self._known: dict[Path, float] = {}
        self._started_at = time.time()
        self._look_at = 0.0

    def look(self, stop: Callable[[], None]) -> None:
        """Call `stop` once a watched file has changed to something that can be compiled."""
        if self.due or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_INTERVAL_S
        found = self._modification_times()
        changed = [path for path, at in found.items() if at != self._known.get(path, min(at, self._started_at))]
        self._known = {**self._known, **found}
        if changed and all(_compiles(path) for path in changed):
            log.warning("%s changed: this worker drains and begins anew", ", ".join(path.name for path in changed))
            self.due = True
            stop()

    def restart(self) -> None:
        """Replace this process by a new one with the same command line."""
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def _modification_times(self) -> Mapping[Path, float]:
        times = {}
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if not name:
                continue
            path = Path(name)
            if path.suffix == ".py" and path.is_relative_to(self._directory) and "site-packages" not in path.parts:
                try:
                    times[path] = path.stat().st_mtime
                except OSError:  # just being written, or gone
                    continue
        return times


def _compiles(path: Path) -> bool:
    try:
        compile(path.read_bytes(), path, "exec")
    except (OSError, SyntaxError, ValueError) as error:
        log.error("%s changed and cannot be read: %s", path.name, error)
        return False
    return True
