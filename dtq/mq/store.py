"""The scripts of the message queue as Python methods; each is one script, which does all of it or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dtq import model
from dtq.encoding import plain, who
from dtq.errors import ConfigurationError, ConfigurationMismatch, NewerSchema, TooManyQueues
from dtq.keys import Keys
from dtq.limits import AUDIT_MAXLEN
from dtq.model import Actor
from dtq.mq.model import QueueOptions, milliseconds
from dtq.mq.operations import Operation, Operations
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.serverinfo import server_info
from dtq.settings import Settings
from dtq.streams import WAKE_MAXLEN

ITEMS_A_SCRIPT = 100
PARKED_A_SCRIPT = 300
OLDEST_SERVER = (6, 2)
MOST_COUNTED_TOPICS = 200
"""Topics of a queue that are counted apart; the later ones are counted together."""
PRESENCE_KEEP_MS = 60_000
"""A subscription that was not seen for so long is gone."""
_RECORD_KEEP_MS = 86_400_000
_DELAYS_RECENT_MS = 600_000
_CLAIM_BYTES = 1_048_576
_FAR_S = 1e12
_ID = tuple[str, str]


class PutItem(NamedTuple):
    """A row of mq_put."""

    topic: str
    key: str
    made_up: int
    """1: the key was made for this message alone, so nobody has to look whether it is known."""
    data: bytes
    max_size: int
    delay_ms: int


class Target(NamedTuple):
    """Where a release puts a message."""

    topic: str
    max_size: int
    delay_ms: int


class Claimed(NamedTuple):
    """A message that a claim took."""

    topic: str
    entry: str
    key: str
    data: bytes
    first_put_at: float
    deliveries: int


class ClaimReply(NamedTuple):
    """What a claim took and found."""

    messages: list[Claimed]
    left: set[str]
    """Topics in which there is more, and those that were not looked at because of that."""
    next_due_s: float | None
    """Seconds until a delayed message is due; not above zero: now."""
    delays_in_use: bool
    at_risk: int
    """0: nothing is in flight, so no claim can expire soon. 2: one is about to. Else 1."""
    registered: bool
    """Whether the subscription is known; else nothing was taken, and it has to come again."""
    now: float
    """What Redis's clock showed, in seconds since the epoch."""


class Store:
    """One queue of one namespace. Safe to use from any thread.

    Every method raises RedisUnavailable when Redis is away and, where it would need memory, RedisFull.
    """

    def __init__(self, server: Server, keys: Keys, scripts: Scripts, options: QueueOptions) -> None:
        self.server = server
        self.keys = keys
        self.scripts = scripts
        self.options = options
        self.operations = Operations()
        self._version_fits = False
        self._queue = options.name
        self._idle_ms = milliseconds(options.idle_ttl_s)

    # --- putting ------------------------------------------------------------------------------------------------------

    def put(self, items: Sequence[PutItem], *, waiting: bool) -> tuple[str, int]:
        """Store messages, up to a hundred. waiting: whether the caller will wait for room where there is none.

        Returns a letter for each (s stored, k known already, f full) and Redis's time in ms.
        Raises ConfigurationMismatch, NewerSchema, TooManyQueues.
        """
        operation = self.operations.take()
        try:
            reply = self._run(
                "mq_put",
                items=items,
                queue=self._queue,
                visibility=self.options.visibility,
                slot=operation.slot,
                operation=operation.number,
                waiting="1" if waiting else "0",
                idle_ms=self._idle_ms,
            )
        finally:
            self.operations.give_back(operation)
        if reply[0] != b"DONE":
            self._refuse(reply)
        return reply[1].decode(), int(reply[2])

    # --- a subscription -----------------------------------------------------------------------------------------------

    def subscribe(self, consumer: str, topics: Sequence[str], host: str, process: int) -> None:
        """Register a subscription and make its wake streams. Raises as `put`."""
        reply = self._run(
            "mq_subscribe",
            items=[(topic,) for topic in topics],
            queue=self._queue,
            consumer=consumer,
            visibility=self.options.visibility,
            topics="\n".join(topics),
            host=host,
            process=process,
            idle_ms=self._idle_ms,
        )
        self._refuse(reply)

    def claim(
        self,
        consumer: str,
        rooms: Sequence[tuple[str, int, int]],
        extra: int,
        *,
        number: int,
        look: bool = False,
        latest: float | None = None,
    ) -> ClaimReply:
        """Take messages: of each topic as many as there is room, and up to `extra` more in all.

        rooms: topic, room, number of its class, the most urgent first.
        number: counts the claims of the consumer: one that comes after `settle` has named it takes nothing.
        look: be seen, and look after the queue. latest: look for ended claims too, but not when Redis's clock shows
            more than this, in seconds since the epoch: it has leapt, and nothing has really ended.
        Never repeated: after RedisUnavailable call `settle`. Raises as `put`.
        """
        reply = self._run(
            "mq_claim",
            items=rooms,
            repeat=False,
            queue=self._queue,
            consumer=consumer,
            number=number,
            visibility=self.options.visibility,
            look="1" if look else "0",
            latest="" if latest is None else f"{min(latest, _FAR_S) * 1000:.0f}",
            extra=extra,
            max_deliveries=self.options.max_deliveries,
            dead_topic=self.options.dead_topic,
            idle_ms=self._idle_ms,
        )
        self._refuse(reply)
        _, messages, left, due, delays, at_risk, registered, now = reply
        return ClaimReply(
            [_claimed(raw) for raw in messages],
            set(map(bytes.decode, left)),
            (float(due) - int(now)) / 1000 if due else None,
            delays == 1,
            at_risk,
            registered == 1,
            int(now) / 1000,
        )

    def settle(self, consumer: str, topics: Sequence[str], held: Iterable[_ID], number: int) -> None:
        """Give back, not counted as delivered, what the consumer's name owns beyond what is held.

        number: of the last claim that was sent; it may still be on its way, and takes nothing from now on.
        """
        items = list(held)
        parked = PARKED_A_SCRIPT
        while parked == PARKED_A_SCRIPT:
            parked = self._run(
                "mq_settle",
                items=items,
                queue=self._queue,
                consumer=consumer,
                number=number,
                topics="\n".join(topics),
                idle_ms=self._idle_ms,
            )

    def leave(self, consumer: str, topics: Sequence[str]) -> int:
        """Give back all that the consumer's name still owns, and delete the name. Returns how many that were."""
        handed_back, done = 0, 0
        while not done:
            parked, done = self._run(
                "mq_leave",
                queue=self._queue,
                consumer=consumer,
                topics="\n".join(topics),
                idle_ms=self._idle_ms,
            )
            handed_back += parked
        return handed_back

    def renew(self, consumer: str, held: Sequence[_ID]) -> list[bool]:
        """Begin claims anew. Returns for each whether it is still the consumer's; nothing is taken back."""
        codes: list[int] = []
        for start in range(0, len(held), ITEMS_A_SCRIPT):
            chunk = held[start : start + ITEMS_A_SCRIPT]
            codes += self._run("mq_renew", items=chunk, queue=self._queue, consumer=consumer)
        return [code == 1 for code in codes]

    def acknowledge(self, consumer: str, items: Sequence[tuple[str, str, str]], operation: Operation) -> list[bool]:
        """Remove up to a hundred messages (topic, entry, key). Returns for each whether it was still the consumer's.

        operation: the same one for the same items gets the answer that was lost, for half a minute.
        """
        letters = self._run(
            "mq_acknowledge",
            items=items,
            queue=self._queue,
            consumer=consumer,
            slot=operation.slot,
            operation=operation.number,
            tombstone_ms=milliseconds(self.options.tombstone_ttl_s),
            idle_ms=self._idle_ms,
        )
        return [letter == ord("a") for letter in letters]

    def release(
        self, consumer: str, message: tuple[str, str, str], to: Target, operation: Operation, *, waiting: bool
    ) -> tuple[str, int]:
        """Move a message (topic, entry, key). Returns ("DONE", 0), ("LOST", 0), or ("FULL", Redis's time in ms).

        operation: as `acknowledge`.
        """
        reply = self._run(
            "mq_release",
            queue=self._queue,
            consumer=consumer,
            slot=operation.slot,
            operation=operation.number,
            topic=message[0],
            entry=message[1],
            own_key=message[2],
            target=to.topic,
            max_size=to.max_size,
            delay_ms=to.delay_ms,
            waiting="1" if waiting else "0",
            idle_ms=self._idle_ms,
        )
        return reply[0].decode(), int(reply[1]) if len(reply) > 1 else 0

    # --- operators ----------------------------------------------------------------------------------------------------

    def pause(self, topic: str, actor: Actor) -> bool:
        """Let nothing more of a topic be claimed. Returns False when it was paused already."""
        return bool(
            self._run(
                "mq_pause",
                queue=self._queue,
                topic=topic,
                operation_id=model.new_operation_id(),
                who=who(actor),
                actor=plain(actor.name),
                reason=plain(actor.reason),
            )
        )

    def resume(self, topic: str, actor: Actor) -> bool:
        """Let a topic go on. Returns False when it was not paused."""
        return bool(
            self._run(
                "mq_resume",
                queue=self._queue,
                topic=topic,
                idle_ms=self._idle_ms,
                operation_id=model.new_operation_id(),
                who=who(actor),
            )
        )

    def purge(self, topic: str, most: int, actor: Actor) -> int:
        """Remove what waits or is delayed, a hundred a script. Returns how many.

        most: how many there are, or a little more: then the purge ends, whatever is put meanwhile.
        """
        before_ms, removed, planned = int(self.now() * 1000), 0, str(most)
        while removed < most:
            part: int = self._run(
                "mq_purge",
                queue=self._queue,
                topic=topic,
                before=before_ms,
                limit=ITEMS_A_SCRIPT,
                planned=planned,
                operation_id=model.new_operation_id(),
                who=who(actor),
                idle_ms=self._idle_ms,
            )
            removed += part
            planned = ""
            if part < ITEMS_A_SCRIPT:
                break
        return removed

    def requeue(self, key: str, target: str, actor: Actor) -> bool:
        """Move a dead message back; target: "" for where it came from. False: there is none with the key."""
        return bool(
            self._run(
                "mq_requeue",
                queue=self._queue,
                dead_topic=self.options.dead_topic,
                message_key=key,
                target=target,
                operation_id=model.new_operation_id(),
                who=who(actor),
                detail=plain(key),
                idle_ms=self._idle_ms,
            )
        )

    def now(self) -> float:
        """Return Redis's time, seconds since the epoch."""
        seconds, micros = self.server.call("TIME")
        return int(seconds) + int(micros) / 1e6

    def _run(self, name: str, /, **args: Any) -> Any:
        if not self._version_fits:
            self._require_version()
        return self.scripts.run(name, **args)

    def _require_version(self) -> None:
        """Raise ConfigurationError for an old server. One that does not say what it is, is given a try."""
        version = server_info(self.server, "server").get("redis_version", "")
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_SERVER:
            raise ConfigurationError(f"the message queue needs Redis 6.2 or newer, or Valkey; this server is {version}")
        self._version_fits = True

    def _refuse(self, reply: Sequence[Any]) -> None:
        code = reply[0]
        if code == b"MISMATCH":
            stored_s = int(reply[1]) / 1000
            raise ConfigurationMismatch(
                f"the message queue {self._queue} has a visibility timeout of {stored_s:g} s, not "
                f"{self.options.visibility_timeout_s:g} s: all that use it must name the same one",
                visibility_timeout_s=stored_s,
            )
        if code == b"NEWER":
            raise NewerSchema(f"the message queue {self._queue} was made by a newer dtq; upgrade this process")
        if code == b"TOO_MANY_QUEUES":
            raise TooManyQueues(
                f"there are {int(reply[1])} message queues already (DTQ_MAX_QUEUES); use one of them", retry_after=60
            )


def mq_limits(settings: Settings) -> Mapping[str, int]:
    """Return the numbers that the scripts name in CAPITALS."""
    return {
        "MAX_QUEUES": settings.max_queues,
        "MAX_COUNTED": MOST_COUNTED_TOPICS,
        "DLQ_MAXLEN": settings.dlq_maxlen,
        "AUDIT_MAXLEN": AUDIT_MAXLEN,
        "WAKE_MAXLEN": WAKE_MAXLEN,
        "WAITING_KEEP": 10_000,
        "OPERATION_KEEP": 30_000,
        "PRESENCE_KEEP": PRESENCE_KEEP_MS,
        "RECORD_KEEP": _RECORD_KEEP_MS,
        "DELAYS_RECENT": _DELAYS_RECENT_MS,
        "CLAIM_BYTES": _CLAIM_BYTES,
        "MOST_PARKED": PARKED_A_SCRIPT,
    }


def _claimed(raw: Sequence[Any]) -> Claimed:
    topic, entry, key, data, first, deliveries = raw
    return Claimed(topic.decode(), entry.decode(), key.decode("utf-8", "replace"), data, int(first) / 1000, deliveries)
