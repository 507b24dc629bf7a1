"""`flask dtq ...`: how Flask gets the commands. They live in dtq/commands."""

from __future__ import annotations

from collections.abc import Callable

import click
from flask import Flask

from dtq.commands.root import dtq
from dtq.errors import ConfigurationError

__all__ = ["app_for_flask", "dtq"]


def app_for_flask(create_app: Callable[[], Flask]) -> Flask:
    """Return the application with `flask dtq`.

    While the `flask` program looks for a command, wrong settings give an application that has nothing but the commands:
    each of them tells what is wrong, and `flask dtq config check` all of it. Elsewhere they raise ConfigurationError.
    """
    try:
        app = create_app()
    except ConfigurationError:
        context = click.get_current_context(silent=True)
        if context is None or context.parent is not None:
            raise
        app = Flask("dtq", static_folder=None)
    app.cli.add_command(dtq)
    return app
