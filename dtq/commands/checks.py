"""What `flask dtq doctor` looks at: each check is a function that yields what it found, with what to do about it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from dtq import __version__
from dtq.commands.console import counted, duration, program
from dtq.durability import Durability
from dtq.errors import ConfigurationError, DtqError
from dtq.model import WorkerInfo
from dtq.queries import QueueInfo
from dtq.redisio import CommandError
from dtq.serverinfo import UNKNOWN, eviction_policy, loses_keys, server_info
from dtq.states import Status

if TYPE_CHECKING:
    from dtq.client import Client

Level = Literal["ok", "warning", "wrong"]

OLDEST_SERVER = (6, 2)
SKEW_S = 2.0
SLOW_MS = 20.0
FULL_SHARE = 0.8
OVERDUE_S = 5.0
_PINGS = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    message: str
    fix: str = ""
    """What to do about it; empty where nothing is to be done."""

    def as_json(self) -> dict[str, str]:
        """Return it for scripts."""
        return {"check": self.check, "level": self.level, "message": self.message, "fix": self.fix}


class Patient:
    """The namespace that is looked at; what several checks need is read once."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @cached_property
    def queues(self) -> Sequence[QueueInfo]:
        """All queues."""
        return self.client.queries.queues()

    @cached_property
    def workers(self) -> Sequence[WorkerInfo]:
        """All live workers."""
        return self.client.queries.workers()

    def info(self, section: str) -> Mapping[str, str]:
        """A section of INFO; empty where the server does not tell."""
        return server_info(self.client.server, section)


def look(client: Client) -> Iterator[Finding]:
    """Yield the findings of all checks. Raises RedisUnavailable when Redis goes away meanwhile."""
    patient = Patient(client)
    for check in CHECKS:
        yield from check(patient)


def _ok(check: str, message: str) -> Finding:
    return Finding(check=check, level="ok", message=message)


def _warning(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, level="warning", message=message, fix=fix)


def _wrong(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, level="wrong", message=message, fix=fix)


def _server(patient: Patient) -> Iterator[Finding]:
    told = patient.info("server")
    name = "Valkey" if "valkey_version" in told else "Redis"
    version = told.get(f"{name.lower()}_version", "")
    if not version:
        yield _warning(
            "server",
            "the server does not tell its version",
            "dtq needs Redis 6.2 or newer, or Valkey; allow INFO to this user",
        )
        return
    compatible = told.get("redis_version", version)
    parts = tuple(int(part) for part in compatible.split(".")[:2] if part.isdigit())
    if parts < OLDEST_SERVER:
        yield _wrong("server", f"{name} {version} is too old", "upgrade to Redis 6.2 or newer, or to Valkey")
        return
    kind = "embedded" if patient.client.embedded else patient.client.server.kind
    yield _ok("server", f"{name} {version}, {kind}")


def _latency(patient: Patient) -> Iterator[Finding]:
    times_ms = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        patient.client.server.call("PING")
        times_ms.append((time.perf_counter() - began) * 1000)
    median = statistics.median(times_ms)
    if median > SLOW_MS:
        yield _warning(
            "latency",
            f"a round trip takes {median:.1f} ms",
            "put web and workers near Redis: each task takes a few round trips",
        )
    else:
        yield _ok("latency", f"a round trip takes {median:.2f} ms")


def _persistence(patient: Patient) -> Iterator[Finding]:
    told = patient.info("persistence")
    if not told:
        yield _warning(
            "persistence", "the server does not tell how it saves its data", "see to it that its append-only file is on"
        )
    elif told.get("aof_enabled") != "1":
        yield _wrong(
            "persistence",
            "the append-only file is off: a restart of Redis loses tasks",
            "appendonly yes, appendfsync everysec (CONFIG SET appendonly yes does it at once)",
        )
    elif told.get("aof_last_write_status", "ok") != "ok" or told.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield _wrong(
            "persistence", "Redis could not write its append-only file", "free disk space, or look at the log of Redis"
        )
    else:
        yield _ok("persistence", "the append-only file is on")


def _durability(patient: Patient) -> Iterator[Finding]:
    if not patient.client.settings.durable_writes:
        return
    try:
        Durability(patient.client.server, patient.client.broker.keys).require()
    except ConfigurationError as error:
        yield _wrong("durability", error.message, "appendonly yes, a newer server or a replica; or unset the setting")
    else:
        yield _ok("durability", "submissions wait until they are on disk, or on a replica")


def _memory(patient: Patient) -> Iterator[Finding]:
    policy = eviction_policy(patient.client.server)
    if loses_keys(policy):
        yield _wrong(
            "eviction",
            f"Redis evicts keys when it is full ({policy})",
            "maxmemory-policy noeviction, and a Redis that caches nothing for others",
        )
    else:
        words = "not told" if policy == UNKNOWN else "none: noeviction"
        yield _ok("eviction", words)
    told = patient.info("memory")
    used, most = int(told.get("used_memory", "0")), int(told.get("maxmemory", "0"))
    if most and used > FULL_SHARE * most:
        yield _wrong(
            "memory",
            f"Redis uses {used / most:.0%} of its maxmemory",
            "raise maxmemory, or shorten DTQ_TASK_RETENTION_S and DTQ_RETENTION_MAX_TASKS",
        )
    elif most:
        yield _ok("memory", f"{used / most:.0%} of maxmemory in use")
    elif used:
        yield _ok("memory", f"{used / 2**20:.0f} MiB in use, no maxmemory")


def _clock(patient: Patient) -> Iterator[Finding]:
    began = time.time()
    seconds, micros = patient.client.server.call("TIME")
    skew_s = int(seconds) + int(micros) / 1e6 - (began + time.time()) / 2
    if abs(skew_s) > SKEW_S:
        away = "ahead of" if skew_s > 0 else "behind"
        yield _warning(
            "clock",
            f"Redis's clock is {duration(abs(skew_s))} {away} this host's",
            "keep the time on both hosts (NTP): delays go by Redis's clock, logs by the host's",
        )
    else:
        yield _ok("clock", f"within {max(abs(skew_s), 0.001):.3f} s of this host's")


def _scripts(patient: Patient) -> Iterator[Finding]:
    try:
        patient.client.queries.script_works()
    except CommandError as error:
        yield _wrong(
            "scripts",
            f"scripts do not run: {error.message[:100]}",
            "allow EVAL, EVALSHA and the commands of streams, hashes and sorted sets",
        )
    else:
        yield _ok("scripts", "they run")


def _workers(patient: Patient) -> Iterator[Finding]:
    workers = patient.workers
    if not workers:
        yield _wrong("workers", "no worker is running", f"{program()} dtq worker run, or python worker.py")
        return
    yield _ok("workers", f"{counted(len(workers), 'worker')} with fresh heartbeats")
    others = sorted({worker.version for worker in workers} - {__version__})
    if others:
        yield _warning(
            "versions",
            f"workers run dtq {', '.join(others)}, this is {__version__}",
            "end the upgrade: restart the workers that are left behind",
        )
    if patient.client.queries.leader() is None and any(worker.state != "draining" for worker in workers):
        yield _warning(
            "leader",
            "nobody leads at this moment",
            "look again in ten seconds: all workers look after delays and leases meanwhile",
        )
    written_off = sum(worker.abandoned_threads for worker in workers)
    if written_off:
        yield _warning(
            "threads",
            f"{counted(written_off, 'thread')} hang in handlers that ignore their time limit",
            '@task(..., isolation="process") for handlers that may hang',
        )


def _service(patient: Patient) -> Iterator[Finding]:
    served = {queue for worker in patient.workers if worker.state == "running" for queue in worker.queues}
    for queue in patient.queues:
        waiting = queue.counts[Status.QUEUED]
        if waiting and patient.workers and not queue.paused and queue.queue not in served:
            yield _wrong(
                "queues",
                f"{counted(waiting, 'task')} in {queue.queue}, which no running worker serves",
                f"DTQ_QUEUES={queue.queue} for a worker",
            )
        if queue.depth > FULL_SHARE * patient.client.settings.max_queue_depth:
            yield _warning(
                "queues", f"{queue.queue} holds {queue.depth} tasks", "more workers, or a higher DTQ_MAX_QUEUE_DEPTH"
            )


def _orphans(patient: Patient) -> Iterator[Finding]:
    """Records and places that have come apart: the reconciler mends them, if there is a worker to lead."""
    astray = 0
    for queue in patient.queues:
        astray += abs(queue.counts[Status.QUEUED] + queue.counts[Status.RUNNING] - queue.depth)
    if astray:
        yield _warning(
            "orphans",
            f"{counted(astray, 'task')} and tickets do not agree at this moment",
            "nothing, if it is gone in a minute: the leading worker puts tasks back in place",
        )
    else:
        yield _ok("orphans", "every task that waits has its place")
    keys, server = patient.client.broker.keys, patient.client.server
    head = server.call("ZRANGE", keys.schedule(), 0, 0, "WITHSCORES")
    if head:
        late_s = int(server.call("TIME")[0]) - int(float(head[1])) / 1000
        if late_s > OVERDUE_S:
            yield _wrong(
                "schedule", f"a task is due since {duration(late_s)}", "start a worker: any of them moves what is due"
            )


def _safety(patient: Patient) -> Iterator[Finding]:
    settings = patient.client.settings
    local = settings.api_host in ("127.0.0.1", "::1", "localhost")
    if not local and not settings.api_key and not settings.api_keys_file:
        yield _warning(
            "keys",
            f"DTQ_API_HOST={settings.api_host} and no API key",
            f"DTQ_API_KEY, or keys by `{program()} dtq key create`",
        )


CHECKS: Sequence[Callable[[Patient], Iterator[Finding]]] = (
    _server,
    _latency,
    _persistence,
    _durability,
    _memory,
    _clock,
    _scripts,
    _workers,
    _service,
    _orphans,
    _safety,
)


def of_error(error: DtqError) -> Finding:
    """Return what it means that Redis could not be asked."""
    return _wrong("server", error.message, "start it, or set DTQ_REDIS_URL to where it is")
