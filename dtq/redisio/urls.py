"""Where Redis is: the URL forms of DTQ_REDIS_URL, read once, and shown only without their passwords."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from dtq.errors import ConfigurationError

Kind: TypeAlias = Literal["standalone", "sentinel", "cluster", "memory"]
Host: TypeAlias = tuple[str, int]

_FORMS = (
    "redis://[user:password@]host[:port][/db], rediss://..., unix:///path[?db=n], memory://[name], "
    "redis+sentinel://host:port,host:port/service[/db] or redis+cluster://host:port,host:port"
)
_KINDS: Mapping[str, Kind] = {
    "redis": "standalone",
    "rediss": "standalone",
    "unix": "standalone",
    "memory": "memory",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
_TLS_FILES = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"})
_TLS_OPTIONS = _TLS_FILES | {"ssl_password", "ssl_cert_reqs", "ssl_check_hostname"}
_SECRETS = frozenset({"password", "ssl_password", "sentinel_password"})
_OPTIONS = _TLS_OPTIONS | _SECRETS | {"db", "username", "sentinel_username", "client_name"}
_DEFAULT_PORTS: Mapping[Kind, int] = {"standalone": 6379, "sentinel": 26379, "cluster": 6379, "memory": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parsed URL."""

    kind: Kind
    hosts: tuple[Host, ...] = ()
    """Of the server, the sentinels or the seed nodes; empty for a unix socket."""
    path: str = ""
    """Of the unix socket, or the name of the store in memory."""
    service: str = ""
    """What the sentinels call the master."""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    client_name: str | None = None
    tls: Mapping[str, str | bool] | None = field(default=None, repr=False)
    """The ssl_* options of the URL; None for a connection in the clear."""
    safe_url: str = ""
    """The URL with `***` for every password."""


def hide_passwords(url: str) -> str:
    """Return the URL with `***` for each password in it, whatever else is wrong with it."""
    hidden = re.sub(r"^([^:/?#]+://[^:/?#]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&](?:" + "|".join(_SECRETS) + r")=)[^&#]*", r"\1***", hidden)


def parse(url: str) -> Target:
    """Read a URL. Raises ConfigurationError, which shows the URL without its passwords and what is allowed."""
    shown = hide_passwords(url)
    try:
        return _parse(url, shown)
    except ValueError as error:
        raise ConfigurationError(f"the Redis URL {shown!r} cannot be used: {error}; allowed: {_FORMS}") from None


def address(host: Host) -> str:
    """Return `host:port`, with the brackets that an IPv6 address needs."""
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _parse(url: str, shown: str) -> Target:
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _KINDS:
        raise ValueError("it has no scheme that dtq knows")
    kind = _KINDS[scheme]
    parts = urlsplit(url)
    userinfo, _, netloc = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    hosts: tuple[Host, ...] = ()
    path, service, db = "", "", ""
    if scheme in ("unix", "memory"):
        path = unquote(netloc + parts.path)
    else:
        if "@" in parts.path + parts.fragment + "".join(options):
            raise ValueError("a / ? or # in its password is not percent-encoded")
        hosts = tuple(_host(one, _DEFAULT_PORTS[kind]) for one in netloc.split(","))
        service, db = _service_and_db(unquote(parts.path), kind)
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise ValueError(f"it has an unknown option {unknown[0]!r}")
    if scheme == "unix" and not path:
        raise ValueError("it names no socket")
    if kind == "standalone" and len(hosts) > 1:
        raise ValueError("only sentinel and cluster URLs name several hosts")
    return Target(
        kind=kind,
        hosts=hosts,
        path=path,
        service=service,
        db=_db(options.get("db") or db, kind),
        username=unquote(username) or options.get("username") or None,
        password=unquote(password) or options.get("password") or None,
        sentinel_username=options.get("sentinel_username") or None,
        sentinel_password=options.get("sentinel_password") or None,
        client_name=options.get("client_name") or None,
        tls=_tls(options) if scheme.startswith("rediss") else None,
        safe_url=shown,
    )


def _service_and_db(path: str, kind: Kind) -> tuple[str, str]:
    segments = [segment for segment in path.split("/") if segment]
    service = ""
    if kind == "sentinel":
        if not segments:
            raise ValueError("it names no service")
        service = segments.pop(0)
    if len(segments) > 1:
        raise ValueError("its path has too many parts")
    return service, segments[0] if segments else ""


def _host(text: str, default_port: int) -> Host:
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]*))(?::(\d{1,5}))?", text.strip())
    if not match or int(match[3] or 1) not in range(1, 65536):
        raise ValueError("a host or a port in it cannot be read")
    name = unquote(match[1] or match[2] or "localhost")
    name.encode("idna")  # what resolving it would do
    return name, int(match[3] or default_port)


def _db(text: str, kind: Kind) -> int:
    if not re.fullmatch(r"\d{0,9}", text, re.ASCII):
        raise ValueError("its database is not a number")
    if kind == "cluster" and int(text or 0):
        raise ValueError("a cluster has only database 0")
    return int(text or 0)


def _tls(options: Mapping[str, str]) -> Mapping[str, str | bool]:
    tls: dict[str, str | bool] = {name: value for name, value in options.items() if name in _TLS_OPTIONS and value}
    for name in _TLS_FILES & set(tls):
        if not os.path.exists(str(tls[name])):
            raise ValueError(f"{name}={tls[name]!r} does not exist")
    if tls.get("ssl_cert_reqs", "required") not in ("none", "optional", "required"):
        raise ValueError("ssl_cert_reqs is none, optional or required")
    if "ssl_check_hostname" in tls:
        tls["ssl_check_hostname"] = str(tls["ssl_check_hostname"]).lower() not in ("0", "f", "false", "n", "no")
    return tls
