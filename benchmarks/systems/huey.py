"""huey with its Redis storage and threads."""

from __future__ import annotations

from typing import Any

import huey

from benchmarks.handler import handle
from benchmarks.systems import url

app = huey.RedisHuey("bench", url=url())


@app.task()
def run(payload: dict[str, Any]) -> None:
    handle(payload)


def submit(payload: dict[str, Any]) -> None:
    run(payload)
