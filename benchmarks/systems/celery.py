"""Celery with Redis as its broker, threads, no results (its default)."""

from __future__ import annotations

from typing import Any

import celery

from benchmarks.handler import handle
from benchmarks.systems import url

app = celery.Celery("bench", broker=url())


@app.task(name="bench")
def run(payload: dict[str, Any]) -> None:
    handle(payload)


def submit(payload: dict[str, Any]) -> None:
    run.delay(payload)
