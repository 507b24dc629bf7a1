"""dtq for programs: submit, look, wait, cancel. What the web, the command line and handlers share."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import jsonschema

from dtq import tracing
from dtq.broker import Broker, Replay
from dtq.bulk import BulkJobs
from dtq.charts import Charts
from dtq.control import Control
from dtq.durability import Durability, patient_server
from dtq.embedded import EmbeddedServer
from dtq.errors import DtqError, InvalidTask, TaskNotFound, UnknownTaskType
from dtq.events import TERMINAL_TYPES, EventFilter, EventReader
from dtq.keys import Keys
from dtq.model import HandlerPolicy, Task, dumps
from dtq.operators import Operators
from dtq.queries import Page, Queries
from dtq.redisio import Server
from dtq.registry import submitter
from dtq.settings import Settings, load_settings
from dtq.states import TERMINAL
from dtq.submission import Submission, SubmissionLimits, submission_from_object
from dtq.taskfilter import TaskFilter

if TYPE_CHECKING:
    from dtq.mq.hub import Messages
    from dtq.mq.queue import MessageQueue

HANDLERS_FRESH_S = 2.0
FEW_WAITS = 8
"""So many waits of one client ask Redis each; a reader of all events costs more than they do."""
LOOK_S = 0.5
"""How often a wait looks whether the process is to stop."""


class Client(Operators):
    """A connection to one dtq. Safe to use from any thread; close it, or use it in a `with` statement.

    With no URL set anywhere, it uses the embedded server of the current directory, starting it when it is not there.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, max_connections: int = 16) -> None:
        """url: where Redis is; by default what the settings say. Raises ConfigurationError, ServerStartFailed."""
        self.settings = (
            settings if settings is not None else load_settings(**({} if url is None else {"redis_url": url}))
        )
        self._embedded: EmbeddedServer | None = None
        address = self.settings.redis_url
        if not address:
            self._embedded = EmbeddedServer(self.settings.directory, self.settings.redis_server or None)
            self._embedded.ensure()
            address = self._embedded.url
        self.server = Server.connect(address, max_connections=max_connections, namespace=self.settings.namespace)
        self._durability = None
        if self.settings.durable_writes:
            patient = patient_server(address, self.settings.namespace)
            self._durability = Durability(patient, Keys(self.settings.namespace))
        self.broker = Broker(self.server, self.settings, self._durability)
        self.control = Control(self.server, self.settings)
        self.bulk = BulkJobs(self.server, self.settings)
        self.queries = Queries(self.server, self.settings)
        self.charts = Charts(self.server, self.settings)
        self.events = EventReader(self.server, self.settings)
        """What happens, as it happens: see `dtq.events`."""
        self._limits = SubmissionLimits.from_settings(self.settings)
        self._published = _Published(self.queries)
        self._waits = _Count()
        self._messages: Messages | None = None
        self._messages_lock = threading.Lock()

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded server of a directory."""
        return self._embedded is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the embedded server stops when this was its last user."""
        self.events.close()
        self.server.close()
        if self._durability is not None:
            self._durability.close()
        if self._embedded is not None:
            self._embedded.release()
            self._embedded = None

    # --- messages -----------------------------------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        idle_ttl_s: float = 3600,
        tombstone_ttl_s: float = 0,
        visibility_timeout_s: float = 30,
        max_payload_bytes: int = 1_048_576,
        max_deliveries: int = 0,
        dead_topic: str = "dead",
    ) -> MessageQueue:
        """Return a reliable message queue (contract, section 18); nothing is sent yet.

        idle_ttl_s: how long the keys of an emptied topic stay.
        tombstone_ttl_s: how long a key is refused after its message was acknowledged.
        visibility_timeout_s: how long after its last renewal a message goes to another consumer; the queue's own.
        max_deliveries: a message that would be claimed once more than that goes to `dead_topic`; 0: never.
        Raises ValueError.
        """
        from dtq.mq.model import QueueOptions

        options = QueueOptions(
            name=name,
            idle_ttl_s=idle_ttl_s,
            tombstone_ttl_s=tombstone_ttl_s,
            visibility_timeout_s=visibility_timeout_s,
            max_payload_bytes=max_payload_bytes,
            max_deliveries=max_deliveries,
            dead_topic=dead_topic,
        )
        return self.messages.queue(options)

    @property
    def messages(self) -> Messages:
        """The message queues that there are, for looking and operating. Loaded when it is first used."""
        with self._messages_lock:  # one for all threads: each numbers its operations in Redis under a name of its own
            if self._messages is None:
                from dtq.mq.hub import Messages

                self._messages = Messages(self.server, self.settings)
            return self._messages

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit(self, task_type: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Task:
        """Submit one task and return it as it was accepted.

        options: queue, priority, max_attempts, timeout_ms, delay_seconds, run_at, idempotency_key, metadata, tags.
        With an idempotency key, a task that is still in progress is returned instead of an error, since it is this one;
        `duplicate` says so. Raises what the contract names for a refusal: InvalidTask, QueueFull, ...
        """
        asked = {"task_type": task_type, "payload": {} if payload is None else payload, **options}
        answer = self.submit_parsed([submission_from_object(asked, self._limits)])[0]
        if isinstance(answer, DtqError):
            if answer.code == "IDEMPOTENCY_IN_PROGRESS":
                return self.get(answer.context["task_id"])._replace(duplicate=True)
            raise answer
        return answer

    def submit_many(self, asked: Iterable[Mapping[str, Any]]) -> list[Task | DtqError]:
        """Submit many tasks, a hundred a round trip. One bad or refused does not stop the others.

        asked: dicts with the fields of a submission. Returns a task or the error that refused it for each, in order.
        """
        answers: list[Task | DtqError] = []
        good: list[tuple[int, Submission]] = []
        for one in asked:
            try:
                good.append((len(answers), submission_from_object(one, self._limits)))
            except DtqError as error:
                answers.append(error)
            else:
                answers.append(_PENDING)
        for (index, _), answer in zip(good, self.submit_parsed([one for _, one in good]), strict=True):
            answers[index] = answer
        return answers

    def submit_parsed(self, submissions: Sequence[Submission]) -> list[Task | DtqError]:
        """Submit what was validated already: checks it against what live workers publish, then stores it."""
        if not submissions:
            return []
        handlers = self._published.handlers()
        answers: list[Task | DtqError] = []
        stored: list[tuple[int, tuple[str, ...]]] = []
        for index, submission in enumerate(submissions):
            refusal, warnings = self._look_over(submission, handlers)
            if refusal is None:
                stored.append((index, tuple(warnings)))
                answers.append(_PENDING)
            else:
                answers.append(refusal)
        accepted = [submissions[index] for index, _ in stored]
        if not accepted:
            return answers
        with tracing.sending(accepted):
            replies = self.broker.submit(accepted, [warnings for _, warnings in stored])
        for (index, _), reply in zip(stored, replies, strict=True):
            answers[index] = self._answer(reply) if isinstance(reply, Replay) else reply
        return answers

    def _look_over(
        self, submission: Submission, handlers: Mapping[str, HandlerPolicy]
    ) -> tuple[DtqError | None, list[str]]:
        policy = handlers.get(submission.task_type)
        warnings = []
        if policy is None:
            if self.settings.reject_unknown_types:
                return UnknownTaskType(f"no live worker knows the task type {submission.task_type}"), []
            grace_s = self.settings.unknown_type_grace_s
            warnings.append(
                f"no live worker knows the task type {submission.task_type}; the task waits for one, "
                f"and is a dead letter {grace_s:g} s after another has met it"
            )
        elif policy.schema is not None:
            refusal = _breaks_schema(submission, policy.schema)
            if refusal is not None:
                return refusal, []
        if submission.queue not in self._published.queues():
            warnings.append(f"no live worker serves the queue {submission.queue}; the task waits for one")
        return None, warnings

    def _answer(self, replay: Replay) -> Task | DtqError:
        try:
            return self.queries.task(replay.task_id)._replace(duplicate=True)
        except TaskNotFound as error:  # its retention ended in this very moment
            return error

    # --- looking ------------------------------------------------------------------------------------------------------

    def get(self, task_id: str) -> Task:
        """Return a task. Raises TaskNotFound."""
        return self.queries.task(task_id)

    def tasks(self, wanted: TaskFilter | None = None, limit: int = 50, cursor: str | None = None) -> Page:
        """Return a page of tasks, newest first."""
        return self.queries.tasks(wanted or TaskFilter(), limit, cursor)

    def wait(self, task_id: str, timeout_s: float) -> Task:
        """Return the task once it has ended, or as it is after `timeout_s` seconds. Raises TaskNotFound.

        A few waits ask Redis now and then; when many wait at once, further ones listen to the events together.
        """
        with self._waits as number:
            if number > FEW_WAITS:
                return self.wait_for_event(task_id, timeout_s)
            give_up_at = time.monotonic() + timeout_s
            pause_s = 0.005
            while self.queries.status(task_id) not in TERMINAL:
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    break
                time.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * 1.5, 0.25)
            return self.queries.task(task_id)

    def wait_for_event(self, task_id: str, timeout_s: float, stopping: threading.Event | None = None) -> Task:
        """Do as `wait` by listening: at once when the task ends, and without asking Redis meanwhile.

        stopping: when it is set, the task is returned as it is. Raises TaskNotFound.
        """
        give_up_at = time.monotonic() + timeout_s
        with self.events.subscribe(EventFilter(task_id=task_id, types=TERMINAL_TYPES)) as ends:
            while self.queries.status(task_id) not in TERMINAL:  # also after a gap: nobody knows what was missed
                while not ends.get(max(0.0, min(LOOK_S, give_up_at - time.monotonic()))):
                    if time.monotonic() >= give_up_at or (stopping is not None and stopping.is_set()):
                        return self.queries.task(task_id)
        return self.queries.task(task_id)

    def idempotent_operation(
        self, key: str, ttl_seconds: float, fn: Callable[[], Any], *, hold_seconds: float = 60.0
    ) -> Any:
        """Run a side effect once per key and return its result, which must be JSON and is kept for `ttl_seconds`.

        A second caller with the key gets that result, waiting while the first one runs. When `fn` raises, the key is
        free again and the error goes on. hold_seconds: how long `fn` may take; after that, as after a caller that was
        killed, the next one runs it.
        Raises what `fn` raises, ValueError or TypeError for a result that is not JSON, RedisUnavailable.
        """
        token, pause_s = secrets.token_hex(8), 0.01
        while True:
            code, detail = self.broker.begin_operation(key, token, hold_seconds)
            if code == "DONE":
                return json.loads(str(detail))
            if code == "RUN":
                break
            time.sleep(min(pause_s, float(detail) + 0.001))  # bounded: the other's hold ends
            pause_s = min(pause_s * 1.5, 0.25)
        try:
            result = fn()
            text = dumps(result)
        except BaseException:
            self.broker.end_operation(key, token, None, ttl_seconds)
            raise
        self.broker.end_operation(key, token, text, ttl_seconds)
        return result


def idempotent_operation(key: str, ttl_seconds: float, fn: Callable[[], Any], *, hold_seconds: float = 60.0) -> Any:
    """Run a side effect once per key, with the client of this process: see `Client.idempotent_operation`."""
    client = submitter()
    if not isinstance(client, Client):
        raise TypeError("idempotent_operation needs a dtq.Client; the one in use is something else")
    return client.idempotent_operation(key, ttl_seconds, fn, hold_seconds=hold_seconds)


_PENDING: DtqError = InvalidTask("not submitted")
"""Keeps the place of an answer that is to come."""


class _Count:
    """How many are inside a `with`; entering returns the number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0

    def __enter__(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._number -= 1


class _Published:
    """What live workers publish, asked for again when older than two seconds; a look costs nothing in between."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._lock = threading.Lock()
        self._fresh_until = 0.0
        self._handlers: Mapping[str, HandlerPolicy] = {}
        self._queues: frozenset[str] = frozenset()

    def handlers(self) -> Mapping[str, HandlerPolicy]:
        if time.monotonic() >= self._fresh_until:
            with self._lock:
                if time.monotonic() >= self._fresh_until:
                    self._handlers = self._queries.handlers()
                    self._queues = frozenset(queue for worker in self._queries.workers() for queue in worker.queues)
                    self._fresh_until = time.monotonic() + HANDLERS_FRESH_S
        return self._handlers

    def queues(self) -> frozenset[str]:
        return self._queues


def _breaks_schema(submission: Submission, schema: Mapping[str, Any]) -> InvalidTask | None:
    errors = []
    for error in jsonschema.Draft202012Validator(schema).iter_errors(submission.payload):
        path = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.absolute_path)
        errors.append({"pointer": f"/payload{path}", "message": error.message[:200]})
        if len(errors) == 20:
            break
    if not errors:
        return None
    first = errors[0]
    return InvalidTask(f"{first['pointer']}: {first['message']}", errors=errors)
