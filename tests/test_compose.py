"""The containers for real, where there is an engine: `docker compose up`, as docs/deployment.md says.

Bases that are named otherwise come from PYTHON_IMAGE, REDIS_IMAGE and PROMETHEUS_IMAGE.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest

from tests.support import PROJECT
from tests.support.servers import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def docker(*words, check=True, environment=None):
    done = subprocess.run(
        ["docker", *words], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert not check or done.returncode == 0, f"docker {' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Stack:
    """A project of its own, on ports of its own."""

    def __init__(self, environment):
        self.ports = {name: free_port() for name in ("API", "DASHBOARD", "PROMETHEUS")}
        self.environment = {**environment, **{f"{name}_PORT": str(port) for name, port in self.ports.items()}}

    def compose(self, *words, check=True):
        return docker("compose", "-p", "dtq-test", *words, check=check, environment=self.environment)

    def call(self, path, body=None, name="API", limit_s=40):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[name]}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            return json.loads(answer.read())

    def submit(self, number=1, **payload):
        body = {"tasks": [{"task_type": "sleep_task", "payload": payload, "timeout_ms": 120_000}] * number}
        return [result["task"]["task_id"] for result in self.call("/api/v1/tasks/batch", body)["results"]]

    def status(self, task_id):
        return self.call(f"/api/v1/tasks/{task_id}")["status"]

    def containers(self, service):
        return self.compose("ps", "-q", service).split()

    def wait_healthy(self):
        def healthy():
            states = [json.loads(line) for line in self.compose("ps", "--format", "json").splitlines()]
            waiting = [one["Name"] for one in states if one.get("Health") in ("starting", "unhealthy")]
            return len(states) >= 5 and not waiting

        wait_until(healthy, what="all containers to be healthy", timeout_s=180)


@pytest.fixture(scope="module")
def stack():
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine has no container engine")
    made = Stack(dict(os.environ))
    try:
        made.compose("up", "--build", "--detach")
        made.wait_healthy()
        yield made
    finally:
        made.compose("down", "--volumes", check=False)


def test_tasks_go_through_the_containers_and_prometheus_finds_each_worker(stack):
    (task_id,) = stack.submit(seconds=0.1)
    assert stack.call(f"/api/v1/tasks/{task_id}?wait=30")["status"] == "succeeded"
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.ports['DASHBOARD']}/", timeout=20) as page:
        assert page.headers["Content-Type"].startswith("text/html")
    stack.compose("up", "--detach", "--scale", "worker=3", "--no-recreate")

    def targets():
        found = stack.call("/api/v1/targets", name="PROMETHEUS")["data"]["activeTargets"]
        return sorted(one["labels"]["job"] for one in found if one["health"] == "up")

    wanted = ["dtq", "dtq-dashboard", "dtq-worker", "dtq-worker", "dtq-worker", "prometheus"]
    wait_until(lambda: targets() == wanted, what="the targets", timeout_s=90)

    def rules():
        groups = stack.call("/api/v1/rules", name="PROMETHEUS")["data"]["groups"]
        return {rule["health"] for group in groups for rule in group["rules"]}

    wait_until(lambda: rules() == {"ok"}, what="every alert rule to be evaluated", timeout_s=60)
    for query in re.findall(r"^\| .* \| `(.*)` \|$", (PROJECT / "docs" / "observability.md").read_text(), re.MULTILINE):
        asked = f"/api/v1/query?{urllib.parse.urlencode({'query': query.replace(chr(92) + '|', '|')})}"
        assert stack.call(asked, name="PROMETHEUS")["status"] == "success"


def test_the_containers_have_no_rights_and_cannot_write(stack):
    (name, *_) = stack.containers("worker")
    said = docker("exec", name, "sh", "-c", "id -u; touch /app/x 2>&1; touch /tmp/x && grep CapEff /proc/1/status")
    assert said.startswith("10001\n")
    assert "Read-only file system" in said
    assert "0000000000000000" in said
    assert stack.compose("port", "redis", "6379", check=False).strip() in ("", ":0")


def test_life_07_docker_stop_drains_what_can_end_and_releases_what_cannot(stack):
    workers = stack.containers("worker")
    short = stack.submit(4 * len(workers), seconds=5)
    wait_until(lambda: all(stack.status(one) == "running" for one in short), what="the start", timeout_s=60)
    began = time.monotonic()
    docker("stop", "-t", "30", workers[0])
    assert time.monotonic() - began < 15
    assert docker("inspect", "-f", "{{.State.ExitCode}}", workers[0]).strip() == "0"
    assert (
        "draining"
        in docker("logs", workers[0])
        + subprocess.run(["docker", "logs", workers[0]], capture_output=True, text=True, check=False).stderr
    )
    docker("start", workers[0])
    for one in short:
        wait_until(lambda: stack.status(one) == "succeeded", what="the end", timeout_s=60)  # noqa: B023

    stack.wait_healthy()
    (long,) = stack.submit(seconds=60)
    wait_until(lambda: stack.status(long) == "running", what="the start", timeout_s=60)
    owner = stack.call(f"/api/v1/tasks/{long}")["worker_id"]
    holder = next(one for one in workers if owner.startswith(one[:12]))
    began = time.monotonic()
    docker("stop", "-t", "30", holder)
    assert 24 < time.monotonic() - began < 31
    assert docker("inspect", "-f", "{{.State.ExitCode}}", holder).strip() == "1", "it was not killed"
    wait_until(
        lambda: stack.call(f"/api/v1/tasks/{long}")["worker_id"] not in (None, owner), what="another", timeout_s=5
    )
    docker("start", holder)


def test_all_containers_stop_in_order_within_their_grace(stack):
    began = time.monotonic()
    stack.compose("stop")
    assert time.monotonic() - began < 40
    for service in ("api", "dashboard", "redis", "prometheus", "worker"):
        for container in stack.compose("ps", "--all", "--quiet", service).split():
            code = docker("inspect", "-f", "{{.State.ExitCode}}", container).strip()
            assert code in (("0", "1") if service == "worker" else ("0",)), f"{service}; a worker: 1, handed back"
    stack.compose("start")
    stack.wait_healthy()


def test_nothing_is_lost_when_a_worker_is_killed_and_redis_restarted(stack):
    accepted, stop = [], threading.Event()

    def submit():
        while not stop.is_set():
            try:
                accepted.extend(stack.submit(10, seconds=0.02))
            except OSError:  # Redis is away: 503
                stop.wait(0.5)
            stop.wait(0.2)

    thread = threading.Thread(target=submit)
    thread.start()
    time.sleep(5)
    docker("kill", stack.containers("worker")[0])
    time.sleep(3)
    stack.compose("restart", "redis")
    time.sleep(8)
    stop.set()
    thread.join(60)
    assert len(accepted) > 100
    for one in accepted:
        wait_until(lambda: stack.status(one) == "succeeded", what="the end of all", timeout_s=90)  # noqa: B023
