"""What the views share: settings, the client, and how many requests may wait for a task."""

from __future__ import annotations

import atexit
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flask import current_app

from dtq.apikeys import KeyRing
from dtq.errors import ConfigurationError, RedisUnavailable
from dtq.settings import Settings
from dtq.submission import SubmissionLimits
from dtq.web.bulk_runner import BulkRunner
from dtq.web.failures import FailureLimit
from dtq.web.slots import Slots

if TYPE_CHECKING:
    from dtq.client import Client

log = logging.getLogger(__name__)


class Engine:
    """One a process. The client is made by the first request that needs it, after the web server has forked."""

    def __init__(self, settings: Settings, client: Client | None = None) -> None:
        """client: used as it is and not closed here; None makes one of `settings` when it is needed.

        Raises ConfigurationError for a file of API keys that cannot be used.
        """
        self.settings = settings
        self.keys = KeyRing(settings.api_key, Path(settings.api_keys_file) if settings.api_keys_file else None)
        self.failures = FailureLimit()
        self.only_local_hosts = not self.keys.asks and settings.on_loopback and not settings.trusted_proxies
        """Whether requests must call this server by a name of this machine: see `dtq.web.origin`."""
        self.secret: bytes | None = None
        """Signs what browsers keep; `dtq.web.sessions` reads it when it is first needed."""
        self.known_hosts: set[str] = set()
        """Host names that were found to be this server's."""
        self.limits = SubmissionLimits.from_settings(settings)
        self.stopping = threading.Event()
        """Set when the process is to end: what waits, answers."""
        self.slots = Slots(settings)
        """Held by each socket, and each request that waits for a task, so that others always find a thread."""
        self.bulk = BulkRunner(self)
        """Carries on the bulk jobs that nobody works on."""
        self._client = client
        self._making = threading.Lock()

    @property
    def client(self) -> Client:
        """The client. Raises RedisUnavailable while there is no server to talk to and none can be started."""
        return self._client or self._make()

    def _make(self) -> Client:
        from dtq.client import Client

        with self._making:
            if self._client is None:
                try:
                    self._client = Client(settings=self.settings, max_connections=self.settings.web_threads)
                except ConfigurationError as error:  # its message may tell paths and log lines: not for answers
                    log.error("no client: %s", error)
                    raise RedisUnavailable("the server's own Redis could not be started; see its log") from None
                atexit.register(self._client.close)
                atexit.register(self.close)  # before that
                self.bulk.start()
            return self._client

    def close(self) -> None:
        """End what goes on beside requests. Idempotent."""
        self.stopping.set()
        self.bulk.join()


def engine() -> Engine:
    """Return what the app of this request shares."""
    return cast(Engine, current_app.extensions["dtq"])
