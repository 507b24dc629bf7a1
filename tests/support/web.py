"""The web application in this process, and workers that exist only as records: what the tests of the API share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import Flask

from dtq.client import Client
from dtq.model import Claim, HandlerPolicy, Outcome, WorkerInfo
from dtq.settings import Settings, load_settings
from dtq.states import Disposition
from dtq.web.application import create_app

_numbers = itertools.count()


@dataclass
class Api:
    """An application, its client, and the test client that calls it."""

    app: Flask
    client: Client
    http: Any  # a FlaskClient; its typing would make every `.json` a question
    settings: Settings
    worker_id: str = field(default_factory=lambda: f"w{next(_numbers)}")

    @property
    def document(self) -> Any:
        """The description of the API."""
        return self.http.get("/api/v1/openapi.json").json

    def post(self, **fields: Any) -> dict[str, Any]:
        """Submit a task, which must be accepted, and return it."""
        response = self.http.post("/api/v1/tasks", json={"task_type": "echo", **fields})
        assert response.status_code == 202, response.text
        return dict(response.json or {})

    def get(self, task_id: str) -> dict[str, Any]:
        """Return a task, which must be there."""
        response = self.http.get(f"/api/v1/tasks/{task_id}")
        assert response.status_code == 200, response.text
        return dict(response.json or {})

    def claim(self, queue: str = "default") -> Claim:
        """Take the next task of a queue, as a worker would."""
        return self.client.broker.claim(self.worker_id, [queue], 1).claims[0]

    def succeed(self, claim: Claim, result: bytes | None = None) -> None:
        """Record that a claimed task succeeded."""
        self.client.broker.commit(self.worker_id, [Outcome(claim=claim, kind="succeed", result=result)])

    def bury(self, claim: Claim) -> None:
        """Record that a claimed task failed for good."""
        outcome = Outcome(claim=claim, kind="dead", reason="permanent", disposition=Disposition.FAILED)
        self.client.broker.commit(self.worker_id, [outcome])

    def register_worker(self, handlers: dict[str, HandlerPolicy] | None = None) -> None:
        """Publish a worker."""
        now = time.time()
        worker = WorkerInfo(
            worker_id=self.worker_id,
            queues=("default",),
            concurrency=4,
            lease_s=30.0,
            started_at=now,
            heartbeat_at=now,
            state="running",
            running=0,
            held=0,
            task_types=("echo",),
            abandoned_threads=0,
            host="h",
            pid=1,
            version="0",
        )
        self.client.broker.register(worker, handlers or {"echo": HandlerPolicy(None, None, None)})


@contextmanager
def running_api(redis_url: str, **settings: Any) -> Iterator[Api]:
    """An application on a server, and what belongs to it."""
    loaded = load_settings(env_file=None, redis_url=redis_url, **{"serve": "api", **settings})
    with Client(settings=loaded) as client:
        app = create_app(loaded, client)
        try:
            yield Api(app, client, app.test_client(), loaded)
        finally:
            app.extensions["dtq"].close()
