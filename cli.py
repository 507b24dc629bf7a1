"""`flask dtq ...`: how Flask gets the commands. They live in dtq/commands."""

from __future__ import annotations

import logging
from collections.abc import Callable

import click
from flask import Flask

from dtq import environment
from dtq.commands.root import dtq
from dtq.errors import ConfigurationError

__all__ = ["app_for_flask", "dtq"]


def app_for_flask(create_app: Callable[[], Flask]) -> Flask:
    """Return the application with `flask dtq`.

    While the `flask` program looks for a command, wrong settings give an application that has nothing but the commands:
    each of them tells what is wrong, and `flask dtq config check` all of it. Elsewhere they raise ConfigurationError.
    """
    context = click.get_current_context(silent=True)
    looking = context is not None and context.parent is None
    about_names = logging.getLogger(environment.__name__)
    silent = about_names.disabled
    try:
        about_names.disabled = silent or looking  # the command that is found reads the settings and warns itself
        app = create_app()
    except ConfigurationError:
        if not looking:
            raise
        app = Flask("dtq", static_folder=None)
    finally:
        about_names.disabled = silent
    app.cli.add_command(dtq)
    return app
