"""The shapes of answers, for the description of the API. The tests hold real answers against them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel

from dtq.bulk import Action
from dtq.model import ResultState
from dtq.states import Disposition, Status
from dtq.submission import MAX_BATCH, Submission


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Fault(_Shape):
    """One thing that is wrong with a request."""

    pointer: str = Field(description="JSON pointer into the body, or the name of a parameter after a slash")
    message: str


class Problem(BaseModel):
    """An error (RFC 9457). Some codes bring members of their own, such as task_id or retry_after."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    message: str
    request_id: str
    errors: list[Fault] | None = None


class AttemptAnswer(_Shape):
    """One attempt that ended."""

    number: int
    worker_id: str
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None
    duration_ms: int | None
    outcome: Disposition
    error_class: str | None
    message: str | None
    traceback: str | None
    retry_delay_ms: int | None


class TaskSummary(_Shape):
    """A task as lists show it."""

    task_id: str
    task_type: str
    queue: str
    status: Status
    attempt: int
    failures: int
    crashes: int
    max_attempts: int | None
    priority: int
    timeout_ms: int | None
    metadata: dict[str, Any]
    tags: list[str]
    idempotency_key: str | None
    created_at: AwareDatetime
    available_at: AwareDatetime | None
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None
    worker_id: str | None
    progress: dict[str, Any] | None
    result_state: ResultState
    error: dict[str, Any] | None
    reason: str | None
    requeued: int
    discarded: bool
    duplicate: bool
    cancel_requested: bool
    warnings: list[str]


class TaskAnswer(TaskSummary):
    """A task."""

    payload: dict[str, Any]
    result: Any
    attempts: list[AttemptAnswer]


class TaskPage(_Shape):
    """A page of a list of tasks."""

    tasks: list[TaskSummary]
    next_cursor: str | None = Field(description="for the next page; null at the end, and only there")
    looked_at: int = Field(
        description="tasks looked at for this page: more than it shows where no index tells the filter"
    )


class ResultAnswer(_Shape):
    """What a task returned, as far as it is known."""

    task_id: str
    status: Status
    result_state: ResultState
    result: Any
    error: dict[str, Any] | None


def _each_by_itself(schema: dict[str, Any]) -> None:
    schema["properties"]["tasks"]["items"] = {"anyOf": [schema["properties"]["tasks"]["items"], {}]}


class BatchBody(_Shape):
    """Several submissions. Whatever else is among them is refused in its place, and does not stop the others."""

    model_config = ConfigDict(json_schema_extra=_each_by_itself)

    tasks: list[Submission] = Field(max_length=MAX_BATCH)


class BatchResult(_Shape):
    """What became of one submission: a task, or a problem."""

    status: int
    task: TaskAnswer | None = None
    problem: Problem | None = None


class BatchAnswer(_Shape):
    """What became of each submission, in order."""

    results: list[BatchResult]


class QueueAnswer(_Shape):
    """A queue and its counts."""

    queue: str
    paused: bool
    pause: dict[str, Any] | None
    depth: int
    counts: dict[Status, int]
    waiting_by_priority: dict[str, int]
    oldest_waiting_seconds: float | None
    oldest_waiting_seconds_by_priority: dict[str, float | None]


class QueueList(_Shape):
    """The queues."""

    queues: list[QueueAnswer]


class TopicAnswer(_Shape):
    """A topic of a message queue; counts since the queue came to be."""

    topic: str
    depth: int
    waiting: int
    in_flight: int
    delayed: int
    oldest_waiting_seconds: float | None
    paused: bool
    pause: dict[str, Any] | None
    counts: dict[str, int]


class MessageQueueAnswer(_Shape):
    """A message queue."""

    queue: str
    visibility_timeout_s: float | None
    consumers: int
    depth: int
    topics: list[TopicAnswer]


class MessageQueueList(_Shape):
    """The message queues."""

    queues: list[MessageQueueAnswer]


class MessageAnswer(_Shape):
    """What became of a message: stored, or its key was known already."""

    queue: str
    topic: str
    key: str
    stored: bool


class PausedAnswer(_Shape):
    """Whether a queue is paused now."""

    queue: str
    paused: bool


class WorkerAnswer(_Shape):
    """A live worker."""

    worker_id: str
    state: Literal["running", "quiet", "draining"]
    queues: list[str]
    task_types: list[str]
    concurrency: int
    running: int
    held: int
    abandoned_threads: int
    lease_s: float
    started_at: AwareDatetime
    heartbeat_at: AwareDatetime
    host: str
    pid: int
    version: str


class WorkerList(_Shape):
    """The live workers."""

    workers: list[WorkerAnswer]


class CommandAnswer(_Shape):
    """What a worker was told; it hears of it within a second."""

    worker_id: str
    command: Literal["quiet", "stop"]


class DeadLetterSummary(_Shape):
    """A dead letter as lists show it."""

    task_id: str
    task_type: str
    queue: str
    reason: str
    attempts: int
    worker_id: str | None
    error: dict[str, Any] | None
    dead_at: AwareDatetime


class DeadLetterAnswer(DeadLetterSummary):
    """A dead letter and its task."""

    task: TaskAnswer


class DeadLetterPage(_Shape):
    """A page of the dead letters, newest first."""

    dead_letters: list[DeadLetterSummary]
    next_cursor: str | None


class BulkAnswer(_Shape):
    """A bulk job; or, as a preview, what it would be."""

    bulk_id: str | None
    action: Action
    state: Literal["running", "done", "aborted", "preview"]
    queue: str | None = Field(description="the queue that is purged")
    filter: dict[str, str | int | list[str]] | None
    task_ids: int | None = Field(description="how many were named")
    to_queue: str | None
    to_priority: int | None
    rate: float | None
    total: int = Field(description="how many there were to do when it began")
    total_exact: bool = Field(description="whether that is all: without an index it is counted only so far")
    done: int
    skipped: int = Field(description="had changed or ended before their turn came, or were named twice")
    failed: int = Field(description="could not be changed: of a newer dtq, unreadable, or one queue too many")
    held: bool = Field(description="whether a process works on it now")
    actor: str
    reason: str
    request_id: str
    created_at: AwareDatetime | None
    updated_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    samples: list[DeadLetterSummary | TaskSummary] | None = Field(
        default=None, description="of a preview: up to five of those it is about"
    )


class BulkList(_Shape):
    """The last bulk jobs, newest first."""

    jobs: list[BulkAnswer]


class AuditAnswer(_Shape):
    """One thing that somebody did."""

    id: str
    time: AwareDatetime
    actor: str
    action: str
    target: str
    reason: str
    request_id: str
    count: int
    detail: str


class AuditPageAnswer(_Shape):
    """A page of the audit, newest first."""

    entries: list[AuditAnswer]
    next_cursor: str | None


class EventAnswer(_Shape):
    """One thing that happened to a task, a worker or a queue; what does not fit is null."""

    id: str
    time: AwareDatetime
    type: str
    task_id: str | None
    queue: str | None
    task_type: str | None
    attempt: int | None
    worker_id: str | None
    detail: dict[str, Any] | None


class EventPage(_Shape):
    """Some events, oldest first."""

    events: list[EventAnswer]
    next_since: str = Field(description="`since` of the next page")
    more: bool = Field(description="whether there is more to look at now")
    gap: bool = Field(description="whether events after `since` are gone")


class Description(RootModel[dict[str, Any]]):
    """An OpenAPI document."""


class HealthAnswer(_Shape):
    """This process answers."""

    status: Literal["ok"]


class ReadyAnswer(_Shape):
    """The process and its Redis answer."""

    status: Literal["ready"]
    version: str
    redis: dict[str, str]
    warnings: list[str]
