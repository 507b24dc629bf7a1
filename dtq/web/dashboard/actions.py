"""What operators do to one thing: a queue, a task, a dead letter, a worker."""

from __future__ import annotations

from flask import Response, g, request

from dtq.errors import QueueNotFound
from dtq.keys import QUEUE_NAME
from dtq.states import Status
from dtq.web.auth import actor
from dtq.web.dashboard.action import action, back
from dtq.web.dashboard.flash import Said
from dtq.web.dashboard.jsontree import NOTHING_HIDDEN
from dtq.web.dashboard.page import html, look, prepare
from dtq.web.dashboard.task import context
from dtq.web.engine import engine
from dtq.web.http import checked_task_id


def done(text: str, link: str = "", link_text: str = "") -> Said:
    """Say that something was done."""
    return Said(kind="done", text=text, link=link, link_text=link_text)


@action("/queues/<queue>/pause")
def pause(queue: str) -> Said:
    """Let nothing more of a queue start."""
    if not engine().client.pause(_queue(queue), actor=actor(_reason())):
        return done(f"{queue} was paused already.")
    return done(f"{queue} is paused. What runs goes on; nothing new starts.")


@action("/queues/<queue>/resume")
def resume(queue: str) -> Said:
    """Let a queue go on."""
    if not engine().client.resume(_queue(queue), actor=actor(_reason())):
        return done(f"{queue} was not paused.")
    return done(f"{queue} goes on, in the order that it had.")


@action("/tasks/<task_id>/cancel")
def cancel(task_id: str) -> Said:
    """Cancel a task, or ask its worker to."""
    task = engine().client.cancel(checked_task_id(task_id), actor=actor(_reason()))
    if task.status is Status.RUNNING:
        return done("Its worker was asked to cancel it, and hears of it within a second.")
    return done("The task is cancelled.")


@action("/dead/<task_id>/requeue")
def requeue(task_id: str) -> Said:
    """Queue a dead letter again."""
    task = engine().client.requeue(checked_task_id(task_id), actor=actor(_reason()))
    return done(f"{task.task_type} is queued again. Its attempts start anew.", f"/tasks/{task_id}", "Follow it")


@action("/dead/<task_id>/discard")
def discard(task_id: str) -> Said:
    """Give a dead letter up."""
    task = engine().client.discard(checked_task_id(task_id), actor=actor(_reason()))
    return done(f"{task.task_type} was given up. Its record stays for its retention.", f"/tasks/{task_id}", "See it")


@action("/workers/<worker_id>/quiet")
def quiet(worker_id: str) -> Said:
    """Let a worker claim nothing more."""
    if not engine().client.tell_worker(worker_id, "quiet", actor=actor(_reason())):
        return done(f"{worker_id} was told so already.")
    return done(f"{worker_id} is told to take no more tasks. It finishes what it runs.")


@action("/workers/<worker_id>/stop")
def stop(worker_id: str) -> Response:
    """Let a worker drain and end."""
    engine().client.tell_worker(worker_id, "stop", actor=actor(_reason()))
    return back(done(f"{worker_id} is told to finish what it runs and to end."), "/workers")


@action("/tasks/<task_id>/reveal")
def reveal(task_id: str) -> Response:
    """Show a task with what is hidden, once; the audit says who looked."""
    engine().client.control.note("task.reveal", checked_task_id(task_id), actor(_reason()))
    prepare()
    g.area = "tasks"
    return html("tasks/show.html", **context(look(), task_id, redactor=NOTHING_HIDDEN))


def _reason() -> str:
    return request.form.get("reason", "").strip()


def _queue(queue: str) -> str:
    if not QUEUE_NAME.fullmatch(queue):
        raise QueueNotFound("there can be no such queue")
    return queue
