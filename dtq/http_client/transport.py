"""Requests that are sent again when that is safe: with pauses, for a limited time."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from dtq.errors import ConfigurationError, DtqError, HttpError, InvalidTask, ServerUnreachable
from dtq.http_client.answers import error_of

if TYPE_CHECKING:
    import requests

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_REFUSED = 429
_AWAY = frozenset({502, 503, 504})
_MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    """How much longer than usual the answer may take."""
    repeatable: bool = True
    """Whether carrying it out twice is as good as once; else it is sent again only when it cannot have been."""
    also: int = 0
    """A status of a problem that is returned and not raised."""


class Reply(NamedTuple):
    """What came of a request."""

    status: int
    answer: Any
    """The JSON of the body; None when it is none."""
    repeated: bool
    """Whether the request was sent before and may have been carried out then."""
    retry_after_s: float


class Transport:
    """Sends requests to one server. Safe to use from any thread."""

    def __init__(
        self, url: str, api_key: str | None, timeout_s: float, retry_for_s: float, session: requests.Session | None
    ) -> None:
        try:
            import requests
        except ImportError as error:
            raise ConfigurationError(
                "dtq.http_client needs requests, the extra dtq[http]: pip install requests"
            ) from error
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise ConfigurationError("the URL of a dtq server looks like https://queue.example.com:8000")
        self._requests = requests
        self._base = url.rstrip("/")
        self._where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._own = session is None
        self._session = session if session is not None else requests.Session()
        self._headers = {"Accept": "application/json"}
        if api_key is not None:
            if not re.fullmatch("[!-~]+", api_key):
                raise ConfigurationError("an API key is printable ASCII without spaces")
            self._headers["X-API-Key"] = api_key
        self._closing = threading.Event()

    def close(self) -> None:
        """Close the connections; what pauses before it would send again gives up."""
        self._closing.set()
        if self._own:
            self._session.close()

    def pause(self, seconds: float) -> bool:
        """Wait; return whether to go on: not when `close` was called."""
        return not self._closing.wait(seconds)

    def call(self, ask: Ask) -> Reply:
        """Send a request, again while the server is away or full, and return an answer below 400.

        Raises the exception that the answer's code stands for, ServerUnreachable, HttpError.
        """
        data = None if ask.body is None else _encoded(ask.body)
        give_up_at = time.monotonic() + self._retry_for_s
        repeated, tries = False, 0
        while True:
            reply, failure, may_be_done = self._once(ask, data)
            if failure is None or reply.status == ask.also != 0:
                return reply._replace(repeated=repeated)
            again = isinstance(failure, ServerUnreachable) or reply.status == _REFUSED or reply.status in _AWAY
            if not again or (may_be_done and not ask.repeatable):
                raise failure
            pause_s = max(reply.retry_after_s, min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2**tries))
            pause_s += random.uniform(0.0, min(1.0, pause_s / 4))  # those who were refused together come back apart
            if time.monotonic() + pause_s > give_up_at or not self.pause(pause_s):
                raise failure
            repeated, tries = repeated or may_be_done, min(tries + 1, 10)

    def _once(self, ask: Ask, data: bytes | None) -> tuple[Reply, DtqError | None, bool]:
        """Return the answer, what is wrong with it, and whether the request may have been carried out then."""
        requests = self._requests
        try:
            response = self._session.request(
                ask.method,
                self._base + ask.path,
                params=ask.query,
                data=data,
                headers={**self._headers, **({"Content-Type": "application/json"} if data else {}), **ask.headers},
                timeout=(self._timeout_s, self._timeout_s + ask.wait_s),
                allow_redirects=False,  # the key is for this server only
            )
        except ValueError as error:  # of requests: what it cannot send at all
            raise ConfigurationError(f"the request cannot be sent: {type(error).__name__}") from None
        except requests.exceptions.SSLError as error:
            raise ServerUnreachable(f"{self._where} is not to be trusted: {_reason(error)}") from None
        except requests.ConnectTimeout:
            return _NOTHING, ServerUnreachable(f"{self._where} cannot be reached in {self._timeout_s:g} s"), False
        except requests.RequestException as error:
            reason = _reason(error)
            told = ServerUnreachable(f"no answer from {self._where}: {reason}")
            return _NOTHING, told, reason not in ("NewConnectionError", "NameResolutionError")
        reply = Reply(response.status_code, _json(response.content), False, _retry_after(response.headers))
        if 200 <= reply.status < 300 and reply.answer is not None:
            return reply, None, True
        if reply.status < 400:
            return reply, HttpError(f"{self._where} does not answer as dtq does", status=reply.status), True
        return reply, error_of(reply.status, reply.answer), reply.status in _AWAY


_NOTHING = Reply(0, None, False, 0.0)


def _encoded(body: object) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        told = "holds what JSON cannot say"
        raise InvalidTask(f"{told}: {error}", errors=[{"pointer": "", "message": told}]) from None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _retry_after(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return min(float(text), _MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0


def _reason(error: Exception) -> str:
    """The name of what went wrong below; its text may hold addresses and more."""
    cause = error.args[0] if error.args else error
    return type(getattr(cause, "reason", None) or cause).__name__
