"""What browsers send without their user's knowledge: writes from other sites, and names that were bent to this server.

A page of another site can make a browser send requests here: with the browser's cookie, and, where no key is asked
for, with all rights of whoever reaches the server, which on loopback is everybody at this machine. Browsers say where a
request comes from (Sec-Fetch-Site, Origin); programs say nothing and are not concerned.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import request

from dtq.web.engine import Engine, engine
from dtq.web.errors import CrossSite, ForeignHost

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def refuse_other_sites(*, reads_too: bool = False) -> bool:
    """Refuse a write that a browser sends from a page of another origin.

    reads_too: refuse reads too, as for the handshake of a WebSocket, which no other rule of browsers stops.
    Returns whether the browser vouches for the origin; False: it said nothing, as old browsers and programs do.
    Raises CrossSite.
    """
    environ = request.environ
    if environ["REQUEST_METHOD"] in _SAFE_METHODS and not reads_too:
        return True
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    if origin is not None and not (site == "same-origin" or _is_this_server(origin)):
        raise CrossSite("a page of another site must not call this")
    if site is not None and site not in ("same-origin", "none"):
        raise CrossSite("a page of another site must not call this")
    return site is not None or origin is not None


def refuse_foreign_host() -> None:
    """Refuse a `Host` that is not this server's: a name that somebody else's DNS points here (DNS rebinding).

    Which ones are: DTQ_ALLOWED_HOSTS; unset, all but for a server on loopback that asks for no key.
    Raises ForeignHost.
    """
    shared, environ = engine(), request.environ
    if is_known_host(shared, environ):
        return
    host, allowed = _name(environ["HTTP_HOST"]), shared.settings.allowed_hosts
    fits = any(host == name or (name.startswith(".") and host.endswith(name)) for name in allowed)
    if not (fits if allowed else is_local(host)):
        raise ForeignHost("this server does not go by the name in the Host header; DTQ_ALLOWED_HOSTS says which it has")
    if len(shared.known_hosts) < 100:
        shared.known_hosts.add(host)


def is_known_host(shared: Engine, environ: WSGIEnvironment) -> bool:
    """Whether the `Host` has been found to be this server's before, or need not be looked at."""
    if not shared.settings.allowed_hosts and not shared.only_local_hosts:
        return True
    host = _name(environ.get("HTTP_HOST", ""))
    return not host or host in shared.known_hosts


def is_local(host: str) -> bool:
    """Whether a name can only mean this machine."""
    host = host.strip("[]").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_this_server(origin: str) -> bool:
    try:
        return bool(origin) and urlsplit(origin).netloc.lower() == request.environ.get("HTTP_HOST", "").lower()
    except ValueError:
        return False


def _name(host: str) -> str:
    """Return a Host header without its port."""
    name, bracket, _ = host.partition("]")
    return (name + bracket if bracket else host.partition(":")[0]).lower().rstrip(".")
