"""The client itself: each call of the API as a method."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from dtq.errors import DtqError, HttpError, IdempotencyInProgress, InvalidTask, QueueNotFound, TaskNotFound
from dtq.http_client.answers import RemoteEvent, TaskPage, error_of, event_of, page_of, task_of
from dtq.http_client.transport import Ask, Reply, Transport
from dtq.model import Task

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

MAX_BATCH, MAX_BATCH_BYTES = 1_000, 7 * 1024 * 1024
MAX_WAIT_S = 30.0
"""Of one request; longer waits are several."""

_TASKS = "/api/v1/tasks"
_GONE = 410
_PAUSE_S = 0.25  # when the server did not wait as long as it was asked to


class HttpClient:
    """A connection to the API of one dtq. Safe to use from any thread; close it, or use it in a `with` statement.

    Every submission carries an idempotency key, so that sending it again makes no second task: after a broken
    connection, and while the server is away (503) or full (429, when its Retry-After has passed).
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
        session: requests.Session | None = None,
    ) -> None:
        """url: of the server, such as https://queue.example.com; a path before `/api` may follow.

        timeout_s: of one attempt to connect, and to get an answer. retry_for_s: how long a call is tried again; a
            Retry-After that is longer ends it at once.
        session: one of requests, for certificates, proxies and the like; its owner closes it.
        Raises ConfigurationError for another URL, or when the extra `dtq[http]` is not installed.
        """
        self._transport = Transport(url, api_key, timeout_s, retry_for_s, session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls that would try again, and iterators of events, end."""
        self._transport.close()

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit(self, task_type: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Task:
        """Submit one task and return it as it was accepted; options and errors are those of `dtq.Client.submit`.

        With no idempotency_key among the options, one is made up. A task that already has the key, from a request
        whose answer was lost or from somebody else, is returned with `duplicate`.
        """
        asked = _submission({"task_type": task_type, "payload": {} if payload is None else payload, **options})
        key = asked["idempotency_key"]
        headers = {}
        if isinstance(key, str) and key.isascii() and key.isprintable():
            escaped = key.replace("\\", "\\\\").replace('"', '\\"')
            headers["Idempotency-Key"] = f'"{escaped}"'
        try:
            return _task(self._call("POST", _TASKS, body=asked, headers=headers).answer)
        except IdempotencyInProgress as error:
            return self._the_same(error)

    def submit_many(self, asked: Iterable[Mapping[str, Any]]) -> list[Task | DtqError]:
        """Submit many tasks, up to a thousand a request. One bad or refused does not stop the others.

        asked: dicts with the fields of a submission. Returns a task or the error that refused it for each, in order.
        Raises what makes a whole request fail, such as ServerUnreachable: then nothing is known of its tasks, and none
        of later ones were sent. Give each an idempotency_key to call again safely.
        """
        answers: list[Task | DtqError] = []
        for batch in _batches(asked):
            good = [one for one in batch if not isinstance(one, DtqError)]
            results = iter(self._results(good))
            answers += [one if isinstance(one, DtqError) else next(results) for one in batch]
        return answers

    def _results(self, good: Sequence[Mapping[str, Any]]) -> list[Task | DtqError]:
        if not good:
            return []
        results = self._call("POST", f"{_TASKS}/batch", body={"tasks": good}).answer["results"]
        if len(results) != len(good):
            raise HttpError(f"the server answered {len(results)} of {len(good)} tasks")
        return [self._result(one) for one in results]

    def _result(self, result: Mapping[str, Any]) -> Task | DtqError:
        if result.get("task") is not None:
            return _task(result["task"])
        error = error_of(result["status"], result.get("problem"))
        try:
            return self._the_same(error) if isinstance(error, IdempotencyInProgress) else error
        except DtqError as lost:  # it has ended, and its retention too, in this very moment
            return lost

    def _call(self, method: str, path: str, **more: Any) -> Reply:
        return self._transport.call(Ask(method, path, **more))

    def _the_same(self, error: IdempotencyInProgress) -> Task:
        return self.get(str(error.context["task_id"]))._replace(duplicate=True)

    # --- looking ------------------------------------------------------------------------------------------------------

    def get(self, task_id: str) -> Task:
        """Return a task. Raises TaskNotFound."""
        return _task(self._call("GET", _task_path(task_id)).answer)

    def tasks(self, limit: int = 50, cursor: str | None = None, **filters: Any) -> TaskPage:
        """Return a page of tasks, newest first, without payloads, results and histories.

        filters: queue, status, task_type, tag, and created_after, created_before (datetimes with their zone).
        Raises InvalidRequest for what the server does not take.
        """
        query = {name: _sent(value) for name, value in filters.items() if value is not None}
        return _read(page_of, self._call("GET", _TASKS, query=_given(query, limit=limit, cursor=cursor)).answer)

    def iter_tasks(self, **filters: Any) -> Iterator[Task]:
        """Go through all tasks that fit, newest first, a page at a time; filters as for `tasks`."""
        cursor = None
        while True:
            page = self.tasks(**{"limit": 200, **filters, "cursor": cursor})
            yield from page.tasks
            cursor = page.next_cursor
            if cursor is None:
                return

    def wait(self, task_id: str, timeout_s: float) -> Task:
        """Return the task once it has ended, or as it is after `timeout_s` seconds. Raises TaskNotFound."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, min(MAX_WAIT_S, give_up_at - time.monotonic()))
            asked_at = time.monotonic()
            query = {"wait": f"{left_s:.3f}"}
            reply = self._call("GET", _task_path(task_id), query=query, wait_s=left_s)
            task = _task(reply.answer)
            if task.terminal or time.monotonic() >= give_up_at:
                return task
            if time.monotonic() - asked_at < left_s / 2:  # it has too many who wait, or is about to stop
                pause_s = max(reply.retry_after_s, _PAUSE_S)
                if not self._transport.pause(min(pause_s, max(0.0, give_up_at - time.monotonic()))):
                    return task

    def events(
        self,
        since: str | None = None,
        *,
        queue: str | None = None,
        types: Sequence[str] | None = None,
        task_id: str | None = None,
        poll_s: float = 1.0,
        for_s: float | None = None,
    ) -> Iterator[RemoteEvent]:
        """Go through events as they happen, oldest first; ends after `for_s` seconds, with `close`, or never.

        since: the id of an event, to begin after it, or "0" for the oldest that is held; None: with what happens from
        now on. poll_s: how often the server is asked when nothing is left. An event of the type `gap` says that events
        are lost before the next one.
        """
        give_up_at = None if for_s is None else time.monotonic() + for_s
        query = _given(queue=queue, task_id=task_id, type=",".join(types) if types else None)
        if since is None:
            since = str(self._call("GET", "/api/v1/events", query={"limit": 1}).answer["next_since"])
        while True:
            page = self._call("GET", "/api/v1/events", query={**query, "since": since, "limit": 200}).answer
            if page["gap"]:
                yield RemoteEvent(id="", type="gap")
            yield from (_read(event_of, one) for one in page["events"])
            since = page["next_since"]
            if give_up_at is not None and time.monotonic() >= give_up_at:
                return
            if not page["more"]:
                left_s = poll_s if give_up_at is None else min(poll_s, max(0.0, give_up_at - time.monotonic()))
                if not self._transport.pause(left_s):
                    return

    def queues(self) -> Sequence[Mapping[str, Any]]:
        """Return the queues with their counts, as the API shows them."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", "/api/v1/queues").answer["queues"]
        return found

    def workers(self) -> Sequence[Mapping[str, Any]]:
        """Return the live workers, as the API shows them."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", "/api/v1/workers").answer["workers"]
        return found

    # --- changing -----------------------------------------------------------------------------------------------------

    def cancel(self, task_id: str, reason: str = "") -> Task:
        """Cancel a task: at once if it waits; a running one is told. Raises TaskNotFound, TaskFinished."""
        body = {"reason": reason} if reason else {}
        reply = self._call("POST", f"{_task_path(task_id)}/cancel", body=body, also=_GONE)
        if reply.status != _GONE:
            return _task(reply.answer)
        error = error_of(_GONE, reply.answer)
        if reply.repeated and error.context.get("status") == "cancelled":
            return self.get(task_id)  # by this call, whose first answer was lost
        raise error

    def cancel_matching(
        self, *, dry_run: bool = False, rate: float | None = None, reason: str = "", **filters: Any
    ) -> Mapping[str, Any]:
        """Cancel all tasks that fit and have not ended; return the bulk job as the API shows it, which may go on.

        dry_run: only count, and show five. rate: at most so many a second. filters: as for `tasks`, and q, a query
        such as `type:email.* age>10m`; none means all. `bulk_job` tells how far it is.
        Not sent again once it may have been carried out: a second time would find tasks that came after the first.
        """
        given = {name: _sent(value) for name, value in filters.items() if value is not None}
        body = _given({"filter": given, "dry_run": dry_run}, rate=rate, reason=reason or None)
        found: Mapping[str, Any] = self._call("POST", f"{_TASKS}/cancel", body=body, repeatable=dry_run).answer
        return found

    def bulk_job(self, bulk_id: str) -> Mapping[str, Any]:
        """Return how far a bulk job is, as the API shows it. Raises BulkJobNotFound."""
        found: Mapping[str, Any] = self._call("GET", f"/api/v1/bulk/{quote(bulk_id, safe='')}").answer
        return found

    def requeue(self, task_id: str, *, queue: str | None = None, priority: int | None = None, reason: str = "") -> Task:
        """Queue a dead letter again. Raises TaskNotFound, WrongState.

        Not sent again once it may have been carried out: a second time would find no dead letter, or a new one.
        """
        body = _given(queue=queue, priority=priority, reason=reason or None)
        path = f"/api/v1/dlq/{_checked_id(task_id)}/requeue"
        return _task(self._call("POST", path, body=body, repeatable=False).answer)

    def pause(self, queue: str, reason: str = "") -> None:
        """Pause a queue: nothing new starts, what runs goes on."""
        self._call("POST", f"/api/v1/queues/{_checked_queue(queue)}/pause", body={"reason": reason} if reason else {})

    def resume(self, queue: str) -> None:
        """Resume a paused queue."""
        self._call("POST", f"/api/v1/queues/{_checked_queue(queue)}/resume")


def _task_path(task_id: str) -> str:
    return f"{_TASKS}/{_checked_id(task_id)}"


def _checked_id(task_id: str) -> str:
    if not re.fullmatch("[0-9a-f]{32}", task_id):
        raise TaskNotFound("there is no such task: ids are 32 hexadecimal digits")
    return task_id


def _checked_queue(queue: str) -> str:
    if not re.fullmatch("[a-z0-9][a-z0-9_-]{0,63}", queue):
        raise QueueNotFound("there can be no such queue: names are 1 to 64 of a-z 0-9 _ -")
    return queue


def _submission(asked: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: _sent(value) for name, value in asked.items()}
    if given.get("idempotency_key") is None:
        given["idempotency_key"] = secrets.token_hex(16)
    return given


def _batches(asked: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any] | DtqError]]:
    """Cut into requests of bounded size; what JSON cannot say is an error in its place."""
    batch: list[Mapping[str, Any] | DtqError] = []
    size = 0
    for one in asked:
        given: Mapping[str, Any] | DtqError
        try:
            given = _submission(one)
            length = len(json.dumps(given, ensure_ascii=False, allow_nan=False).encode())
        except (TypeError, ValueError, AttributeError, RecursionError):
            given, length = InvalidTask("holds what JSON cannot say"), 0
        if batch and (len(batch) == MAX_BATCH or size + length > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(given)
        size += length
    if batch:
        yield batch


def _sent(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _given(known: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {**(known or {}), **{name: value for name, value in more.items() if value is not None}}


def _task(answer: Any) -> Task:
    return _read(task_of, answer)


def _read(read: Callable[[Any], T], answer: Any) -> T:
    try:
        return read(answer)
    except (KeyError, ValueError, TypeError) as error:
        raise HttpError(f"the server does not answer as this dtq expects: {error!r}") from None
