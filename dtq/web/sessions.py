"""Signing in with an API key, for pages: a signed cookie says whose browser it is (contract, section 14).

How a page uses it:

    @bp.post("/sign-in")                                @bp.post("/queues/<queue>/purge")
    def signing_in():                                   def purge(queue):
        response = redirect("/", 303)                       allow_page("destructive")
        sign_in(response, request.form["key"])              ...actor() names the key...
        return response                                     return redirect(..., 303)

- `allow_page(need)` begins every view. It lets all pass for which no key is asked (`may(need)` says so beforehand,
  for what a page shows), else it raises SignInNeeded (send the browser to the form) or RoleTooSmall. For methods other
  than GET it refuses what comes from another site, also where no key is asked for.
- every form has `<input type="hidden" name="csrf_token" value="{{ csrf_token() }}">`, or htmx sends it as the header
  `X-CSRF-Token`; only browsers that do not say where a request comes from are asked for it.
- `viewer()` is whoever signed in, or None.

The cookie holds the name of the key and half of its hash, signed with DTQ_SECRET_KEY: a key that was removed, or made
anew under its name, signs its browsers out, and a role that changed counts at once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from flask import Response, g, request
from itsdangerous import BadSignature, URLSafeTimedSerializer

from dtq.errors import ConfigurationError
from dtq.settings import Settings
from dtq.web.auth import Identity, Need, identify, needs_key, require
from dtq.web.engine import Engine, engine
from dtq.web.errors import CrossSite, SignInNeeded
from dtq.web.origin import refuse_foreign_host, refuse_other_sites

COOKIE = "dtq_session"
SESSION_S = 12 * 3600
"""After this long a browser has to sign in again."""

TOKEN_FIELD, TOKEN_HEADER = "csrf_token", "X-CSRF-Token"
_MAX_COOKIE_CHARS = 1_000
_SECRET_FILE = "web-secret"


def sign_in(response: Response, key: str) -> Identity:
    """Sign the browser in that sent `key` and will get `response`, and return who it is now.

    Raises KeyWrong, TooManyFailures; CrossSite for a form of another site.
    """
    refuse_foreign_host()
    _require_own_form()
    identity = identify(key.strip())
    g.dtq_identity = identity
    value = _signer().dumps([identity.name, identity.mark, secrets.token_hex(8)])
    text = value.decode() if isinstance(value, bytes) else value
    response.set_cookie(
        COOKIE, text, max_age=SESSION_S, httponly=True, samesite="Lax", secure=request.is_secure, path="/"
    )
    return identity


def sign_out(response: Response) -> None:
    """Sign the browser out that will get `response`. Raises CrossSite."""
    _require_own_form()
    response.delete_cookie(COOKIE, httponly=True, samesite="Lax", secure=request.is_secure, path="/")


def viewer() -> Identity | None:
    """Return who signed in, with the role that the key has now; None when nobody did, or no longer counts as."""
    if "dtq_viewer" not in g:
        g.dtq_viewer = _viewer()
    found: Identity | None = g.dtq_viewer
    return found


def may(need: Need) -> bool:
    """Whether whoever looks at the page may do something: whether to show its button."""
    if not needs_key(need):
        return True
    identity = viewer()
    return identity is not None and identity.may(need)


def allow_page(need: Need) -> None:
    """Return when the request of a page may go on; `dtq.web.auth.actor` then names who it is.

    Raises SignInNeeded, RoleTooSmall, CrossSite, ForeignHost.
    """
    refuse_foreign_host()
    _require_own_form()
    identity = viewer()
    if needs_key(need):
        if identity is None:
            raise SignInNeeded("sign in with an API key")
        require(identity, need)
    elif identity is not None:
        g.dtq_identity = identity


def csrf_token() -> str:
    """Return the token that forms of this browser send along."""
    session = request.cookies.get(COOKIE, "") if viewer() is not None else ""
    return hmac.digest(_secret(engine()), f"form {session}".encode(), hashlib.sha256).hex()[:32]


def _require_own_form() -> None:
    """Refuse a write that does not come from a page of this server. Raises CrossSite."""
    if refuse_other_sites():
        return
    sent = request.headers.get(TOKEN_HEADER) or request.form.get(TOKEN_FIELD, "")
    if not hmac.compare_digest(sent.encode(errors="replace"), csrf_token().encode()):
        raise CrossSite("the form has no valid token; reload the page and send it again")


def _viewer() -> Identity | None:
    text = request.cookies.get(COOKIE)
    if text is None or len(text) > _MAX_COOKIE_CHARS:
        return None
    try:
        name, mark, _ = _signer().loads(text, max_age=SESSION_S)
    except (BadSignature, ValueError, TypeError):
        return None
    key = engine().keys.named(name)
    identity = None if key is None else Identity.of(key)
    return identity if identity is not None and hmac.compare_digest(identity.mark, str(mark)) else None


# --- the secret -------------------------------------------------------------------------------------------------------


def _signer() -> Any:
    return URLSafeTimedSerializer(
        _secret(engine()), salt="dtq session", signer_kwargs={"digest_method": hashlib.sha256}
    )


def _secret(shared: Engine) -> bytes:
    if shared.secret is None:
        shared.secret = secret_of(shared.settings)
    return shared.secret


def secret_of(settings: Settings) -> bytes:
    """Return DTQ_SECRET_KEY; unset, the secret of the directory, in `.dtq/web-secret`, made when it is not there.

    Raises ConfigurationError when the directory can neither be read nor written.
    """
    if settings.secret_key:
        return settings.secret_key.encode()
    path = settings.directory.resolve() / ".dtq" / _SECRET_FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return _usable(path)
        _make(path)
        return _usable(path)
    except OSError as error:
        raise ConfigurationError(
            f"the secret of the sessions cannot be kept in {path}: {error.strerror}; set DTQ_SECRET_KEY"
        ) from None


def _usable(path: Path) -> bytes:
    secret = path.read_bytes()
    if len(secret) < 32:
        raise ConfigurationError(f"{path} is damaged: remove it, and everybody signs in again")
    return secret


def _make(path: Path) -> None:
    """Put a new secret in place as a whole; the first of several processes that do so at once wins."""
    handle, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        os.write(handle, secrets.token_hex(32).encode())
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.close(handle)
        os.unlink(name)
