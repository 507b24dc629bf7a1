"""What operators do, for the web, the command line and programs: the half of the client that changes what runs."""

from __future__ import annotations

from dtq.control import Command, Control
from dtq.model import Actor, Task
from dtq.queries import Queries

PROGRAM = Actor("client")
"""Who the audit names when a program does not say who asks."""


class Operators:
    """The calls of operators. What is done is audited under the name of the actor."""

    control: Control
    queries: Queries

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
