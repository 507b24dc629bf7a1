"""Two versions beside each other: the newer one is this code with another version and a newer schema."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dtq.client import Client
from dtq.keys import SCHEMA_VERSION
from dtq.settings import load_settings
from dtq.states import Status
from tests.support import PROJECT
from tests.support.waiting import wait_until
from tests.support.web_server import WebServer
from tests.support.workers import WorkerProcess, Workers

BODY = b'{"task_type": "sleep_task", "payload": {"seconds": 0.05}}'


@pytest.fixture
def newer(tmp_path):
    """A directory with the newer version."""
    made = tmp_path / "newer"
    made.mkdir()
    for name in ("dtq", "examples"):
        shutil.copytree(PROJECT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "cli.py", "worker.py"):
        shutil.copy(PROJECT / name, made / name)
    for name in ("static", "templates"):
        (made / name).symlink_to(PROJECT / name)
    for file, old, new in (
        ("dtq/__init__.py", '__version__ = "', '__version__ = "9.'),
        ("dtq/keys.py", f"SCHEMA_VERSION = {SCHEMA_VERSION}", f"SCHEMA_VERSION = {SCHEMA_VERSION + 1}"),
        ("dtq/limits.py", "MAX_COUNTED_TYPES = 1_000", "MAX_COUNTED_TYPES = 999"),  # so all scripts differ too
    ):
        text = (made / file).read_text()
        assert old in text
        (made / file).write_text(text.replace(old, new, 1))
    return made


class Newer:
    """Programs of the newer version."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory, self.url = directory, url
        self.made = []

    def worker(self, **settings):
        environment = {f"DTQ_{name.upper()}": str(value) for name, value in settings.items()}
        environment |= {"DTQ_TASKS": "examples.tasks", "DTQ_WORKER_METRICS_PORT": "0"}
        worker = WorkerProcess(self.url, environment=environment, cwd=self.directory, project=self.directory)
        self.made.append(worker)
        worker.wait_for_log("slots, Redis")
        return worker

    def web(self):
        web = WebServer(self.url, project=self.directory, web_processes=1, web_threads=4, max_websockets=0)
        self.made.append(web)
        web.wait_until_up()
        return web

    def close(self):
        for one in self.made:
            if isinstance(one, WebServer):
                one.close()
            elif one.process.poll() is None:
                one.kill()


@pytest.mark.timeout(150)
@pytest.mark.slow
def test_an_upgrade_with_a_newer_schema_loses_nothing_and_leaves_no_task_waiting(server, tmp_path, newer):
    """Workers first, then the web: both versions share the older records; the newer ones wait for a newer worker."""
    workers, other = Workers(server.safe_url, tmp_path), Newer(newer, server.safe_url)
    old_web = WebServer(server.safe_url, web_processes=1, web_threads=4, max_websockets=0)
    try:
        with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as client:
            old_web.wait_until_up()
            old_worker = workers.spawn(worker_concurrency=2)
            ids = [old_web.submit(BODY).json["task_id"] for _ in range(20)]

            new_worker = other.worker(worker_concurrency=2)
            wait_until(lambda: len({one.version for one in client.queries.workers()}) == 2, what="both versions")
            ids += [old_web.submit(BODY).json["task_id"] for _ in range(40)]
            for task_id in ids:
                assert client.wait(task_id, 30).status is Status.SUCCEEDED
            ran = {client.get(task_id).worker_id.split("-")[-2] for task_id in ids}
            assert ran == {str(old_worker.pid), str(new_worker.pid)}, "both share the older records"

            assert new_worker.stop() == 0
            new_web = other.web()
            newer_ids = [new_web.submit(BODY).json["task_id"] for _ in range(5)]
            mixed = old_web.submit(BODY).json["task_id"]
            assert client.wait(mixed, 30).status is Status.SUCCEEDED, "newer records hold nobody up"
            assert client.queries.counts("default")[Status.QUEUED] == 5, "they wait for a newer worker"
            assert "newer" in old_worker.log

            other.worker()
            assert old_worker.stop() == 0
            old_web.close()
            for task_id in newer_ids:
                answer = new_web.call("GET", f"/api/v1/tasks/{task_id}?wait=20", timeout_s=30)
                assert answer.json["status"] == "succeeded"
            wait_until(lambda: client.queries.queue("default").depth == 0, what="nothing to be left")
    finally:
        other.close()
        old_web.close()
        workers.close()
