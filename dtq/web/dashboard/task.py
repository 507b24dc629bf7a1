"""One task: its story, what it was given and what it gave, and how to send it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from flask import g

from dtq.model import Task
from dtq.queries import TaskParts
from dtq.states import Status
from dtq.web.dashboard import story
from dtq.web.dashboard.jsontree import MOST_NODES, Node, Redactor, tree
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads
from dtq.web.engine import engine
from dtq.web.http import checked_task_id

MOST_BYTES = 64 * 1024
"""Of a payload and of a result, unless more is asked for."""
MOST_NODES_ASKED = 5_000
MOST_CURL_CHARS = 4_000

PARTS = {"head": "task/_head.html", "story": "task/_story.html", "facts": "task/_facts.html"}


@page("/tasks/<task_id>", area="tasks", name="show", parts=PARTS)
def show(reads: Reads, asked: Asked, task_id: str) -> Context:
    """Show a task."""
    return context(reads, task_id, load=asked.get("load", ""))


def context(reads: Reads, task_id: str, *, load: str = "", redactor: Redactor | None = None) -> Context:
    """Return what the page of a task shows.

    load: "payload" or "result", to be read as a whole. redactor: what is hidden instead of what the settings say.
    """
    settings = engine().settings
    most_bytes = max(settings.max_payload_bytes, settings.result_max_bytes) + 1 if load else MOST_BYTES
    parts = reads.client.queries.task_parts(checked_task_id(task_id), most_bytes)
    hides = redactor or Redactor(settings.redact)
    task = parts.task
    return {
        "title": f"{task.task_type if task else 'Task'} {task_id[-8:]}",
        "task_id": task_id,
        "task": task,
        "fault": parts.fault,
        "said": story.sentence(task, reads.now) if task else "Its record cannot be read.",
        "held_by": _held_by(reads, task) if task else "",
        "rows": story.rows(task, reads.now) if task else (),
        "payload": _document(parts.payload, parts.payload_bytes, hides, load == "payload"),
        "result": _document(parts.result, parts.result_bytes, hides, load == "result"),
        "metadata": _tree(dict(task.metadata), hides) if task and task.metadata else None,
        "curl": _curl(task, parts, hides) if task else "",
        "record": _record(parts.record, hides),
        "revealed": redactor is not None,
        "may_cancel": task is not None and not task.terminal,
    }


def _held_by(reads: Reads, task: Task) -> str:
    """Return what keeps a waiting task from being taken: "paused", "unserved", or nothing that is known."""
    if task.status is not Status.QUEUED:
        return ""
    if reads.client.queries.queue(task.queue).paused is not None:
        return "paused"
    served = any(task.queue in worker.queues for worker in reads.workers if worker.state == "running")
    return "" if served else "unserved"


class Document:
    """A payload or a result, as far as it was read."""

    def __init__(self, size: int, root: Node | None, hidden: int) -> None:
        self.size, self.root, self.hidden = size, root, hidden


def _document(text: bytes, size: int, hides: Redactor, asked: bool) -> Document:
    """Return what is shown of a JSON text; nothing of one that was not read to its end: its secrets would be too."""
    if not size or len(text) < size:
        return Document(size, None, 0)
    try:
        value = json.loads(text)
        return Document(size, tree(value, hides, MOST_NODES_ASKED if asked else MOST_NODES), _hidden(value))
    except (ValueError, RecursionError):  # something else wrote it
        return Document(size, Node(kind="string", text="(this is not JSON that could be shown)"), 0)


def _hidden(value: Any) -> int:
    """Return how many values the settings hide, also for who sees them."""
    return Redactor(engine().settings.redact).redacted(value)[1]


def _tree(value: Any, hides: Redactor) -> Document:
    return Document(1, tree(value, hides), _hidden(value))


def _curl(task: Task, parts: TaskParts, hides: Redactor) -> str:
    """Return the command that submits such a task again."""
    body: dict[str, Any] = {"task_type": task.task_type, "queue": task.queue, "priority": task.priority}
    whole = parts.payload_bytes <= len(parts.payload)
    try:
        body["payload"] = hides.redacted(json.loads(parts.payload))[0] if whole else "…"
    except (ValueError, RecursionError):
        body["payload"] = {}
    if task.tags:
        body["tags"] = list(task.tags)
    if task.metadata:
        body["metadata"] = hides.redacted(dict(task.metadata))[0]
    text = json.dumps(body, ensure_ascii=False)
    if len(text) > MOST_CURL_CHARS:
        text = "@task.json"
    return (
        f"curl -X POST {shlex.quote(api_url())}/api/v1/tasks \\\n"
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(text)}"
    )


def api_url() -> str:
    """Return where the API is, as far as this process can know."""
    settings = engine().settings
    return settings.api_url or (g.get("origin", "") if settings.serve == "all" else "http://127.0.0.1:8000")


def _record(record: Mapping[str, str], hides: Redactor) -> str:
    """Return the hash as text, without what is hidden in its metadata."""
    shown = dict(record)
    if "extra" in shown:
        try:
            shown["extra"] = json.dumps(hides.redacted(json.loads(shown["extra"]))[0], ensure_ascii=False)
        except (ValueError, RecursionError):
            shown["extra"] = "(not JSON)"
    return "\n".join(f"{name:<14} {value}" for name, value in sorted(shown.items()))
