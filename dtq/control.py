"""What operators do to one thing: a task, a queue, a worker. Each is one Lua script, which also writes the audit."""

from __future__ import annotations

from typing import Literal, NoReturn

from dtq.encoding import plain, who
from dtq.errors import (
    InvalidTask,
    NewerSchema,
    TaskFinished,
    TaskNotFound,
    TooManyQueues,
    Undecodable,
    WorkerNotFound,
    WrongState,
)
from dtq.keys import QUEUE_NAME, Keys
from dtq.limits import script_limits
from dtq.model import Actor, dumps, new_operation_id
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.settings import Settings
from dtq.states import BANDS, Status

Command = Literal["quiet", "stop"]


class Control:
    """Changes what an operator names. Safe to use from any thread.

    What was really done is audited, once; what was refused, or done already, is not. Every method raises
    RedisUnavailable when Redis is away and, where it would need memory, RedisFull.
    """

    def __init__(self, server: Server, settings: Settings) -> None:
        """server: connected; nothing is sent yet."""
        self._scripts = Scripts(server, Keys(settings.namespace), script_limits(settings))

    # --- tasks --------------------------------------------------------------------------------------------------------

    def cancel(self, task_id: str, actor: Actor) -> Status:
        """Cancel a task, or ask its worker to. The reason is kept with the task.

        Returns CANCELLED, or RUNNING when the worker was asked.
        Raises TaskNotFound, TaskFinished, NewerSchema, Undecodable.
        """
        reply = self._scripts.run(
            "task_cancel",
            id=task_id,
            operation_id=new_operation_id(),
            who=who(actor),
            reason=plain(actor.reason or f"cancelled by {actor.name}"),
        )
        if reply[0] not in (b"CANCELLED", b"REQUESTED"):
            _refuse(task_id, reply)
        return Status.CANCELLED if reply[0] == b"CANCELLED" else Status.RUNNING

    def requeue(self, task_id: str, actor: Actor, *, queue: str | None = None, priority: int | None = None) -> None:
        """Queue a dead letter again, its attempts starting anew, optionally elsewhere.

        Raises TaskNotFound, WrongState, NewerSchema, Undecodable, TooManyQueues, InvalidTask (queue or priority).
        """
        check_place(queue, priority)
        reply = self._scripts.run(
            "task_requeue",
            id=task_id,
            operation_id=new_operation_id(),
            who=who(actor),
            mark=requeue_mark(actor),
            to_queue=queue or "",
            to_priority="" if priority is None else priority,
        )
        if reply[0] != b"QUEUED":
            _refuse(task_id, reply)

    def discard(self, task_id: str, actor: Actor) -> None:
        """Give a dead letter up: its entry goes, its task stays for the retention, failed and marked.

        Raises TaskNotFound, WrongState, NewerSchema, Undecodable.
        """
        reply = self._scripts.run("task_discard", id=task_id, operation_id=new_operation_id(), who=who(actor))
        if reply[0] != b"DISCARDED":
            _refuse(task_id, reply)

    # --- queues -------------------------------------------------------------------------------------------------------

    def pause(self, queue: str, actor: Actor) -> bool:
        """Let nothing of a queue be claimed any more; what runs goes on. Returns False when it was paused already.

        Raises InvalidTask for a name that no queue can have.
        """
        return self._turn("queue_pause", queue, actor)

    def resume(self, queue: str, actor: Actor) -> bool:
        """Let a queue be claimed again. Returns False when it was not paused. Raises InvalidTask as `pause` does."""
        return self._turn("queue_resume", queue, actor)

    def _turn(self, script: str, queue: str, actor: Actor) -> bool:
        check_place(queue)
        return bool(
            self._scripts.run(
                script,
                queue=queue,
                operation_id=new_operation_id(),
                who=who(actor),
                actor=plain(actor.name),
                reason=plain(actor.reason),
            )
        )

    # --- workers ------------------------------------------------------------------------------------------------------

    def tell_worker(self, worker_id: str, command: Command, actor: Actor) -> bool:
        """Tell a worker to claim nothing more (quiet) or to drain and end (stop); it hears of it within a second.

        Returns False when it had been told so, or to stop, already. Raises WorkerNotFound.
        """
        told = self._scripts.run(
            "worker_command", worker=worker_id, command=command, operation_id=new_operation_id(), who=who(actor)
        )
        if told < 0:
            raise WorkerNotFound(f"there is no live worker {worker_id}", worker_id=worker_id)
        return bool(told)

    # --- looking ------------------------------------------------------------------------------------------------------

    def note(self, action: str, target: str, actor: Actor) -> None:
        """Write down what somebody did that changed nothing, such as looking at what is hidden."""
        self._scripts.run("audit_note", action=action, target=target, operation_id=new_operation_id(), who=who(actor))


def requeue_mark(actor: Actor) -> str:
    """Return what the history of a task tells of its requeue: JSON members without their braces."""
    name = plain(actor.name)
    return dumps({"m": f"requeued by {name}", "by": name})[1:-1]


def check_place(queue: str | None, priority: int | None = None) -> None:
    """Refuse what cannot be a queue or a priority. Raises InvalidTask."""
    if queue is not None and not QUEUE_NAME.fullmatch(queue):
        _invalid("/queue", "must be 1 to 64 of a-z 0-9 _ -, beginning with a letter or a digit")
    if priority is not None and priority not in BANDS:
        _invalid("/priority", "must be an integer from 0 to 9, where 9 is the most urgent")


def _invalid(pointer: str, message: str) -> NoReturn:
    raise InvalidTask(f"{pointer}: {message}", errors=[{"pointer": pointer, "message": message}])


def _refuse(task_id: str, reply: list[bytes]) -> NoReturn:
    """Raise what a script says of a task that it has left alone."""
    code = reply[0]
    if code == b"UNKNOWN":
        raise TaskNotFound(f"there is no task {task_id}: it never existed, or its retention ended", task_id=task_id)
    if code == b"NEWER":
        raise NewerSchema(f"task {task_id} was written by a newer dtq; upgrade this process", task_id=task_id)
    if code == b"TOO_MANY_QUEUES":
        raise TooManyQueues("there are DTQ_MAX_QUEUES queues already; requeue into one of them")
    if code == b"UNDECODABLE":
        raise Undecodable(f"the record of task {task_id} cannot be read; something else changed it", task_id=task_id)
    status = reply[1].decode(errors="replace")
    if code == b"FINISHED":
        raise TaskFinished(f"task {task_id} has ended already: {status}", task_id=task_id, status=status)
    raise WrongState(f"task {task_id} is {status}, not dead_lettered", task_id=task_id, status=status)
