"""Puts the web application together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from dtq.settings import Settings, load_settings
from dtq.web import (
    admin,
    audit,
    bulk,
    dashboard,
    dead,
    events,
    health,
    http,
    messages,
    meters,
    metrics,
    openapi,
    problem,
    tasks,
)
from dtq.web.engine import Engine
from dtq.web.intake import Intake

if TYPE_CHECKING:
    from dtq.client import Client


def create_app(settings: Settings | None = None, client: Client | None = None) -> Flask:
    """Return the web application.

    settings: read from the environment when None. client: used instead of one of the app's own; the caller closes it.
    Nothing is connected or started before a request needs it, so an app can be made, and forked, at any time.
    Raises ConfigurationError for settings, or a file of API keys, that cannot be used.
    """
    app = Flask("dtq", static_folder=None)
    shared = app.extensions["dtq"] = Engine(settings or load_settings(), client)
    serve = shared.settings.serve
    if serve != "dashboard":
        app.wsgi_app = Intake(shared, app.wsgi_app)  # type: ignore[method-assign]
    if proxies := shared.settings.trusted_proxies:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=proxies, x_proto=proxies, x_host=proxies)  # type: ignore[method-assign]
    problem.register(app)
    http.register(app)
    meters.register(app)
    for blueprint in (health.bp, metrics.bp):
        app.register_blueprint(blueprint)
    if serve != "dashboard":
        for blueprint in (tasks.bp, dead.bp, bulk.bp, admin.bp, audit.bp, events.bp, messages.bp, openapi.bp):
            app.register_blueprint(blueprint)
    if serve == "api":
        app.register_blueprint(health.root_bp)
    else:
        dashboard.register(app)
    return app
