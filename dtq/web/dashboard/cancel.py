"""Cancelling many tasks: those selected on a page, or all that a query finds."""

from __future__ import annotations

import math
from dataclasses import replace

from flask import request
from werkzeug.wrappers import Response as WerkzeugResponse

from dtq.bulk import BulkWish
from dtq.errors import TaskFinished, TaskNotFound
from dtq.states import TERMINAL
from dtq.taskfilter import TaskFilter
from dtq.taskquery import parse
from dtq.web.auth import actor
from dtq.web.dashboard.action import action, back
from dtq.web.dashboard.bulk import (
    RATES,
    SAMPLES,
    TOLD,
    TYPED_ABOVE,
    carry_out,
    chosen_ids,
    chosen_rate,
    typed_number,
)
from dtq.web.dashboard.flash import Said, own_path
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads
from dtq.web.dashboard.words import plural
from dtq.web.engine import engine
from dtq.web.sessions import allow_page

GROWTH = 1.1
"""More than so many times what was shown is not what was confirmed: tasks may have moved to a status asked for."""


@page("/tasks/cancel", area="tasks", name="cancel")
def ask(reads: Reads, asked: Asked) -> Context | WerkzeugResponse:
    """Show which of the selected tasks would be cancelled."""
    allow_page("destructive")
    ids, to = chosen_ids(asked.getlist("id")), own_path(asked.get("back", "/tasks"))
    if not ids:
        return back(Said(kind="failed", text="Select some tasks first."), to)
    tasks = [task for task in reads.client.queries.some_tasks(ids) if task is not None]
    live = [task for task in tasks if not task.terminal]
    return {"title": f"Cancel {plural(len(live), 'task')}", "tasks": live, "ended": len(ids) - len(live), "back": to}


@action("/tasks/cancel")
def do() -> Said | WerkzeugResponse:
    """Cancel the selected tasks, one after the other: a page of them at most."""
    to, done, ended = own_path(request.form.get("to", "/tasks")), 0, 0
    who = actor(request.form.get("reason", "").strip())
    for task_id in chosen_ids(request.form.getlist("id")):
        try:
            engine().client.control.cancel(task_id, who)
            done += 1
        except (TaskFinished, TaskNotFound):
            ended += 1
    said = f"Cancelled {plural(done, 'task')}" + (f"; {ended:,} had ended before" if ended else "")
    return back(Said(kind="done", text=f"{said}. Those that run are told, and end within a second."), to)


@page("/tasks/cancel-all", area="tasks", name="cancel_all")
def ask_all(reads: Reads, asked: Asked) -> Context | WerkzeugResponse:
    """Show how many tasks match, some of them, and what would be passed over. What comes later is not among them."""
    allow_page("destructive")
    q, to, at = asked.get("q", ""), own_path(asked.get("back", "/tasks")), reads.client.server.now()
    wanted = _wanted(q, at)
    if wanted is None:
        return back(Said(kind="failed", text="Nothing can be done for a query that is not understood in full."), to)
    total, samples, exact = reads.client.preview(BulkWish(action="task.cancel", tasks=wanted), SAMPLES)
    ended = replace(wanted, status=None, statuses=tuple(one for one in wanted.chosen if one in TERMINAL))
    return {
        "title": f"Cancel {'' if exact else 'at least '}{plural(total, 'task')}",
        "told": TOLD["task.cancel"],
        "total": total,
        "exact": exact,
        "samples": samples,
        "some_end": bool(ended.statuses),
        "ended": reads.client.queries.count_indexed(ended) if ended.statuses and wanted.indexed else None,
        "q": q,
        "at": f"{at:.6f}",
        "typed": total > TYPED_ABOVE or not exact,
        "rates": RATES,
        "back": to,
    }


@action("/tasks/cancel-all")
def do_all() -> Said | WerkzeugResponse:
    """Cancel all that matched when it was asked for, and that still do."""
    form, client = request.form, engine().client
    to = own_path(form.get("to", "/tasks"))
    wanted = _wanted(form.get("q", ""), _moment(form.get("at", ""), client.server.now()))
    if wanted is None:
        return back(Said(kind="failed", text="Nothing was done: the query is not understood in full."), to)
    wish = BulkWish(action="task.cancel", tasks=wanted, rate=chosen_rate())
    total, exact = client.bulk.count(wish)
    if total > TYPED_ABOVE or not exact:
        typed = typed_number()[:15]
        if not typed or typed != form.get("shown", "") or total > GROWTH * int(typed):
            text = f"Nothing was done: {total:,} match now; type the number that is shown to confirm."
            return back(Said(kind="failed", text=text), to)
    return carry_out(wish, to)


def _wanted(q: str, at: float) -> TaskFilter | None:
    """Return the filter of what matched at a time; None when the query is not understood in full."""
    query = parse(q)
    if query.problems:
        return None
    wanted = TaskFilter.of(query, at)
    return replace(wanted, created_before=min(at, wanted.created_before or at))


def _moment(text: str, now: float) -> float:
    try:
        at = float(text)
    except ValueError:
        return now
    return min(at, now) if math.isfinite(at) and at >= 0 else now
