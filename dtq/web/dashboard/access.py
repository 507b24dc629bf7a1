"""Whoever looks at a page, as the page needs to know them."""

from __future__ import annotations

from flask import request

from dtq.web import sessions
from dtq.web.dashboard.viewer import Viewer, preferences


def current_viewer() -> Viewer:
    """Return whoever looks: who they are, what they may do, and how they like times and colours."""
    identity = sessions.viewer()
    return Viewer(
        name="" if identity is None else identity.name,
        may_write=sessions.may("write"),
        may_destroy=sessions.may("destructive"),
        **preferences(request.cookies),
    )
