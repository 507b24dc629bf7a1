"""Several workers on one machine: a parent that forks them, restarts what dies, and passes signals on."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from dtq.worker.supervisor import ExitCode

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
HEALTHY_S = 60.0
"""A child that lived for so long begins again with the first pause."""
POLL_S = 0.1
_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_ENDS_BY_ITSELF = frozenset({ExitCode.CLEAN, ExitCode.HANDED_BACK, ExitCode.BURST_WITH_FAILURES})
_NOT_BEGUN = frozenset({-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
"""How one ends that was told to stop before it listened to signals: it has not claimed anything."""
_HOPELESS = frozenset({ExitCode.CONFIGURATION, ExitCode.REDIS_AWAY})
"""What a first start ends with when the next one would end the same."""


@dataclass(slots=True)
class _Child:
    number: int
    pid: int = 0
    """0 while it is not running."""
    started_at: float = 0.0
    starts: int = 0
    pause_s: float = FIRST_PAUSE_S
    start_at: float = 0.0
    done: bool = False


class Processes:
    """Must be made and run before this process has threads or connections: children are forks of it."""

    def __init__(self, number: int, run: Callable[[int], int]) -> None:
        """number: how many children. run: the child's work; given its number from 1, returns its exit code."""
        self._run = run
        self._children = [_Child(index) for index in range(1, number + 1)]
        self._stopping = False
        self._signals: list[int] = []
        self._taken = _SIGNALS
        self._code = 0

    def run(self) -> int:
        """Keep the children running until all have ended for good. Returns the worst of their exit codes."""
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was started by nohup
            self._taken = (*_SIGNALS, signal.SIGHUP)
        for number in self._taken:
            signal.signal(number, self._note)
        while not all(child.done for child in self._children):
            self.step()
            time.sleep(POLL_S)
        return self._code

    def step(self) -> None:
        """Pass signals on, take in ends, start what is due."""
        while self._signals:
            number = self._signals.pop(0)
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                # Not TERM: a supervisor may have sent that to the children itself, and this is no second request
                self._stopping, number = True, signal.SIGINT
            self._pass_on(number)
        self._take_in_ends()
        for child in self._children:
            if child.done or child.pid:
                continue
            if self._stopping:
                child.done = True
            elif time.monotonic() >= child.start_at:
                self._start(child)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _pass_on(self, number: int) -> None:
        for child in self._children:
            if child.pid:
                os.kill(child.pid, number)  # not yet waited for, so the number is still this child's

    def _start(self, child: _Child) -> None:
        # A signal between the fork and the child's own handlers would be noted in a copy of this object, and lost
        signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        pid = os.fork()
        if pid == 0:
            self._be_child(child.number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._taken)
        child.pid, child.started_at = pid, time.monotonic()
        child.starts += 1

    def _be_child(self, number: int) -> None:
        code = int(ExitCode.CRASHED)
        try:
            for which in self._taken:
                signal.signal(which, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._taken)
            os.setpgid(0, 0)  # Ctrl-C reaches the parent only, which passes one signal on, not two
            code = self._run(number)
        except BaseException:
            log.exception("worker process %d failed", number)
        finally:
            logging.shutdown()
            os._exit(code)

    def _take_in_ends(self) -> None:
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        lived_s = time.monotonic() - child.started_at
        child.pid = 0
        if self._stopping or code in _ENDS_BY_ITSELF:
            child.done = True
            if code not in _NOT_BEGUN:
                self._code = max(self._code, code if code >= 0 else int(ExitCode.CRASHED))
            return
        if code in _HOPELESS and child.starts == 1:
            child.done, self._code = True, max(self._code, code)
            self._signals.append(signal.SIGTERM)
            return
        child.pause_s = FIRST_PAUSE_S if lived_s >= HEALTHY_S else min(LONGEST_PAUSE_S, child.pause_s * 2)
        child.start_at = time.monotonic() + child.pause_s
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        log.error("worker process %d %s; it is started again in %.1f s", child.number, how, child.pause_s)
