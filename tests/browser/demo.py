"""A lively namespace: queues that move, one that is paused, errors of several kinds, an hour of history."""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dtq.client import Client
from dtq.model import Actor, Claim, ErrorInfo, HandlerPolicy, Outcome, WorkerInfo
from dtq.states import Disposition, Status
from dtq.taskfilter import TaskFilter

TYPES = {
    "email": ("email.welcome", "email.receipt", "email.digest"),
    "images": ("image.resize", "image.thumbnail"),
    "reports": ("report.daily", "report.export"),
    "webhooks": ("webhook.deliver",),
    "default": ("user.sync", "search.index", "cache.warm"),
    "imports": ("catalog.import",),
}
RATES = {"email": 90, "images": 42, "reports": 6, "webhooks": 120, "default": 60, "imports": 9}
"""Tasks a minute."""

ERRORS: dict[str, Sequence[tuple[str, str, str]]] = {
    "email": (("SMTPServerDisconnected", "Connection unexpectedly closed: timed out", "smtp.py"),),
    "images": (("UnidentifiedImageError", "cannot identify image file 'upload-{n}.heic'", "resize.py"),),
    "reports": (("OperationalError", "canceling statement due to statement timeout", "queries.py"),),
    "webhooks": (
        (
            "ConnectionError",
            "HTTPSConnectionPool(host='hooks.example.com', port=443): connection refused",
            "deliver.py",
        ),
        ("HTTPError", "410 Client Error: Gone for url: https://hooks.example.com/v1/{n}", "deliver.py"),
    ),
    "default": (
        ("KeyError", "'customer_id'", "sync.py"),
        ("TimeoutError", "the read operation timed out", "search.py"),
    ),
    "imports": (("ValueError", "row {n}: price is not a number: 'n/a'", "catalog.py"),),
}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/tasks/{file}", line 48, in handle
    return deliver(payload, session=ctx.session)
  File "/srv/app/tasks/{file}", line 112, in deliver
    response = self._send(request, timeout=timeout)
  File "/srv/app/lib/transport.py", line 73, in _send
    raise {cls}({message!r})
{cls}: {message}
"""
WORKERS = {
    "web-1-4121": ("webhooks", "email", "default", "images"),
    "web-1-4122": ("webhooks", "email", "default", "images"),
    "web-2-877": ("webhooks", "email", "default", "images"),
    "batch-1-301": ("reports", "imports"),
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "format": "email", "description": "who gets it"},
        "template": {"type": "string", "enum": ["welcome", "receipt", "digest"]},
        "attachments": {"type": "integer", "minimum": 0, "maximum": 10, "default": 0},
        "urgent": {"type": "boolean"},
    },
    "required": ["to", "template"],
}


class Demo:
    """Seeds one namespace through a client."""

    def __init__(self, client: Client, seed: int = 7) -> None:
        """client: of an empty namespace, whose lease is long: the workers of the demo never renew."""
        self._client = client
        self._random = random.Random(seed)
        self._now = time.time()

    def seed(self, size: int = 220) -> None:
        """Make about `size` tasks, their history, and workers."""
        self.workers()
        self.history()
        for number in range(size):
            queue = self._random.choices(list(TYPES), weights=list(RATES.values()))[0]
            self._task(queue, number)
        self._age_dead_letters()
        self._scheduled()
        self._client.pause("imports", actor=Actor("key:anna", "the supplier sends broken files"))
        self._waiting()
        self._messages()
        self._client.broker.upkeep.sample()
        self.workers()

    def workers(self) -> None:
        """Publish the workers anew: their heartbeats are now."""
        handlers = {name: HandlerPolicy(5, 30_000, None) for names in TYPES.values() for name in names}
        handlers["email.welcome"] = HandlerPolicy(5, 30_000, _SCHEMA)
        keys = self._client.broker.keys
        running = Counter(task.worker_id for task in self._client.tasks(TaskFilter(status=Status.RUNNING), 200).tasks)
        for name, queues in WORKERS.items():
            self._client.broker.register(
                WorkerInfo(
                    worker_id=name,
                    queues=queues,
                    concurrency=4 if name.startswith("batch") else 8,
                    lease_s=self._client.settings.visibility_timeout_s,
                    started_at=time.time() - 86_400,
                    heartbeat_at=time.time(),
                    state="running",
                    running=running[name],
                    held=running[name],
                    task_types=tuple(handlers),
                    abandoned_threads=0,
                    host=name.rsplit("-", 1)[0],
                    pid=int(name.rsplit("-", 1)[1]),
                    version="0.1.0",
                ),
                handlers,
            )
            self._client.server.call("HSET", keys.worker(name), "started", round((self._now - 95_000) * 1000))

    def history(self) -> None:
        """Fill the counters and gauges of the last hour."""
        keys, this_minute = self._client.broker.keys, int(self._now) // 60
        commands: list[tuple[Any, ...]] = []
        for back in range(1, 61):
            minute = this_minute - back
            wave = 1 + 0.35 * math.sin(back / 9) + 0.12 * self._random.random()
            gauges: list[Any] = ["looked", 1]
            for queue, rate in RATES.items():
                burst = 3.2 if queue == "webhooks" and 12 <= back <= 17 else 1
                submitted = round(rate * wave * burst)
                failing = 0.3 if queue == "webhooks" and back <= 16 else 0.02
                dead = round(submitted * failing / 6)
                retried = round(submitted * failing)
                fields: list[Any] = []
                for share, name in zip((0.6, 0.3, 0.1), TYPES[queue], strict=False):
                    part = {"submitted": submitted, "started": submitted, "succeeded": submitted - dead,
                            "retried": retried, "dead_lettered": dead}  # fmt: skip
                    for what, number in part.items():
                        if round(number * share):
                            fields += [f"{name}:{what}", round(number * share)]
                if fields:
                    commands.append(("HSET", keys.minute(queue, minute), *fields))
                backlog = 70 * burst if queue == "webhooks" and back <= 17 else rate / 12
                waiting = round(backlog * wave * (0.7 + 0.5 * self._random.random()))
                gauges += [f"{queue}:waiting", waiting, f"{queue}:running", max(1, rate // 24)]
                gauges += [f"{queue}:oldest", round(waiting / max(rate / 60, 0.1) / 3)]
            commands.append(("HSET", keys.gauges(minute), *gauges))
        self._client.server.pipeline(commands)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _submit(self, queue: str, number: int, **options: Any) -> str:
        task_type = self._random.choice(TYPES[queue])
        payload: dict[str, Any] = {"customer_id": 40_000 + number, "trace": f"{number:06x}", "retry": number % 3 == 0}
        if queue == "email":
            lines = [{"sku": "A-17", "n": 2}, {"sku": "C-3", "n": 1}]
            order = {"id": 9000 + number, "currency": "EUR", "lines": lines}
            payload = {
                "to": f"customer{number}@example.com",
                "template": "receipt",
                "api_key": "sk-4242",
                "order": order,
            }
        options.setdefault("priority", self._random.choice((5, 5, 5, 7, 3, 9)))
        options.setdefault("tags", ["checkout"] if queue == "email" else [])
        task = self._client.submit(task_type, payload, queue=queue, **options)
        return task.task_id

    def _task(self, queue: str, number: int) -> None:
        task_id = self._submit(queue, number)
        worker = self._random.choice([name for name, queues in WORKERS.items() if queue in queues])
        luck = self._random.random()
        claim = self._claim(worker, queue)
        if luck < 0.07:
            self._shift(task_id, self._random.uniform(0.5, 20))
            return  # it runs
        error = self._error(queue, number)
        if luck < 0.13 or (queue == "webhooks" and luck < 0.32):
            self._fail(worker, queue, claim, error, attempts=self._random.choice((1, 3, 5)))
        elif luck < 0.18:
            self._retry(worker, claim, error, 1000 * self._random.randint(8, 90))
        else:
            self._end(worker, claim, kind="succeed", result=b'{"delivered":true,"ms":%d}' % (20 + number % 70))
        self._shift(task_id, self._random.uniform(1, 3000))

    def _claim(self, worker: str, queue: str) -> Claim:
        return self._client.broker.claim(worker, [queue], 1).claims[0]

    def _error(self, queue: str, number: int) -> ErrorInfo:
        name, message, file = self._random.choice(ERRORS[queue])
        message = message.format(n=number)
        return ErrorInfo(name, message, TRACEBACK.format(file=file, cls=name, message=message))

    def _fail(self, worker: str, queue: str, claim: Claim, error: ErrorInfo, attempts: int) -> None:
        for _ in range(attempts - 1):
            self._retry(worker, claim, error, 1)
            time.sleep(0.002)
            self._client.broker.upkeep.promote(late_ms=-1000)
            found = self._client.broker.claim(worker, [queue], 20).claims
            claim = next(one for one in found if one.task_id == claim.task_id)
        self._end(worker, claim, kind="dead", reason="exhausted" if attempts > 1 else "permanent", error=error,
                  disposition=Disposition.FAILED)  # fmt: skip

    def _retry(self, worker: str, claim: Claim, error: ErrorInfo, delay_ms: int) -> None:
        self._end(worker, claim, kind="retry", delay_ms=delay_ms, error=error, disposition=Disposition.FAILED)

    def _end(self, worker: str, claim: Claim, **outcome: Any) -> None:
        duration_ms = self._random.randint(20, 900)
        self._client.broker.commit(worker, [Outcome(claim=claim, duration_ms=duration_ms, **outcome)])

    def _age_dead_letters(self) -> None:
        """Let them have died over the last day, most of them lately."""
        keys, server = self._client.broker.keys, self._client.server
        entries = server.call("XRANGE", keys.dead_letter(), "-", "+")
        ages_s = sorted((86_000 * self._random.random() ** 3 for _ in entries), reverse=True)
        commands: list[tuple[Any, ...]] = [("DEL", keys.dead_letter())]
        for number, ((_, fields), age_s) in enumerate(zip(entries, ages_s, strict=True)):
            entry = f"{round((self._now - age_s) * 1000)}-{number}"
            commands.append(("XADD", keys.dead_letter(), entry, *fields))
            commands.append(("HSET", keys.task(fields[1].decode()), "dead", entry))
        server.pipeline(commands)

    def _scheduled(self) -> None:
        keys, server = self._client.broker.keys, self._client.server
        for number in range(9):
            task_id = self._submit("reports", number, delay_seconds=60 * (number + 2))
            created = round((self._now - self._random.uniform(30, 3000)) * 1e6)
            server.call("HSET", keys.task(task_id), "created", created)
            server.call("ZADD", keys.index("reports", "pending"), created, task_id)

    def _waiting(self) -> None:
        for queue, number in (("webhooks", 46), ("email", 5), ("imports", 18), ("default", 3)):
            for one in range(number):
                band = self._random.choice((2, 5, 5, 5, 8)) if queue == "webhooks" else 5
                self._shift(self._submit(queue, one, priority=band), self._random.uniform(1, 24))
        self._shift(self._submit("webhooks", 1, priority=0), 94)

    def _messages(self) -> None:
        queue = self._client.queue("commands", max_deliveries=3)
        for number in range(23):
            body = {"run": f"run-{number}", "step": "resume", "token": "t-4242"}
            queue.put(
                ("retry", "scheduled", "urgent")[number % 3], json.dumps(body).encode(), key=f"run-{number}:state"
            )
        queue.put("scheduled", b"plain text, not JSON", key="note", delay_s=600)

    def _shift(self, task_id: str, back_s: float) -> None:
        """Let a task have happened earlier than it did."""
        keys, server = self._client.broker.keys, self._client.server
        flat = server.call("HGETALL", keys.task(task_id))
        record = dict(zip([name.decode() for name in flat[::2]], flat[1::2], strict=True))
        created = int(record["created"]) - round(back_s * 1e6)
        wait_ms, run_ms = self._random.randint(5, 900), self._random.randint(30, 900)
        fields: list[Any] = ["created", created, "available", created // 1000]
        attempts = [json.loads(text) for text in server.call("LRANGE", keys.attempts(task_id), 0, -1)]
        at = created // 1000 + wait_ms
        for number, attempt in enumerate(attempts):
            attempt["s"], attempt["d"] = at, run_ms
            attempt["f"] = at + run_ms
            delay = 1000 * 2**number
            if "r" in attempt and attempt["r"] == 1:
                attempt["r"] = delay
            at += run_ms + delay + self._random.randint(10, 60)
        if "started" in record:
            fields += ["started", attempts[-1]["s"] if attempts else at]
        if "finished" in record:
            fields += ["finished", attempts[-1]["f"] if attempts else at + run_ms]
        commands: list[tuple[Any, ...]] = [
            ("HSET", keys.task(task_id), *fields),
            ("ZADD", keys.index(record["queue"].decode(), record["status"].decode()), created, task_id),
        ]
        if attempts:
            texts = [json.dumps(attempt) for attempt in attempts]
            commands += [("DEL", keys.attempts(task_id)), ("RPUSH", keys.attempts(task_id), *texts)]
        server.pipeline(commands)
