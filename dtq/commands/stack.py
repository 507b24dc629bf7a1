"""What `flask dtq up` runs, and where: the port, the commands of web and worker, and whether they are ready."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtq.commands.supervise import Program
from dtq.commands.workers import worker_script
from dtq.errors import ConfigurationError
from dtq.settings import Settings

_LEASH = str(Path(__file__).resolve().with_name("leash.py"))
_WEB_STOP_LIMIT_S = 35.0
"""gunicorn gives requests up to 25 s to end."""
_WORKER_STOP_MARGIN_S = 20.0
"""Beyond the drain: interrupting, recording, handing back."""
_LOOK_LIMIT_S = 0.5

_ANY_ADDRESS: Mapping[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}


def usable_port(settings: Settings) -> int:
    """Return the port to serve on: DTQ_API_PORT, or a free one for 0.

    Raises ConfigurationError when it is taken, or the host is none of this machine.
    """
    host, port = settings.api_host, settings.api_port
    where = f"DTQ_API_HOST={host} DTQ_API_PORT={port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _bound(family, address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} is in use by another program; choose another one: DTQ_API_PORT={_free(family, address)}"
            ) from error
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror or error}") from error


def _bound(family: int, address: tuple[Any, ...]) -> int:
    """Listen nowhere, but try whether one could; return the port. Raises OSError."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])


def _free(family: int, address: tuple[Any, ...]) -> int:
    """Return a port near to one that is taken: the first free one of a few, else 0, which is any."""
    host, port, *rest = address
    step = 10 if port < 65_000 else -10
    for candidate in range(port + step, port + 11 * step, step):
        with contextlib.suppress(OSError):
            return _bound(family, (host, candidate, *rest))
    return 0


def bracketed(host: str) -> str:
    """Return a host as a URL needs it."""
    return f"[{host}]" if ":" in host else host


def url_of(settings: Settings, port: int) -> str:
    """Return where this machine reaches the web server."""
    return f"http://{bracketed(_ANY_ADDRESS.get(settings.api_host, settings.api_host))}:{port}"


def programs(settings: Settings, port: int) -> tuple[Program, Program]:
    """Return web and worker, in the order in which they are stopped."""
    environment = {name: value for name, value in os.environ.items() if name != "FLASK_RUN_FROM_CLI"}
    environment |= {"DTQ_API_PORT": str(port), "PYTHONUNBUFFERED": "1"}
    leashed = [sys.executable, "-P", _LEASH, str(os.getpid())]
    address = f"{bracketed(settings.api_host)}:{port}"
    # Not app:app: in a directory with an app.py of its own, that would be another application.
    gunicorn = ["gunicorn", "--config", "python:dtq.web.gunicorn_conf", "--bind", address]
    web = Program(
        name="web",
        command=[*leashed, *gunicorn, "dtq.web.application:create_app()"],
        environment=environment,
        hopeless=frozenset({1, 3, 4, 78}),  # gunicorn's: the configuration, a worker or the application cannot be had
        stop_limit_s=_WEB_STOP_LIMIT_S,
        hurry_signal=signal.SIGQUIT,
        hurry_all=True,  # while gunicorn stops in order it hears no signal, but its workers do
    )
    # A single worker watches its parent itself; the parent of several needs the leash.
    launcher = leashed if settings.worker_processes > 1 else [sys.executable]
    worker = Program(
        name="worker",
        command=[*launcher, worker_script()],
        environment=environment,
        hopeless=frozenset({69, 78}),  # its own: no Redis at the start, settings or import
        stop_limit_s=settings.drain_timeout_s + _WORKER_STOP_MARGIN_S,
    )
    return web, worker


def web_answers(settings: Settings, port: int) -> bool:
    """Whether the web server answers /health."""
    host = _ANY_ADDRESS.get(settings.api_host, settings.api_host)
    connection = http.client.HTTPConnection(host, port, timeout=_LOOK_LIMIT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
