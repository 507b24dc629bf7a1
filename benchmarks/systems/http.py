"""A small Flask application that submits with one of the systems, or with none: what dtq's API is measured beside."""

from __future__ import annotations

import importlib
import os
from typing import Any

from flask import Flask, Response, jsonify, request

from benchmarks.systems import BACKEND

app = Flask(__name__)
_backend: Any = None
if os.environ[BACKEND] != "none":
    _backend = importlib.import_module(f"benchmarks.systems.{os.environ[BACKEND]}")


@app.post("/tasks")
def submit() -> tuple[Response, int]:
    """Look at the body as little as one can, and answer 202."""
    body = request.get_json(silent=True)
    if not isinstance(body, dict) or not isinstance(body.get("payload"), dict):
        return jsonify(error="the body must be an object with a payload"), 400
    if _backend is not None:
        _backend.submit(body["payload"])
    return jsonify(id="0"), 202
