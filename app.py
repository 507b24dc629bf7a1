"""The web application: `gunicorn -c python:dtq.web.gunicorn_conf app:app`, and what `flask` finds by itself."""

from __future__ import annotations

from functools import cache

from flask import Flask

import cli


def _for_serving() -> Flask:
    """Loading all of the web takes a second that a command need not wait."""
    from dtq.web.application import create_app

    return create_app()


@cache
def _app() -> Flask:
    return cli.app_for_flask(_for_serving)


def __getattr__(name: str) -> Flask:
    """Make the application when it is asked for, not when a test or a tool imports this module."""
    if name == "app":
        return _app()
    raise AttributeError(name)
