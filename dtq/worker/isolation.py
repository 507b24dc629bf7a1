"""Handlers in a process of their own: one reused child a runner, killed with its own children at the deadline.

The child is a fresh interpreter in a session of its own, never a fork: this process has threads. It imports the modules
of DTQ_TASKS by itself (see `child`). What it does wrong, crashing included, fails the attempt and not the worker.

A child must not outlive the claim that it works under. It holds one end of a pipe whose other end is the worker's: when
that closes the kernel kills it. And it is told now and then that the worker is alive: when it has heard nothing for so
long that the lease may end soon, it ends by itself, since a worker that stands still loses its claims.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from dtq import trace
from dtq.model import ErrorInfo, Outcome
from dtq.registry import Handler
from dtq.states import Disposition
from dtq.worker import messages, verdict
from dtq.worker.state import Job, WorkerState, ids
from dtq.worker.verdict import Rules

log = logging.getLogger(__name__)

START_LIMIT_S = 60.0
"""How long a child may take to import the modules of DTQ_TASKS."""
POLL_S = 0.05
BEATS_A_LEASE = 6
SILENCE = 0.6
"""For this part of a lease a child waits for a beat: a renewal is a third of a lease old at the most when the worker
stops, so the task is nobody else's before the child has ended."""
CANCEL_PATIENCE_S = 1.0
"""From telling a handler of its cancellation to killing it."""


class IsolatedProcess:
    """The child of one runner. Started at its first task, and again after it died or was killed."""

    def __init__(self, state: WorkerState, rules: Rules) -> None:
        self._state = state
        self._rules = rules
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._life = -1
        """The writing end of the pipe whose end ends the child."""
        self._told_at = 0.0
        """When the child last heard of this worker, monotonic."""

    def run(self, job: Job, handler: Handler, limit_s: float) -> Outcome | None:
        """Run the handler of a job in the child. Returns None when the claim is over, or the worker shuts down.

        limit_s: from the handler's start; starting a child is not counted.
        """
        began = time.monotonic()
        try:
            connection = self._ready_connection(job)
            if connection is None or job.cancelled:
                return self._stopped(job, began)
            if self._state.lease_may_be_over(job):  # this process stood still while the child started
                self._state.leave_to_others(job)
                return None
            belongs_to = trace.carried()
            told = None if belongs_to is None else belongs_to.as_json()
            claim = messages.claim_as_dict(job.claim)
            connection.send_bytes(messages.encode("run", claim=claim, limit_s=limit_s, trace=told))
            self._told_at = began = time.monotonic()
            return self._wait(job, handler, connection, began + limit_s)
        except (EOFError, OSError):
            return self._died(job, handler, began)

    def close(self) -> int | None:
        """Kill the child and its children. Returns how the child ended, None when there was none."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        life, self._life = self._life, -1
        if connection is not None:
            connection.close()
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not yet waited for: the number is still this child's
        os.close(life)
        return process.wait()

    def _ready_connection(self, job: Job) -> Connection | None:
        """Return the way to a child that waits for work; None when the job was stopped meanwhile. Raises EOFError."""
        if self._connection is not None and self._waits(self._connection):
            return self._connection
        self.close()
        ours = self._connection = self._start()
        ours.send_bytes(messages.encode("setup", **self._setup()))
        give_up_at = time.monotonic() + START_LIMIT_S
        while not ours.poll(POLL_S):
            if job.cancelled:
                return None
            if time.monotonic() >= give_up_at:
                raise EOFError
        ours.recv_bytes()
        return ours

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        end, self._life = os.pipe()
        inherited = (theirs.fileno(), end)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dtq.worker.child", *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            )
        except BaseException:
            os.close(self._life)
            self._life = -1
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(end)
        return ours

    def _waits(self, connection: Connection) -> bool:
        """Whether the child is still there: told by the connection, since asking would give its number away."""
        try:
            while connection.poll():
                connection.recv_bytes()  # a last report that came after its task's end
        except (EOFError, OSError):
            return False
        return True

    def _setup(self) -> Mapping[str, Any]:
        settings = self._state.settings
        return {
            "tasks": settings.tasks,
            "path": sys.path,
            "worker_id": self._state.worker_id,
            "silence_s": self._state.lease_s * SILENCE,
            "backoff": [settings.retry_base_delay, settings.retry_max_delay, settings.retry_jitter],
            "max_attempts": self._rules.max_attempts,
            "result_max_bytes": self._rules.result_max_bytes,
            "log": [settings.log_level, settings.log_json],
            "client": {
                "redis_url": settings.redis_url,
                "namespace": settings.namespace,
                "directory": str(settings.directory.resolve()),
            },
        }

    def _wait(self, job: Job, handler: Handler, connection: Connection, deadline: float) -> Outcome | None:
        began = time.monotonic()
        kill_at = None
        while True:
            if connection.poll(max(0.0, min(POLL_S, deadline - time.monotonic()))):
                message = messages.decode(connection.recv_bytes())
                if message["kind"] == "done" and message["claim"] == [job.claim.task_id, job.claim.seq]:
                    return (
                        None
                        if job.released and message["outcome"]["kind"] != "succeed"
                        else self._outcome(job, message)
                    )
                if message["kind"] == "left":
                    self._left(job)
                    return None
                self._take_progress(job, message)
                continue
            now = time.monotonic()
            self._say_alive(connection, now)
            if job.cancelled and kill_at is None:
                connection.send_bytes(messages.encode("cancel"))
                kill_at = now if job.lost or job.released else now + CANCEL_PATIENCE_S
            if kill_at is not None and now >= kill_at:
                self.close()
                return self._stopped(job, began)
            if now >= deadline:
                self.close()
                return self._timed_out(job, handler, began)

    def _say_alive(self, connection: Connection, now: float) -> None:
        if now - self._told_at < self._state.lease_s / BEATS_A_LEASE:
            return
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLOUT)
        if poller.poll(0):  # else it has not listened for long, and a full pipe would hold this runner up
            connection.send_bytes(messages.encode("alive"))
            self._told_at = now

    def _left(self, job: Job) -> None:
        """The child took this worker for dead: the claim is over, or will be, for nobody renews it any more."""
        self.close()
        if not job.released:
            self._state.leave_to_others(job)

    def _outcome(self, job: Job, message: Mapping[str, Any]) -> Outcome:
        return messages.outcome_from_dict(job.claim, message["outcome"])

    def _take_progress(self, job: Job, message: Mapping[str, Any]) -> None:
        context = job.context
        if context is not None and message["kind"] == "progress":
            context.latest, context.pending = (message["fraction"], message["message"]), True
            context.send_due_progress(time.monotonic())

    def _stopped(self, job: Job, began: float) -> Outcome | None:
        if job.lost or job.released:
            return None
        return verdict.cancelled(job.claim, _ms_since(began), "the task was cancelled; its process was ended")

    def _timed_out(self, job: Job, handler: Handler, began: float) -> Outcome:
        info = ErrorInfo("TaskTimeout", "the task ran longer than its timeout_ms; its process was killed")
        return verdict.retry_or_dead(
            job.claim, handler, info, _ms_since(began), self._rules, disposition=Disposition.TIMED_OUT
        )

    def _died(self, job: Job, handler: Handler, began: float) -> Outcome | None:
        code = self.close()  # what is already ending keeps its own code
        if job.lost or job.released:
            return None
        log.error("the process of an isolated handler died: %s", _how(code), extra=ids(job))
        info = ErrorInfo("ProcessDied", f"the process of the handler {_how(code)}")
        return verdict.retry_or_dead(job.claim, handler, info, _ms_since(began), self._rules)


def _how(code: int | None) -> str:
    if code is None:
        return "did not answer"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _ms_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
