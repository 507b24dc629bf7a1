"""Time limits: how a handler is interrupted in its thread, and what happens when it does not listen.

`PyThreadState_SetAsyncExc` makes an exception rise in another thread at its next step of Python code. Left to itself
it may rise too late, in code that is not the handler's; so a guard decides under a lock whether the handler still runs,
and takes back what has not risen when it ends. A thread inside a blocking call sees nothing before the call returns:
when that takes too long, the thread is written off.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from dtq.errors import TaskCancelled, TaskTimeout
from dtq.worker.service import Service

COURTESY_S = 0.2
"""Between `ctx.cancelled` and the exception: time for a handler that looks to end by itself."""
LONGEST_WAIT_S = 5.0

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)
_set_async_exc.restype = ctypes.c_int


class _Settled(BaseException):
    """Raised in a guard's thread by itself, and caught at once."""


class Guard:
    """Calls handlers in one thread, so that others may interrupt a handler and nothing but the handler.

    A call is interrupted at most twice, once by each of TaskCancelled and TaskTimeout: `call` counts on that.
    """

    def __init__(self, grace_s: float, watch: Callable[[float], None]) -> None:
        """grace_s: from the timeout to giving up. watch: told the moment (monotonic) at which to look at this guard."""
        self.abandoned = False
        """The handler did not return in time: what it does from now on counts for nothing, and its thread ends."""
        self.timed_out = False
        """TaskTimeout was raised in the running or last handler."""
        self.value: Any = None
        self.error: BaseException | None = None
        self._grace_s = grace_s
        self._watch = watch
        self._lock = threading.Lock()
        self._thread_id = 0
        self._process_id = os.getpid()
        self._armed = False
        self._subject: object = None
        self._pending = False
        self._early: object = None
        """What was cancelled before it began."""
        self._cancel_at = math.inf
        self._deadline = math.inf
        self._give_up_at = math.inf

    def call(self, subject: object, fn: Callable[..., Any], args: tuple[Any, ...], deadline: float) -> bool:
        """Call `fn(*args)`; leave what it returned in `value` or what it raised, whatever that is, in `error`.

        What it sets in context variables is gone with it: the thread's next call must not find it.
        subject: by what `cancel` and `abandon` find the call. deadline: monotonic.
        Returns whether it returned. Look at `abandoned` afterwards.
        """
        returned = False
        self._thread_id = threading.get_ident()
        self._subject = subject
        self.timed_out = self._pending = False
        self._cancel_at = self._give_up_at = math.inf
        self._deadline = deadline
        # At most two interrupts: one may rise late, in the first `_disarm`, and the other even in the second one.
        try:
            try:
                try:
                    self._watch(self._arm())
                    self.value = copy_context().run(fn, *args)
                    returned = True
                except BaseException as raised:
                    self.error = raised
                if os.getpid() != self._process_id:
                    _end_copy(self.error)
                self._disarm()
            except (TaskCancelled, TaskTimeout) as late:
                self.error = self.error or late
                self._disarm()
        except (TaskCancelled, TaskTimeout) as late:
            self.error = self.error or late
            self._disarm()
        return returned

    def clear(self) -> None:
        """Let go of what the last call left behind."""
        self.value = self.error = self._subject = None

    def cancel(self, subject: object, courtesy_s: float = COURTESY_S) -> None:
        """Raise TaskCancelled in the handler of `subject` in `courtesy_s` seconds, if it still runs then.

        When it has not begun, the time counts from its beginning.
        """
        with self._lock:
            if not self._armed:
                self._early = subject
                return
            if self._subject is not subject or self._cancel_at < math.inf:
                return
            self._cancel_at = due = time.monotonic() + courtesy_s
        self._watch(due)

    def look(self, now: float) -> float:
        """Interrupt or give up what is due. Returns when to look again (monotonic), infinity for never."""
        with self._lock:
            if not self._armed:
                return math.inf
            if now >= self._give_up_at:
                self._armed, self.abandoned = False, True
                return math.inf
            if now >= self._deadline:
                self._deadline, self._give_up_at = math.inf, now + self._grace_s
                self._cancel_at = -math.inf  # one exception at a time: the timeout takes the place of a cancellation
                self.timed_out = True
                self._raise_in_thread(TaskTimeout)
            elif -math.inf < self._cancel_at <= now:
                self._cancel_at = -math.inf
                self._raise_in_thread(TaskCancelled)
            cancel_at = self._cancel_at if self._cancel_at > -math.inf else math.inf
            return min(cancel_at, self._deadline, self._give_up_at)

    def abandon(self, subject: object) -> bool:
        """Give the running handler of `subject` up now. Returns False when it has ended."""
        with self._lock:
            if not self._armed or self._subject is not subject:
                return False
            self._armed, self.abandoned = False, True
            return True

    def _arm(self) -> float:
        """From now on the handler may be interrupted. Returns when to look at it (monotonic)."""
        with self._lock:
            self._armed = True
            if self._early is self._subject:
                self._cancel_at = time.monotonic() + COURTESY_S
            self._early = None
            return min(self._deadline, self._cancel_at)

    def _raise_in_thread(self, exception: type[BaseException]) -> None:
        self._pending = True
        _set_async_exc(self._thread_id, exception)

    def _disarm(self) -> None:
        with self._lock:
            self._armed = False
        if self._pending:
            self._settle()

    def _settle(self) -> None:
        """Take back what has not risen yet, in the guard's own thread: by one that takes its place and rises at once.

        Setting NULL would take it back too, but CPython 3.11 then keeps its flag raised: every thread would stop at
        every step to look for an exception that is not there, and under a tracer would never get any further.
        """
        self._pending = False
        with contextlib.suppress(_Settled):
            _set_async_exc(self._thread_id, _Settled)
            while True:  # it rises at the first turn
                pass


def _end_copy(error: BaseException | None) -> None:
    """A handler has forked and came back in both processes: this one must not go on as if it were the worker."""
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(code if isinstance(code, int) else int(code is not None))


class Watchdog(Service):
    """Looks at every guard when the first of them is due."""

    def __init__(self, guards: Callable[[], Sequence[Guard]], give_up: Callable[[Guard], None]) -> None:
        """guards: those of now. give_up: told of a guard whose handler did not return."""
        super().__init__("watchdog")
        self._guards = guards
        self._give_up = give_up
        self._next = math.inf
        self._lock = threading.Lock()
        self._wake = threading.Event()

    def watch(self, moment: float) -> None:
        """Make sure that the guards are looked at by `moment` (monotonic). Cheap when they will be anyway."""
        if moment < self._next:
            with self._lock:
                self._next = min(self._next, moment)
            self._wake.set()

    def interrupt(self) -> None:
        """Cut the wait short."""
        self._wake.set()

    def step(self) -> bool:
        """Look at all guards if the first is due, then wait until the next one is."""
        now = time.monotonic()
        if now >= self._next:
            self._next = math.inf  # before looking: a guard that is armed after the look will say so
            self._look(now)
        self._wake.wait(min(LONGEST_WAIT_S, max(0.0, self._next - now)))
        self._wake.clear()
        return True

    def _look(self, now: float) -> None:
        first = math.inf
        for guard in self._guards():
            first = min(first, guard.look(now))
            if guard.abandoned:
                self._give_up(guard)
        with self._lock:
            self._next = min(self._next, first)
