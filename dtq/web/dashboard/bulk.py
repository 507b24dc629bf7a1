"""What is done to many tasks at once: asked with a count and samples, carried on beside the requests, and shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from flask import redirect, request
from werkzeug.wrappers import Response as WerkzeugResponse

from dtq.bulk import Action, BulkJob, BulkWish
from dtq.control import check_place
from dtq.errors import BulkJobNotFound, RedisUnavailable
from dtq.keys import TASK_ID
from dtq.web.auth import actor
from dtq.web.dashboard.action import action, back
from dtq.web.dashboard.dead import A_PAGE, dead_filter, parse_dead
from dtq.web.dashboard.flash import Said, own_path
from dtq.web.dashboard.page import Asked, Context, look, page
from dtq.web.dashboard.reads import Reads
from dtq.web.dashboard.words import plural
from dtq.web.engine import engine
from dtq.web.sessions import allow_page

INLINE_S = 1.0
"""For how long an answer waits for a job to end, before it shows the job."""
TYPED_ABOVE = 1_000
SAMPLES = 5
RATES = (10, 50, 200, 1_000)

VERB = {
    "dlq.requeue": "Requeue",
    "dlq.discard": "Discard",
    "dlq.purge": "Discard",
    "queue.purge": "Cancel",
    "task.cancel": "Cancel",
}
TOLD = {
    "dlq.requeue": "These tasks run again from the start. Their attempts begin anew, their history is kept.",
    "dlq.discard": "These tasks are given up. Their entries go; their records stay for their retention.",
    "task.cancel": "Those that wait never start. Those that run are told, and end within a second; what they have done "
    "stays done.",
    "queue.purge": "All that waits in this queue, or for it, is cancelled. What runs goes on.",
}
PAST = {
    "dlq.requeue": "Requeued",
    "dlq.discard": "Discarded",
    "dlq.purge": "Discarded",
    "queue.purge": "Cancelled",
    "task.cancel": "Cancelled",
}


# --- asking -----------------------------------------------------------------------------------------------------------


@page("/dead/bulk", area="dead", name="bulk")
def ask(reads: Reads, asked: Asked) -> Context | WerkzeugResponse:
    """Show how many dead letters it is about, and some of them, before anything is done."""
    allow_page("destructive")
    verb = asked.get("action", "")
    wish = _wish(verb, asked.getlist("id"), asked.get("q", ""), "all" in asked, reads.now)
    to = own_path(asked.get("back", "/dead"))
    if wish is None:
        return back(Said(kind="failed", text="Select some dead letters first, or all that match."), to)
    total, samples, _ = engine().client.preview(wish, SAMPLES)
    return {
        "title": f"{VERB[wish.action]} {plural(total, 'dead letter')}",
        "verb": VERB[wish.action],
        "verb_key": verb,
        "told": TOLD[wish.action],
        "total": total,
        "samples": samples,
        "ids": wish.task_ids,
        "q": asked.get("q", ""),
        "everything": "all" in asked,
        "typed": total > TYPED_ABOVE,
        "rates": RATES,
        "back": to,
    }


@page("/queues/<queue>/purge", area="queues", name="purge")
def ask_purge(reads: Reads, asked: Asked, queue: str) -> Context:
    """Show what a purge of a queue would cancel."""
    allow_page("destructive")
    check_place(queue)
    total, samples, _ = engine().client.preview(BulkWish(action="queue.purge", queue=queue), SAMPLES)
    return {"title": f"Purge {queue}", "queue": queue, "total": total, "samples": samples, "told": TOLD["queue.purge"]}


@page("/workers/<worker_id>/stop", area="workers", name="stop")
def ask_stop(reads: Reads, asked: Asked, worker_id: str) -> Context:
    """Show what stopping a worker means."""
    allow_page("destructive")
    worker = next((one for one in reads.workers if one.worker_id == worker_id), None)
    return {"title": f"Stop {worker_id[:80]}", "worker_id": worker_id, "worker": worker}


# --- doing ------------------------------------------------------------------------------------------------------------


@action("/dead/bulk")
def do(**_: str) -> Said | WerkzeugResponse:
    """Begin what was asked for and confirmed."""
    form = request.form
    wish = _wish(form.get("action", ""), form.getlist("id"), form.get("q", ""), "all" in form, look().now)
    to = own_path(form.get("to", "/dead"))
    if wish is None:
        return back(Said(kind="failed", text="Nothing was selected."), to)
    wish = replace(wish, rate=chosen_rate())
    if wish.wanted is not None:
        total = engine().client.bulk.count(wish)[0]
        if total > TYPED_ABOVE and typed_number() != str(total):
            return back(Said(kind="failed", text=f"Nothing was done: type the number, {total:,}, to confirm."), to)
    return carry_out(wish, to)


@action("/queues/<queue>/purge")
def purge(queue: str) -> Said | WerkzeugResponse:
    """Purge a queue whose name was typed."""
    check_place(queue)
    to = f"/queues/{queue}"
    if request.form.get("name", "").strip() != queue:
        return back(Said(kind="failed", text=f"Nothing was done: type the name of the queue, {queue}, to confirm."), to)
    return carry_out(BulkWish(action="queue.purge", queue=queue), to)


@action("/bulk/<bulk_id>/abort")
def abort(bulk_id: str) -> Said:
    """Let a bulk job go no further."""
    job = engine().client.abort_bulk(_checked(bulk_id), actor=actor(request.form.get("reason", "")))
    return Said(kind="done", text=f"It goes no further. {outcome(job)}")


def carry_out(wish: BulkWish, to: str) -> WerkzeugResponse:
    """Begin a job; say what it did where it is done at once, else lead to where its progress is shown."""
    shared = engine()
    client = shared.client
    job = client.begin_bulk(wish, actor=actor(request.form.get("reason", "").strip()))
    try:
        if wish.rate is None:
            job = client.run_bulk(job, stop=shared.stopping, within_s=INLINE_S)
    except RedisUnavailable:  # it is written down, and goes on once Redis is back
        pass
    if job.ended:
        return back(Said(kind="done", text=outcome(job), link=f"/bulk/{job.bulk_id}", link_text="See the job"), to)
    shared.bulk.nudge()
    return redirect(f"/bulk/{job.bulk_id}", 303)


def outcome(job: BulkJob) -> str:
    """Return what a job has done, in a sentence."""
    said = f"{PAST[job.wish.action]} {plural(job.done, 'task')}"
    before = "had ended or changed before" if job.wish.action == "task.cancel" else "had changed before"
    said += f"; {job.skipped:,} {before}" if job.skipped else ""
    said += f"; {job.failed:,} could not be changed" if job.failed else ""
    return f"{said}."


# --- looking ----------------------------------------------------------------------------------------------------------


@page("/bulk", area="bulk", parts={"jobs": "bulk/_jobs.html"})
def index(reads: Reads, asked: Asked) -> Context:
    """Show the last bulk jobs."""
    return {"title": "Bulk jobs", "jobs": reads.client.bulk.recent(), "past": PAST}


@page("/bulk/<bulk_id>", area="bulk", name="show", parts={"job": "bulk/_job.html"}, every_s=0.5)
def show(reads: Reads, asked: Asked, bulk_id: str) -> Context:
    """Show how far a bulk job is."""
    job = reads.client.bulk.get(_checked(bulk_id))
    return {"title": "Bulk job", "job": job, "verb": VERB[job.wish.action], "outcome": outcome(job)}


def _wish(verb: str, ids: Sequence[str], q: str, everything: bool, now: float) -> BulkWish | None:
    """Return what is asked for; None when that is nothing."""
    actions: dict[str, Action] = {"requeue": "dlq.requeue", "discard": "dlq.discard"}
    if verb not in actions:
        return None
    query = parse_dead(q)
    if everything and not query.problems:
        return BulkWish(action=actions[verb], wanted=dead_filter(query, now))
    chosen = chosen_ids(ids)
    return BulkWish(action=actions[verb], task_ids=chosen) if chosen and not everything else None


def chosen_rate() -> float | None:
    """Return at most how many a second the form asks for; None for as many as can be."""
    rate = request.form.get("rate", "")
    return float(rate) if rate in map(str, RATES) else None


def typed_number() -> str:
    """Return the digits of the number that was typed to confirm."""
    return re.sub(r"\D", "", request.form.get("number", ""))


def chosen_ids(given: Sequence[str]) -> list[str]:
    """Return the ids of tasks among what was sent, each once, a page of them at most."""
    return list(dict.fromkeys(one for one in given if TASK_ID.fullmatch(one)))[:A_PAGE]


def _checked(bulk_id: str) -> str:
    if not TASK_ID.fullmatch(bulk_id):
        raise BulkJobNotFound("there is no such bulk job")
    return bulk_id
