"""`flask dtq ...`: how Flask gets the commands. They live in dtq/commands."""

from __future__ import annotations

from collections.abc import Callable

import click
from flask import Flask

from dtq.commands.root import dtq

__all__ = ["app_for_flask", "dtq"]


def app_for_flask(create_app: Callable[[], Flask]) -> Flask:
    """Return the application with `flask dtq`.

    While the `flask` program looks for a command, that is an application that has nothing but the commands: making the
    real one takes a second, and wrong settings are each command's own to tell. What Flask's commands (`run`, `routes`)
    ask for afterwards is the real one. Raises ConfigurationError.
    """
    context = click.get_current_context(silent=True)
    looking = context is not None and context.parent is None
    app = Flask("dtq", static_folder=None) if looking else create_app()
    app.cli.add_command(dtq)
    return app
