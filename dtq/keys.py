"""Every Redis name that dtq uses, each with its type and its bound. No other module builds one.

The scripts derive keys from ids and queues too, so the same templates are rendered as Lua expressions (`as_lua`): a
name is written down once for both languages. All keys of a namespace share its first part; on a Redis Cluster that is a
hash tag, `{dtq}`, so a namespace lives in one slot and a script may touch any of its keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

GROUP = "workers"
"""The consumer group of every task stream and wake stream."""

LEADER_GROUP = "leader"
"""The consumer group of the leader's wake stream. A group of its own: a queue may be called "scheduler" too."""

PARKED = "=parked"
"""The consumer that holds what was handed back, so that it keeps its place in front of what was never claimed. No
worker can have this name."""

QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""What a queue may be called."""

TOPIC_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""What a topic of a message queue may be called."""

TASK_ID = re.compile(r"[0-9a-f]{32}")
"""What the id of a task looks like, and that of a bulk job."""

SCHEMA_VERSION = 1
"""Written into every record. A process that meets a higher one leaves the record alone."""

_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,60}|\{[A-Za-z0-9_.:-]{1,60}\}")

_TEMPLATES: dict[str, str] = {
    "stream": "stream:{queue}:p{band}",
    "wake": "stream:{queue}:wake",
    "parked": "stream:{queue}:parked",
    "scheduler_wake": "stream:scheduler:wake",
    "dead_letter": "stream:dead-letter",
    "evicted": "dead-letter:evicted",
    "audit": "stream:audit",
    "events": "stream:events",
    "schedule": "retry:schedule",
    "task": "task:{task_id}",
    "payload": "payload:{task_id}",
    "attempts": "attempts:{task_id}",
    "result": "result:{task_id}",
    "idempotency": "idempotency:{scope}",
    "operation": "operation:{digest}",
    "index": "index:{queue}:{status}",
    "finished": "index:finished",
    "totals": "counter:{queue}",
    "counted_queues": "counted:queues",
    "counted_types": "counted:types",
    "minute": "counter:{queue}:{minute}",
    "gauges": "gauges:{minute}",
    "queues": "queues",
    "paused": "queue:{queue}:paused",
    "bulk": "bulk:{bulk_id}",
    "bulks": "bulks",
    "open_bulks": "bulks:open",
    "worker": "worker:{worker_id}",
    "workers": "workers",
    "leases": "workers:leases",
    "scheduler_lock": "lock:scheduler",
    "barrier": "barrier",
    "mq_queues": "mq:queues",
    "mq_config": "mq:{queue}:config",
    "mq_topics": "mq:{queue}:topics",
    "mq_topic": "mq:{queue}:topic:{topic}",
    "mq_keys": "mq:{queue}:keys",
    "mq_tombstones": "mq:{queue}:tombstones",
    "mq_due": "mq:{queue}:due",
    "mq_delayed": "mq:{queue}:delayed:{topic}",
    "mq_later": "mq:{queue}:later",
    "mq_wake": "mq:{queue}:wake:{topic}",
    "mq_due_wake": "mq:{queue}:wake",
    "mq_waiting": "mq:{queue}:waiting",
    "mq_room": "mq:{queue}:room",
    "mq_paused": "mq:{queue}:paused",
    "mq_consumers": "mq:{queue}:consumers",
    "mq_consumer": "mq:{queue}:consumer:{name}",
    "mq_operation": "mq:{queue}:operation:{slot}",
    "mq_counts": "mq:{queue}:counts",
}


class Keys:
    """The names of one namespace. Every method returns a key; its docstring says type, content and bound."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str = "dtq") -> None:
        """namespace: the first part of every key; letters, digits, `_ . : -`, or all of it in braces for a Cluster.

        Raises ValueError for anything else: the name is rendered into scripts.
        """
        if not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"namespace {namespace!r}: use letters, digits and _ . : - (or {{name}} on a Cluster)")
        self.namespace = namespace

    def _name(self, template: str, **parts: object) -> str:
        return f"{self.namespace}:{_TEMPLATES[template].format(**parts)}"

    @property
    def anchor(self) -> str:
        """No key of its own: names the slot of the namespace for scripts that derive the keys they touch."""
        return self.workers()

    def stream(self, queue: str, band: int) -> str:
        """STREAM. Tickets of one band. Bound: DTQ_MAX_QUEUE_DEPTH; an entry goes with its acknowledgement."""
        return self._name("stream", queue=queue, band=band)

    def wake(self, queue: str) -> str:
        """STREAM. Tokens for idle workers of a queue. Bound: MAXLEN ~64; ends with its queue or its waiters."""
        return self._name("wake", queue=queue)

    def parked(self, queue: str) -> str:
        """SET. The bands in which the parked consumer holds entries. Bound: ten members."""
        return self._name("parked", queue=queue)

    def scheduler_wake(self) -> str:
        """STREAM. Tokens for the leader: something became due earlier than it knows. Bound: MAXLEN ~64."""
        return self._name("scheduler_wake")

    def dead_letter(self) -> str:
        """STREAM. Dead letters. Bound: DTQ_DLQ_MAXLEN."""
        return self._name("dead_letter")

    def evicted(self) -> str:
        """STRING. Dead letters that were evicted since the leader said so. Bound: expires after a day."""
        return self._name("evicted")

    def audit(self) -> str:
        """STREAM. Who did what. Bound: MAXLEN ~10 000."""
        return self._name("audit")

    def events(self) -> str:
        """STREAM. Lifecycle events, those of one script packed in one entry. Bound: MAXLEN ~DTQ_EVENTS_MAXLEN."""
        return self._name("events")

    def schedule(self) -> str:
        """ZSET. Task ids by due time in ms: delays and retries. Bound: DTQ_MAX_SCHEDULED, retries exempt."""
        return self._name("schedule")

    def task(self, task_id: str) -> str:
        """HASH. The task: the one source of truth. Bound: retention after its end."""
        return self._name("task", task_id=task_id)

    def payload(self, task_id: str) -> str:
        """STRING. What never changes (payload, metadata, tags), opaque to scripts. Bound: as the task."""
        return self._name("payload", task_id=task_id)

    def attempts(self, task_id: str) -> str:
        """LIST. Attempts that ended, JSON, oldest first. Bound: the last 50; as the task."""
        return self._name("attempts", task_id=task_id)

    def result(self, task_id: str) -> str:
        """STRING. JSON result. Bound: DTQ_RESULT_RETENTION_S."""
        return self._name("result", task_id=task_id)

    def idempotency(self, queue: str, key: str) -> str:
        """HASH. Task id, state and body fingerprint of an idempotency key. Bound: DTQ_IDEM_TTL_S after the end."""
        return self._name("idempotency", scope=idempotency_scope(queue, key))

    def operation(self, name: str) -> str:
        """HASH. State and result of an `idempotent_operation`. Bound: its ttl_seconds."""
        return self._name("operation", digest=digest(name))

    def index(self, queue: str, status: str) -> str:
        """ZSET. Task ids of a queue in a status by creation time in us. Bound: as the tasks."""
        return self._name("index", queue=queue, status=status)

    def finished(self) -> str:
        """ZSET. `id status queue` of ended tasks by end time in ms. Bound: DTQ_RETENTION_MAX_TASKS."""
        return self._name("finished")

    def totals(self, queue: str) -> str:
        """HASH. Counts since the queue came to be, fields `type:what`. Bound: `counted_types`, a dozen fields each.

        The queue `_other` holds what is counted of queues beyond `counted_queues`, and of those that are forgotten.
        """
        return self._name("totals", queue=queue)

    def counted_queues(self) -> str:
        """SET. Queues that have counters of their own. Bound: 100."""
        return self._name("counted_queues")

    def counted_types(self) -> str:
        """SET. `queue type` that have counters of their own; other types count as `_other`. Bound: 1 000."""
        return self._name("counted_types")

    def minute(self, queue: str, minute: int) -> str:
        """HASH. Counts of one minute (epoch seconds / 60), fields as in totals. Bound: expires after 25 h."""
        return self._name("minute", queue=queue, minute=minute)

    def gauges(self, minute: int) -> str:
        """HASH. The most that waited and ran in queues in a minute, fields `queue:what`. Bound: expires after 25 h."""
        return self._name("gauges", minute=minute)

    def queues(self) -> str:
        """ZSET. Queues by time of last use in ms. Bound: DTQ_MAX_QUEUES."""
        return self._name("queues")

    def paused(self, queue: str) -> str:
        """STRING. Who paused the queue, when and why, JSON. Bound: until resumed."""
        return self._name("paused", queue=queue)

    def bulk(self, bulk_id: str) -> str:
        """HASH. A bulk job: who asked for what, and how far it is. Bound: expires a week after its last step."""
        return self._name("bulk", bulk_id=bulk_id)

    def bulks(self) -> str:
        """ZSET. Bulk jobs by creation in us. Bound: the last 200."""
        return self._name("bulks")

    def open_bulks(self) -> str:
        """ZSET. Bulk jobs that have not ended, by creation in us. Bound: 20."""
        return self._name("open_bulks")

    def worker(self, worker_id: str) -> str:
        """HASH. Heartbeat, handlers and what runs. Bound: three heartbeats, never less than the worker's lease."""
        return self._name("worker", worker_id=worker_id)

    def workers(self) -> str:
        """ZSET. Worker ids by the time in ms at which their record ends. Bound: pruned by the leader."""
        return self._name("workers")

    def leases(self) -> str:
        """ZSET. Lease lengths in ms by worker: nothing is reclaimed before the longest. Bound: as workers."""
        return self._name("leases")

    def scheduler_lock(self) -> str:
        """STRING. The leader's worker id. Bound: 10 s."""
        return self._name("scheduler_lock")

    # --- the message queue: "as the queue" is while it holds messages, then idle_ttl_s

    def mq_queues(self) -> str:
        """ZSET. Message queues by the time in ms at which they came to be. Bound: DTQ_MAX_QUEUES."""
        return self._name("mq_queues")

    def mq_config(self, queue: str) -> str:
        """HASH. Schema version, visibility timeout in ms, last use of a delay. Bound: as the queue."""
        return self._name("mq_config", queue=queue)

    def mq_topics(self, queue: str) -> str:
        """ZSET. Topics by the time in ms at which they came to hold something. Bound: those in use; as the queue."""
        return self._name("mq_topics", queue=queue)

    def mq_topic(self, queue: str, topic: str) -> str:
        """STREAM. Messages of a topic, waiting or in flight. Bound: its putters' max_size; emptied, idle_ttl_s."""
        return self._name("mq_topic", queue=queue, topic=topic)

    def mq_keys(self, queue: str) -> str:
        """HASH. `topic entry` by message key, `topic @` for what is delayed. Bound: the messages."""
        return self._name("mq_keys", queue=queue)

    def mq_tombstones(self, queue: str) -> str:
        """ZSET. Acknowledged keys by the time in ms until which they are refused. Bound: tombstone_ttl_s."""
        return self._name("mq_tombstones", queue=queue)

    def mq_due(self, queue: str) -> str:
        """ZSET. Topics by the time in ms at which their next delayed message is due. Bound: topics with such."""
        return self._name("mq_due", queue=queue)

    def mq_delayed(self, queue: str, topic: str) -> str:
        """ZSET. Keys of delayed messages of a topic by due time in ms. Bound: as the topic."""
        return self._name("mq_delayed", queue=queue, topic=topic)

    def mq_later(self, queue: str) -> str:
        """HASH. Delayed messages by key. Bound: as their topics."""
        return self._name("mq_later", queue=queue)

    def mq_wake(self, queue: str, topic: str) -> str:
        """STREAM. Tokens for subscriptions that wait for a topic. Bound: MAXLEN ~64; ends with its subscriptions."""
        return self._name("mq_wake", queue=queue, topic=topic)

    def mq_due_wake(self, queue: str) -> str:
        """STREAM. Tokens: a message becomes due earlier than was known. Bound: as mq_wake."""
        return self._name("mq_due_wake", queue=queue)

    def mq_waiting(self, queue: str) -> str:
        """HASH. Full topics that somebody waits to put into. Bound: expires 10 s after the last of them asked."""
        return self._name("mq_waiting", queue=queue)

    def mq_room(self, queue: str) -> str:
        """STREAM. Says in which of those topics room was made. Bound: MAXLEN ~64; expires as mq_waiting."""
        return self._name("mq_room", queue=queue)

    def mq_paused(self, queue: str) -> str:
        """HASH. By paused topic: who, when and why, JSON. Bound: until resumed."""
        return self._name("mq_paused", queue=queue)

    def mq_consumers(self, queue: str) -> str:
        """ZSET. Subscriptions by the time in ms at which they count as gone. Bound: pruned; expires."""
        return self._name("mq_consumers", queue=queue)

    def mq_consumer(self, queue: str, name: str) -> str:
        """HASH. A subscription: topics, host, process, when it was last seen. Bound: expires a day after that."""
        return self._name("mq_consumer", queue=queue, name=name)

    def mq_operation(self, queue: str, slot: str) -> str:
        """STRING. The last operation of one caller and its answer, for its repeat. Bound: expires after a minute."""
        return self._name("mq_operation", queue=queue, slot=slot)

    def mq_counts(self, queue: str) -> str:
        """HASH. What happened, fields `topic what`. Bound: 200 topics, then `_other`; as the queue."""
        return self._name("mq_counts", queue=queue)

    def barrier(self) -> str:
        """STRING. Written after tasks that must be safe, and waited for. Bound: a minute."""
        return self._name("barrier")

    def as_lua(self, template: str, arguments: Sequence[str]) -> str:
        """Return the Lua expression for a key, its parts being the Lua expressions `arguments`.

        Raises KeyError for an unknown template, ValueError for a wrong number of arguments.
        """
        pieces = re.split(r"\{\w+\}", _TEMPLATES[template])
        if len(pieces) != len(arguments) + 1:
            raise ValueError(f"key.{template} takes {len(pieces) - 1} parts, not {len(arguments)}")
        parts = [f"'{self.namespace}:{pieces[0]}'"]
        for argument, piece in zip(arguments, pieces[1:], strict=True):
            parts.append(argument)
            if piece:
                parts.append(f"'{piece}'")
        return f"({'..'.join(parts)})"


def idempotency_scope(queue: str, key: str) -> str:
    """Return what a task remembers of its idempotency key: the queue that it was submitted to, and the key's digest."""
    return f"{queue}:{digest(key)}"


def digest(text: str) -> str:
    """Return 32 hex digits that stand for `text` in a key: names from outside never become key names."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
