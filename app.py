"""The web application: `gunicorn -c python:dtq.web.gunicorn_conf app:app`, and what `flask` finds by itself."""

from __future__ import annotations

from functools import cache, partial

from flask import Flask

import cli
from dtq.web.application import create_app

__all__ = ["create_app"]

_app = cache(partial(cli.app_for_flask, create_app))


def __getattr__(name: str) -> Flask:
    """Make the application when it is asked for, not when a test or a tool imports this module."""
    if name == "app":
        return _app()
    raise AttributeError(name)
