"""WebSockets as views use them: who may open one, how many there are, and how each conversation ends.

    @bp.get("/ws/something", websocket=True)
    def something() -> Response:
        return serve(partial(talk, read_query(SomethingQuery)))

    def talk(query: SomethingQuery, ws: WebSocket) -> None:
        with engine().client.events.subscribe(on_ready=ws.wake) as events:
            ws.accept()                              # until here an error is an HTTP answer, as for any other request
            while True:
                items = events.take()
                ws.send(dump_json(...) for item in items)
                ws.wait(0 if items else None)        # raises Hangup when it is over: let it pass

It takes a thread for as long as it lasts. The query may hold `auth` (`AUTH`), and never a key.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from flask import Response, g, request

from dtq.errors import DtqError, InvalidRequest, InvalidTask, KeyMissing, RedisUnavailable
from dtq.events import SubscriptionEnded
from dtq.strictjson import fault, load_json
from dtq.web.auth import Identity, Need, identify, needs_key, require
from dtq.web.engine import engine
from dtq.web.errors import UpgradeRequired
from dtq.web.http import request_id
from dtq.web.origin import refuse_foreign_host, refuse_other_sites
from dtq.web.sessions import viewer
from dtq.web.websocket import POLICY, SURPRISE, TRY_LATER, Hangup, WebSocket

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)

AUTH = "message"
"""`?auth=message` announces that the key is the first message, `{"api_key": "..."}`: browsers can send no header."""
KEY_WAIT_S = 5.0

_KEY_NAMES = frozenset({"api_key", "apikey", "x_api_key", "key", "token", "access_token"})
_HANDSHAKE_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")


def serve(talk: Callable[[WebSocket], None], need: Need = "read") -> Response:
    """Open a WebSocket for the request, let `talk` have it, and close it when that returns or raises.

    Raises, before anything is sent, what refuses the request: CrossSite, ForeignHost, KeyMissing, KeyWrong,
    RoleTooSmall, TooManyFailures, InvalidRequest, UpgradeRequired, TooManySockets, TooManySocketsOfAddress, and what
    `talk` raises before it has called `accept`.
    """
    _refuse_key_in_query()
    known = _admit(need)
    _require_handshake()
    with engine().slots.socket(request.remote_addr or ""):
        ws = WebSocket(request.environ, engine().stopping)
        ended = Hangup(SURPRISE, "an error of the server")
        try:
            if not known:
                _hear_key(ws, need)
            ws.check = partial(_check_key, need)
            talk(ws)
            ended = Hangup(1000)
        except Hangup as hangup:
            ended = hangup
        except DtqError as error:
            if not ws.accepted:
                raise
            ended = _ending(error)
        except Exception:
            if not ws.accepted:
                raise
            log.exception("a socket failed", extra={"request_id": request_id(), "path": request.path})
        finally:
            ws.finish(ended.code, ended.reason)
    if ended.code is None and ended.reason != "gone":
        log.info("cut off a socket whose client %s", ended.reason, extra={"request_id": request_id()})
    return _Done(status=101)  # for the figures: it has been sent long ago


class _Done(Response):
    """Nothing more is to be sent; gunicorn takes the StopIteration for the end of the connection."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise StopIteration


def _refuse_key_in_query() -> None:
    """A URL ends up in histories and in the logs of proxies: a key in it is one that has to be replaced."""
    if any(name.lower().replace("-", "_") in _KEY_NAMES for name in request.args):
        said = "a key never goes into the URL: send it as X-API-Key, or with auth=message as the first message"
        raise InvalidRequest(f"{said}; replace it now, it may be in logs", errors=[fault("", said)])


def _admit(need: Need) -> bool:
    """Return whether it is settled that the client may; False: it is going to send its key."""
    refuse_foreign_host()
    refuse_other_sites(reads_too=True)  # no other rule of browsers keeps a foreign page from opening a socket
    if not needs_key(need):
        return True
    offered = request.environ.get("HTTP_X_API_KEY")
    identity = viewer() if offered is None else identify(offered)
    if identity is not None:
        require(identity, need)
        return True
    if request.args.get("auth") == AUTH:
        return False
    raise KeyMissing("this needs an API key: send it as X-API-Key, or with auth=message as the first message")


def _require_handshake() -> None:
    environ = request.environ
    fits = environ["REQUEST_METHOD"] == "GET" and environ.get("SERVER_PROTOCOL") != "HTTP/1.0"
    if not fits or environ.get("HTTP_SEC_WEBSOCKET_VERSION") != "13" or "gunicorn.socket" not in environ:
        raise UpgradeRequired("this path speaks WebSocket, version 13, and is served by `flask dtq up` or gunicorn")
    if not _HANDSHAKE_KEY.fullmatch(environ.get("HTTP_SEC_WEBSOCKET_KEY", "")):
        raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in base64")


def _hear_key(ws: WebSocket, need: Need) -> None:
    """Take the first message for the key. Raises Hangup."""
    ws.accept()
    deadline = time.monotonic() + KEY_WAIT_S
    messages: list[str | bytes] = []
    while not messages:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise Hangup(POLICY, "no key came")
        messages = ws.wait(left_s)
    try:
        require(identify(_key_of(messages[0])), need)
    except DtqError as error:
        raise Hangup(POLICY, error.code) from None


def _check_key(need: Need) -> None:
    """Raises Hangup when the key that opened the socket is gone, or has lost its role."""
    identity: Identity | None = g.get("dtq_identity")
    if identity is None:
        return
    key = engine().keys.named(identity.name)
    now = None if key is None else Identity.of(key)
    if now is None or now.mark != identity.mark or not now.may(need):
        raise Hangup(POLICY, "the key counts no more")


def _key_of(message: str | bytes) -> str:
    try:
        value = load_json(message.encode() if isinstance(message, str) else message)
    except InvalidTask:
        value = None
    key = value.get("api_key") if isinstance(value, dict) else None
    if not isinstance(key, str):
        raise KeyMissing("the first message must be an object with the key as api_key")
    return key


def _ending(error: DtqError) -> Hangup:
    if isinstance(error, SubscriptionEnded):
        return Hangup(TRY_LATER, "too slow" if error.reason == "overflow" else "the server stops")
    if isinstance(error, RedisUnavailable):
        return Hangup(TRY_LATER, "Redis is away")
    log.error("a socket failed", extra={"request_id": request_id(), "code": error.code}, exc_info=error)
    return Hangup(SURPRISE, error.code)
