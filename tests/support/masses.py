"""Very many tasks, written into Redis as the scripts would have left them, in seconds."""

from __future__ import annotations

import json
import time
from typing import Any

from dtq.client import Client
from dtq.model import new_task_id
from dtq.states import Status

CHUNK = 2_000
TYPES = tuple(f"type.{number}" for number in range(40))
QUEUES = tuple(f"queue-{number}" for number in range(12))
_ERROR = '{{"class":"{}","message":"row {}: connection refused by host {}"}}'
_CLASSES = ("OSError", "TimeoutError", "ValueError", "HTTPError")


def seed(client: Client, *, tasks: int, dead: int) -> None:
    """Write finished tasks and dead letters, an hour of counters, and what queues look like then."""
    keys, server = client.broker.keys, client.server
    now_us = round(time.time() * 1e6)
    commands: list[tuple[Any, ...]] = []
    for number in range(tasks + dead):
        is_dead = number >= tasks
        task_id, queue, task_type = new_task_id(), QUEUES[number % 12], TYPES[number % 40]
        created = now_us - (tasks + dead - number) * 1_000
        status = Status.DEAD_LETTERED if is_dead else Status.SUCCEEDED
        fields: list[Any] = ["v", 1, "type", task_type, "queue", queue, "priority", number % 10, "seq", 2, "attempt", 1,
                             "created", created, "status", status.value, "started", created // 1000,
                             "finished", created // 1000 + 40, "worker", "w1", "max_attempts", 5]  # fmt: skip
        if is_dead:
            entry, error = f"{created // 1000}-{number}", _ERROR.format(_CLASSES[number % 4], number, number % 7)
            fields += ["error", error, "reason", "exhausted", "failures", 1, "dead", entry]
            commands.append(
                ("XADD", keys.dead_letter(), entry, "id", task_id, "queue", queue, "type", task_type, "reason",
                 "exhausted", "attempts", 1, "worker", "w1", "error", error)
            )  # fmt: skip
        else:
            fields += ["duration", 40]
        commands += [
            ("HSET", keys.task(task_id), *fields),
            ("SET", keys.payload(task_id), json.dumps({"n": number})),
            ("ZADD", keys.index(queue, status.value), created, task_id),
        ]
        if len(commands) >= CHUNK:
            server.pipeline(commands)
            commands = []
    minute = now_us // 60_000_000
    for queue in QUEUES:
        commands.append(("ZADD", keys.queues(), now_us // 1000, queue))
        for back in range(60):
            counts = [
                part
                for name in TYPES
                for what in ("submitted", "started", "succeeded")
                for part in (f"{name}:{what}", 7)
            ]
            commands.append(("HSET", keys.minute(queue, minute - back), *counts))
    server.pipeline(commands)
