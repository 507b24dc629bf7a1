"""What all commands share: groups that turn errors into exit codes, a client, JSON, times, and how things are named."""

from __future__ import annotations

import errno
import getpass
import importlib
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from dtq.errors import (
    BulkJobEnded,
    BulkJobNotFound,
    ConfigurationError,
    DeadLetterNotFound,
    DtqError,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    InvalidTask,
    NewerSchema,
    PayloadTooLarge,
    QueueFull,
    RedisFull,
    RedisUnavailable,
    ScheduleFull,
    ServerStartFailed,
    TaskFinished,
    TaskNotFound,
    TooManyBulkJobs,
    TooManyQueues,
    TopicFull,
    UnknownTaskType,
    WorkerNotFound,
    WrongState,
)
from dtq.log import escape
from dtq.model import Actor, rfc3339
from dtq.settings import Settings, load_settings

if TYPE_CHECKING:
    from dtq.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_QUEUE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TASK_ID = re.compile(r"[0-9a-fA-F]{32}")
_CANNOT_WRITE = frozenset({errno.EBADF, errno.EFBIG, errno.EIO, errno.ENOSPC})
"""Errors of stdout that are told in a line. The one of a closed pipe is click's, and silent."""
_SHORT_NAMES = {"ls": "list"}
_CLIENT = "dtq.client"
_SETTINGS = "dtq.settings"


class Exit(IntEnum):
    """How a command ends."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    WRONG_STATE = 4
    FULL = 5
    REDIS_AWAY = 69
    GAVE_UP = 75
    CONFIGURATION = 78
    INTERRUPTED = 130


_EXITS: Sequence[tuple[tuple[type[DtqError], ...], Exit]] = (
    ((InvalidTask, PayloadTooLarge, UnknownTaskType, IdempotencyKeyReused), Exit.USAGE),
    ((TaskNotFound, WorkerNotFound, DeadLetterNotFound, BulkJobNotFound), Exit.NOT_FOUND),
    ((TaskFinished, WrongState, IdempotencyInProgress, NewerSchema, BulkJobEnded), Exit.WRONG_STATE),
    ((QueueFull, ScheduleFull, TooManyQueues, TooManyBulkJobs, TopicFull, RedisFull), Exit.FULL),
    ((RedisUnavailable, ServerStartFailed), Exit.REDIS_AWAY),
    ((ConfigurationError,), Exit.CONFIGURATION),
)


class Failure(click.ClickException):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        """message: may have several lines; they are joined."""
        super().__init__(escape("; ".join(line.strip() for line in message.splitlines() if line.strip())))
        self.exit_code = int(code)  # type: ignore[misc]  # click means a code a class; here each error has its own

    @classmethod
    def of(cls, error: DtqError) -> Failure:
        """Return what an error of dtq means for a command."""
        code = next((code for kinds, code in _EXITS if isinstance(error, kinds)), Exit.FAILED)
        return cls(_for_people(error), code)

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the line."""
        click.secho(f"Error: {self.message}", file=file, err=file is None, fg="red", color=self.show_color)


class Number(click.FloatRange):
    """A number within limits, and so no NaN, which is below and above none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Seconds(Number):
    """A length of time: a plain number, without a unit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds."""
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds: write one without a unit, such as 3 or 0.5.", param, ctx)
        return super().convert(value, param, ctx)


class Group(click.Group):
    """A group whose commands may be imported when they are called, and end by the table of exit codes."""

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **options: Any) -> None:
        """lazy: `module:attribute` by name of command, in the order of the help."""
        super().__init__(*args, **options)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they were added."""
        return [*self._lazy, *(name for name in self.commands if name not in self._lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now if need be."""
        name = _SHORT_NAMES.get(cmd_name, cmd_name)
        if name not in self.commands and name in self._lazy:
            module, _, attribute = self._lazy[name].partition(":")
            self.add_command(getattr(importlib.import_module(module), attribute), name)
        return super().get_command(ctx, name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command of the group."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except DtqError as error:
            raise Failure.of(error) from None
        except KeyboardInterrupt:  # not 1: that would tell a script that the task failed
            click.echo(err=True)
            raise click.exceptions.Exit(Exit.INTERRUPTED) from None
        except OSError as error:
            if error.filename is not None or error.errno not in _CANNOT_WRITE:
                raise
            raise Failure(f"the output could not be written: {error.strerror}") from None


def _for_people(error: DtqError) -> str:
    """Return the message, with what to check when Redis is out of reach."""
    if not isinstance(error, RedisUnavailable):
        return error.message
    from dtq.serverinfo import with_advice  # imports all that speaks with Redis

    return with_advice(error, settings().redis_url)


# --- what commands use ------------------------------------------------------------------------------------------------


def settings() -> Settings:
    """Return the settings, read once for a command, as reading tells of wrong names. Raises ConfigurationError."""
    context = click.get_current_context(silent=True)
    if context is None:
        return load_settings()
    if _SETTINGS not in context.meta:
        context.meta[_SETTINGS] = load_settings()
    found: Settings = context.meta[_SETTINGS]
    return found


def connect() -> Client:
    """Return a client that is closed when the command ends; the same one at every call."""
    from dtq.client import Client

    context = click.get_current_context()
    client: Client | None = context.meta.get(_CLIENT)
    if client is None:
        client = context.meta[_CLIENT] = context.with_resource(Client(settings=settings()))
    return client


def redis_now(client: Client) -> float:
    """Return the time on Redis's clock, to which all stored times belong."""
    return client.server.now()


def actor(reason: str = "") -> Actor:
    """Return who the history and the audit say did it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        name = str(os.getuid())
    return Actor(f"cli:{name}", reason)


def print_json(value: Any) -> None:
    """Write one JSON document to stdout: for people on a terminal, in one line otherwise."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if on_terminal() else None, default=str))


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def json_option(command: F) -> F:
    """Add `--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")(command)


def program() -> str:
    """Return what runs `flask` for this application from the current directory, as short as it can be."""
    context = click.get_current_context(silent=True)
    script = None if context is None else context.find_root().obj
    if script is None or not hasattr(script, "app_import_path"):  # not called by the program `flask`
        return "flask"
    called, found = sys.argv[0], shutil.which("flask")
    if os.path.basename(called) == "__main__.py":
        words = [sys.executable, "-m", "flask"]
    elif found is not None and os.path.realpath(found) == os.path.realpath(called):
        words = ["flask"]
    else:
        near = os.path.relpath(called)
        words = [called if near.startswith("..") else near]
    application = script.app_import_path
    if application and application != os.environ.get("FLASK_APP"):
        words += ["--app", application]
    return shlex.join(words)


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- times ------------------------------------------------------------------------------------------------------------


def when(seconds: float | None, now: float) -> str:
    """Return a moment for a table: relative to `now` on a terminal, else as RFC 3339; `-` for None."""
    if seconds is None:
        return "-"
    if not on_terminal():
        return rfc3339(seconds) or "-"
    away_s = seconds - now
    return f"in {duration(away_s)}" if away_s > 0.5 else f"{duration(-away_s)} ago"


def duration(seconds: float | None) -> str:
    """Return a length of time in one unit, such as `3 s`; `-` for None."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if round(seconds / size) * size < limit:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86_400)} d"


def moment(text: str) -> datetime:
    """Read a time with its offset."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        value = datetime.min  # noqa: DTZ901 - refused below
    if value.utcoffset() is None:
        raise Failure(f"{text} is no time with an offset, such as 2026-01-31T12:00:00+01:00", Exit.USAGE)
    return value


def seconds(time: datetime | None) -> float | None:
    """Return a time as seconds since the epoch."""
    return None if time is None else time.timestamp()


def moment_option(name: str, told: str) -> Callable[[F], F]:
    """Add an option that takes a time with its offset."""
    return click.option(name, metavar="TIME", callback=_moment, help=f"{told} RFC 3339 with an offset.")


def _moment(ctx: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    return None if value is None else moment(value)


# --- arguments --------------------------------------------------------------------------------------------------------


def checked_queue(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse what cannot be the name of a queue."""
    if value is not None and not _QUEUE.fullmatch(value):
        raise click.BadParameter("a queue's name is 1 to 64 of a-z 0-9 _ - and begins with a letter or a digit")
    return value


def checked_id(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse what cannot be the id of a task, or of a bulk job."""
    if not _TASK_ID.fullmatch(value):
        kind = "bulk" if parameter.name == "bulk_id" else "task"
        raise click.BadParameter(f"{escape(value)[:80]} is no {kind} id: they are 32 hexadecimal digits")
    return value.lower()
