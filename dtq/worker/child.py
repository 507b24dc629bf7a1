"""The process of isolated handlers: `python -m dtq.worker.child <connection> <life>`, started by `isolation` alone.

Its main thread runs handlers; another one listens to the worker, and ends the process and its children when the worker
is gone or stands still. Imports little: a child is started for each slot that runs isolated handlers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from dtq import registry, trace, tracing
from dtq.backoff import Backoff
from dtq.log import configure_logging
from dtq.model import Claim, Outcome
from dtq.registry import Handler
from dtq.worker import messages, verdict
from dtq.worker.context import PROGRESS_INTERVAL_S, TaskContext, current_log_fields, set_current_context
from dtq.worker.timeouts import Guard
from dtq.worker.verdict import Rules

if TYPE_CHECKING:
    from dtq.client import Client


IDLE_LOOK_S = 5.0
"""How often a child without work looks whether its worker is there."""


class Child:
    """Runs what the worker sends, one task at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parent = os.getppid()
        self._silence_s = math.inf
        self._heard_at = time.monotonic()
        self._sending = threading.Lock()
        self._work: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        self._guard = Guard(math.inf, lambda moment: None)
        self._context: TaskContext | None = None
        self._busy = False
        """Between the receipt of a task and its end: then the listener looks up now and then."""

    def serve(self) -> None:
        """Work until the worker is gone."""
        setup = messages.decode(self._connection.recv_bytes())
        self._silence_s = setup["silence_s"]
        rules = _prepare(setup)
        threading.Thread(target=self._listen, name="listener", daemon=True).start()
        self._send("ready")
        while True:
            message = self._work.get()
            claim = messages.claim_from_dict(message["claim"])
            with tracing.continuing(trace.from_json(message["trace"] or {})):
                outcome = self._run(claim, message["limit_s"], setup["worker_id"], rules)
            self._busy = False
            self._send("done", claim=[claim.task_id, claim.seq], outcome=messages.outcome_as_dict(outcome))

    def _run(self, claim: Claim, limit_s: float, worker_id: str, rules: Rules) -> Outcome:
        handler = registry.default.get(claim.task_type)
        if handler is None:  # the worker knows it: its modules register something else in another process
            return verdict.unknown(claim)
        began = time.monotonic()
        context = TaskContext(claim, worker_id, began + limit_s, self._report)
        self._context = context
        set_current_context(context)
        guard = self._guard
        ok = guard.call(context, handler.fn, (json.loads(claim.payload), context), math.inf)
        set_current_context(None)
        self._context = None
        context.send_progress(time.monotonic())
        outcome = _judge(claim, handler, guard, ok, int((time.monotonic() - began) * 1000), rules)
        guard.clear()
        return outcome

    def _listen(self) -> None:
        try:
            while True:
                if self._connection.poll(PROGRESS_INTERVAL_S / 5 if self._busy else IDLE_LOOK_S):
                    self._take(messages.decode(self._connection.recv_bytes()))
                elif self._left_alone():
                    self._leave()
                context = self._context
                if context is not None:
                    context.send_due_progress(time.monotonic())
                    self._guard.look(time.monotonic())
        except (EOFError, OSError):
            end_group()

    def _left_alone(self) -> bool:
        """Whether the worker is gone, also if others have its end of the connection; or its claims must be over."""
        return os.getppid() != self._parent or (self._busy and time.monotonic() - self._heard_at > self._silence_s)

    def _leave(self) -> None:
        if self._sending.acquire(timeout=0.1):  # else the handler's thread hangs in it: nobody reads
            with contextlib.suppress(OSError):
                self._connection.send_bytes(messages.encode("left"))
        end_group()

    def _take(self, message: Mapping[str, Any]) -> None:
        self._heard_at = time.monotonic()
        if message["kind"] == "run":
            self._busy = True
            self._work.put(message)
        elif message["kind"] == "cancel" and self._context is not None:
            self._context.cancelled = True
            self._guard.cancel(self._context)

    def _report(self, context: TaskContext) -> None:
        if context.latest is not None:
            fraction, message = context.latest
            self._send("progress", fraction=fraction, message=message)

    def _send(self, kind: str, **content: Any) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(messages.encode(kind, **content))
        except OSError:
            end_group()


def _judge(claim: Claim, handler: Handler, guard: Guard, ok: bool, duration_ms: int, rules: Rules) -> Outcome:
    if ok:
        return verdict.returned(claim, handler, guard.value, duration_ms, rules)
    error = guard.error or RuntimeError("the handler neither returned nor raised")
    return verdict.raised(claim, handler, error, duration_ms, rules)


def _prepare(setup: Mapping[str, Any]) -> Rules:
    sys.path[:] = setup["path"]
    level, as_json = setup["log"]
    configure_logging(level, json=as_json, fields=current_log_fields)
    registry.use_client(make=lambda: _client(setup["client"]))
    registry.default.load(setup["tasks"])
    base_s, max_s, jitter = setup["backoff"]
    return Rules(
        backoff=Backoff(base_s=base_s, max_s=max_s, jitter=jitter),
        max_attempts=setup["max_attempts"],
        result_max_bytes=setup["result_max_bytes"],
    )


def _client(told: Mapping[str, str]) -> Client:
    from dtq.client import Client
    from dtq.settings import load_settings

    return Client(settings=load_settings(**told))


def end_with_worker(life: int) -> None:
    """Let the kernel end this process and its children when the other end of a pipe closes.

    The listener sees the worker's end too, but not while a handler holds the interpreter inside a call of C. Where the
    kernel cannot do it (F_SETSIG is Linux's), the listener is all there is.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def end_group() -> None:
    """End this process and everything that it has started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Serve the worker at the other end of the descriptor that was inherited."""
    for number in (signal.SIGINT, signal.SIGTERM):  # supervisors may send it to all; the worker decides what it means
        signal.signal(number, signal.SIG_IGN)
    connection, life = map(int, sys.argv[1:3])
    for inherited in (connection, life):
        os.set_inheritable(inherited, False)  # what a handler starts has no business with them
    end_with_worker(life)
    try:
        Child(Connection(connection)).serve()
    except (EOFError, OSError):
        end_group()


if __name__ == "__main__":
    main()
