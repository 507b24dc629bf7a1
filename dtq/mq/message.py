"""A message as a consumer holds it."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from dtq.errors import DtqError

if TYPE_CHECKING:
    from dtq.mq.acknowledging import Acknowledgement
    from dtq.mq.operations import Operation
    from dtq.mq.session import Session
    from dtq.mq.store import Claimed, Target

log = logging.getLogger(__name__)


class Moving(NamedTuple):
    """A release that was asked for."""

    target: Target
    operation: Operation


class Message:
    """One delivery. `with message:` acknowledges on a clean exit and releases to its own topic on an exception.

    Safe to use from any thread of the process that received it.
    """

    __slots__ = (
        "_session",
        "data",
        "deliveries",
        "entry",
        "first_put_at",
        "handed_out",
        "key",
        "lost",
        "settled",
        "topic",
        "unanswered",
        "until",
    )

    def __init__(self, session: Session, claimed: Claimed) -> None:
        """Messages come from `Subscription.receive`."""
        self._session = session
        self.topic: str = claimed.topic
        self.entry: str = claimed.entry
        """The id of its entry in the stream; another one after a release."""
        self.key: str = claimed.key
        self.data: bytes = claimed.data
        self.first_put_at: float = claimed.first_put_at
        """Seconds since the epoch, Redis's clock; a release does not change it."""
        self.deliveries: int = claimed.deliveries
        """How often it was claimed; 1 at first."""
        self.lost = False
        """Whether it is known to belong to another consumer now, or to none: what is done with it does not count."""
        self.settled = False
        """Whether it was acknowledged or released by this consumer."""
        self.handed_out = False
        self.until = float("-inf")
        """time.monotonic() until which nobody else can have it: handed out after that, two could work on it."""
        self.unanswered: Acknowledgement | Moving | None = None
        """What was asked for without an answer: asking again must not be a second time."""

    @property
    def id(self) -> tuple[str, str]:
        """What names this delivery within its queue: topic and entry."""
        return self.topic, self.entry

    def acknowledge(self) -> bool:
        """Remove the message for good. Returns False when it is not this consumer's any more.

        Its place is free at once; when the write fails the error is raised, the message is delivered again after the
        visibility timeout, and this may be called again. Raises RedisUnavailable.
        """
        return self._session.acknowledge(self)

    def acknowledge_later(self) -> None:
        """See `Subscription.acknowledge_later`."""
        self._session.acknowledge_later(self)

    def release(
        self, topic: str | None = None, *, max_size: int = 0, delay_s: float = 0, timeout_s: float | None = None
    ) -> None:
        """Put the message back, at the end of its own topic or of another one; key, deliveries and first time stay.

        max_size: how many the other topic may hold; its own never counts as full. delay_s: seconds until it is ready.
        timeout_s: how long to wait for room, the message being held meanwhile; None: for ever.
        Raises MessageLost, TopicFull (it is still held), ValueError, RedisUnavailable (may be called again).
        """
        self._session.release(self, topic, max_size, delay_s, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            if not self.acknowledge():
                log.warning("message %s was done, but belongs to another consumer by now", self.key)
            return
        try:
            self.release()
        except DtqError as refusal:  # it is delivered again after the visibility timeout, or was already
            log.warning("message %s failed and could not be released: %s", self.key, refusal)

    def __repr__(self) -> str:
        return f"<Message {self.key!r} of {self.topic!r}, delivery {self.deliveries}, {len(self.data)} bytes>"
