"""What operators do, for the web, the command line and programs: the half of the client that changes what runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dtq.bulk import BulkJob, BulkJobs, BulkWish, Preview, count_matching, run_job
from dtq.bulk.jobs import check_wish
from dtq.control import Command, Control
from dtq.deadletters import DeadFilter
from dtq.errors import DeadLetterNotFound, InvalidTask, TaskNotFound
from dtq.model import Actor, Task
from dtq.queries import Queries
from dtq.redisio import Server
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from dtq.taskquery import parse

PROGRAM = Actor("client")
"""Who the audit names when a program does not say who asks."""


class Operators:
    """The calls of operators. What is done is audited under the name of the actor."""

    bulk: BulkJobs
    control: Control
    queries: Queries
    server: Server

    # --- one task -----------------------------------------------------------------------------------------------------

    def cancel(self, task_id: str, *, actor: Actor = PROGRAM) -> Task:
        """Cancel a task, or ask its worker to, and return it as it is then. Raises TaskNotFound, TaskFinished."""
        self.control.cancel(task_id, actor)
        return self.queries.task(task_id)

    def requeue(
        self, task_id: str, *, actor: Actor = PROGRAM, queue: str | None = None, priority: int | None = None
    ) -> Task:
        """Queue a dead letter again, attempts anew, and return it. Raises TaskNotFound, WrongState."""
        self.control.requeue(task_id, actor, queue=queue, priority=priority)
        return self.queries.task(task_id)

    def discard(self, task_id: str, *, actor: Actor = PROGRAM) -> Task:
        """Give a dead letter up and return its task, kept for its retention. Raises TaskNotFound, WrongState."""
        self.control.discard(task_id, actor)
        return self.queries.task(task_id)

    # --- a queue, a worker --------------------------------------------------------------------------------------------

    def pause(self, queue: str, *, actor: Actor = PROGRAM) -> bool:
        """Let nothing more of a queue start. Returns False when it was paused already. Raises InvalidTask."""
        return self.control.pause(queue, actor)

    def resume(self, queue: str, *, actor: Actor = PROGRAM) -> bool:
        """Let a queue go on. Returns False when it was not paused. Raises InvalidTask."""
        return self.control.resume(queue, actor)

    def tell_worker(self, worker_id: str, command: Command, *, actor: Actor = PROGRAM) -> bool:
        """Tell a worker to be quiet or to stop; it hears of it within a second. Raises WorkerNotFound.

        Returns False when it had been told so, or to stop, already.
        """
        return self.control.tell_worker(worker_id, command, actor)

    # --- many tasks ---------------------------------------------------------------------------------------------------

    def preview(self, wish: BulkWish, samples: int = 5) -> Preview:
        """Return how many tasks a bulk wish is about, and the newest few, and change nothing. Raises InvalidTask.

        samples: how many; dead letters, or brief tasks where they are cancelled.
        """
        letters = self.queries.dead_letters
        if wish.tasks is not None:
            check_wish(wish)
            total, found, exact = count_matching(self.queries, wish.tasks, samples)
            return Preview(total, [task.as_json(brief=True) for task in found], exact)
        total, _ = self.bulk.count(wish)
        if wish.queue is not None:
            waiting = [
                task
                for status in (Status.QUEUED, Status.RETRYING, Status.PENDING)
                for task in self.queries.tasks(TaskFilter(queue=wish.queue, status=status), samples).tasks
            ]
            return Preview(total, [task.as_json(brief=True) for task in waiting[:samples]])
        if not wish.task_ids:
            page = letters.page(wish.wanted or DeadFilter(), samples, None)
            return Preview(total, [letter.as_json() for letter in page.letters])
        shown: list[dict[str, Any]] = []
        for task_id in wish.task_ids[: 4 * samples]:
            try:
                shown.append(letters.of_task(task_id).as_json())
            except (TaskNotFound, DeadLetterNotFound):  # it will be skipped
                continue
        return Preview(total, shown[:samples])

    def cancel_matching(
        self, wanted: TaskFilter | str, *, actor: Actor = PROGRAM, rate: float | None = None
    ) -> BulkJob:
        """Cancel all tasks that fit and that there are now, and return the bulk job once it has ended.

        wanted: a filter, or a query such as `type:email.* age>10m`; those that have ended are passed over, those that
        run are told. rate: at most so many a second. Raises InvalidTask, TooManyBulkJobs.
        """
        return self.run_bulk(self.begin_bulk(self.cancel_wish(wanted, rate), actor=actor))

    def cancel_wish(self, wanted: TaskFilter | str, rate: float | None = None) -> BulkWish:
        """Return what `cancel_matching` asks for. Raises InvalidTask for a query that is not understood."""
        if isinstance(wanted, str):
            query = parse(wanted)
            faults = [{"pointer": "/q", "message": f"{one.text}: {one.problem}"} for one in query.problems]
            if faults:
                raise InvalidTask(f"q: {faults[0]['message']}", errors=faults)
            wanted = TaskFilter.of(query, self.server.now())
        return BulkWish(action="task.cancel", tasks=wanted, rate=rate)

    def begin_bulk(self, wish: BulkWish, *, actor: Actor = PROGRAM) -> BulkJob:
        """Write down what is to be done to many tasks; `run_bulk` does it. Raises InvalidTask, TooManyBulkJobs."""
        return self.bulk.begin(wish, actor)

    def run_bulk(
        self,
        job: BulkJob,
        *,
        stop: threading.Event | None = None,
        within_s: float = float("inf"),
        watch: Callable[[BulkJob], None] | None = None,
    ) -> BulkJob:
        """Carry a bulk job on and return it as it is then: see `dtq.bulk.run_job`."""
        return run_job(self.bulk, job, stop=stop, within_s=within_s, watch=watch)

    def abort_bulk(self, bulk_id: str, *, actor: Actor = PROGRAM) -> BulkJob:
        """Let a bulk job go no further. Raises BulkJobNotFound, BulkJobEnded."""
        return self.bulk.abort(bulk_id, actor)
