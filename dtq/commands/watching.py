"""`--watch` of the commands that read: the same again, every few seconds, until Ctrl-C."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dtq.commands.console import Failure, Seconds, on_terminal
from dtq.errors import RedisUnavailable

F = TypeVar("F", bound=Callable[..., Any])

INTERVAL_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def watch_option(command: F) -> F:
    """Add `--watch [SECONDS]`. What is shown is shown in place on a terminal, and one after the other elsewhere.

    A Redis that goes away meanwhile is told, and waited for.
    """

    @functools.wraps(command)
    def repeated(*arguments: Any, watch: float | None, **options: Any) -> Any:
        if watch is None:
            return command(*arguments, **options)
        try:
            while True:
                if on_terminal():
                    click.echo(_CLEAR, nl=False)
                _show(command, *arguments, **options)
                time.sleep(watch)
        except KeyboardInterrupt:  # the way to end it
            click.echo(err=True)
        return None

    option = click.option(
        "--watch",
        is_flag=False,
        flag_value=INTERVAL_S,
        default=None,
        type=Seconds(0.1, 3600),
        metavar="[SECONDS]",
        help=f"Again and again, every {INTERVAL_S:g} seconds, until Ctrl-C.",
    )
    return option(repeated)  # type: ignore[return-value]


def _show(command: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        command(*arguments, **options)
    except RedisUnavailable as error:
        Failure.of(error).show()
    except click.exceptions.Exit:  # its exit code is for those who look once
        pass
