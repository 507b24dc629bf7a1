"""The files for containers and monitoring: whole, and about things that exist. Tools are used where they are there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from dtq.settings import Settings
from dtq.web.metrics import COUNTERS
from tests.support import PROJECT

COMPOSE = (PROJECT / "docker-compose.yml").read_text()
ALERTS = (PROJECT / "docker" / "alerts.yml").read_text()
DASHBOARD = PROJECT / "docker" / "grafana-dashboard.json"
KNOWN = (PROJECT / "dtq/web/metrics.py").read_text() + "".join(
    (PROJECT / name).read_text() for name in ("dtq/web/meters.py", "dtq/worker/figures.py")
)


def expressions() -> list[str]:
    """Every query of the alerts and of the dashboard, without Grafana's variables."""
    found = re.findall(r"expr: (?:>-\n((?:          .*\n)+)|(.*))", ALERTS)
    queries = [block or line for block, line in found]
    dashboard = json.loads(DASHBOARD.read_text())
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [re.sub(r"\$__rate_interval", "5m", query).replace("$queue", ".+") for query in queries]


def test_alerts_and_dashboard_ask_for_figures_that_exist():
    assert len(expressions()) > 20
    for name in {name for query in expressions() for name in re.findall(r"\bdtq_\w+", query)}:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert base in KNOWN or base.removesuffix("_total") in {*COUNTERS, *re.findall(r'"(dtq_\w+)"', KNOWN)}, name


def test_the_compose_file_names_settings_that_exist_and_publishes_no_redis():
    names = set(re.findall(r"\bDTQ_[A-Z_]+", COMPOSE)) | set(
        re.findall(r"\bDTQ_[A-Z_]+", (PROJECT / "Dockerfile").read_text())
    )
    assert {name.removeprefix("DTQ_").lower() for name in names} <= set(Settings.model_fields)
    redis = COMPOSE[COMPOSE.index("\n  redis:") : COMPOSE.index("\n  api:")]
    assert "ports:" not in redis
    assert "--appendonly yes" in redis
    grace = [int(seconds) for seconds in re.findall(r"stop_grace_period: (\d+)s", COMPOSE)]
    assert min(grace) >= 30
    worker = COMPOSE[COMPOSE.index("\n  worker:") :]
    drain_s = Settings.model_fields["drain_timeout_s"].default
    assert int(re.search(r"stop_grace_period: (\d+)s", worker)[1]) >= drain_s + 5


SERVICE_WORDS = {
    "build", "cap_drop", "command", "depends_on", "env_file", "environment", "healthcheck", "image", "init", "ports",
    "read_only", "restart", "security_opt", "stop_grace_period", "tmpfs", "volumes",
}  # fmt: skip
HEALTHCHECK_WORDS = {"test", "interval", "timeout", "retries", "start_period"}


def test_the_compose_file_is_whole_where_there_is_no_compose_to_say_so():
    """Words that compose knows, references that lead somewhere, and what each container must not be without."""
    yaml = pytest.importorskip("yaml")
    told = yaml.safe_load(COMPOSE)
    assert {name for name in told if not name.startswith("x-")} == {"name", "services", "volumes"}
    services = told["services"]
    assert set(services) == {"redis", "api", "dashboard", "worker", "prometheus"}
    built = {service["image"] for service in services.values() if "build" in service}
    targets = set(re.findall(r"^FROM \S+ AS (\w+)", (PROJECT / "Dockerfile").read_text(), re.MULTILINE))
    for name, service in services.items():
        assert set(service) <= SERVICE_WORDS, name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert service["image"] in built or re.fullmatch(r"\$\{[A-Z]+_IMAGE:-\S+:\S+\}", service["image"]), name
        assert set(service.get("healthcheck", ())) <= HEALTHCHECK_WORDS, name
        assert set(service.get("depends_on", ())) <= set(services), name
        if "build" in service:
            assert service["build"]["target"] in targets, name
        for published in service.get("ports", ()):
            assert published.startswith("${PUBLISH_ADDRESS:-127.0.0.1}:${"), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (PROJECT / source).exists() if source.startswith("./") else source in told["volumes"], volume
        assert all(isinstance(value, str) for value in service.get("environment", {}).values()), name
    assert "healthcheck" in services["redis"]  # those of dtq have theirs from the image
    for name in ("api", "dashboard", "worker"):
        assert services[name]["depends_on"] == {"redis": {"condition": "service_healthy"}}
        assert services[name]["cap_drop"] == ["ALL"]
        assert "container_name" not in services[name], "or it could not be scaled"
    assert "ports" not in services["worker"], "three of them cannot have one port of the host"


def test_what_goes_into_the_image_is_there():
    listed = [line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert {"app.py", "worker.py", "dtq", "requirements.txt"} <= set(listed)
    missing = [name for name in listed if not (PROJECT / name).exists()]
    assert set(missing) <= {"templates", "static"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="this machine has no promtool")
def test_prometheus_accepts_its_files_and_every_query(tmp_path):
    def promtool(*arguments):
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    promtool("check", "config", str(PROJECT / "docker" / "prometheus.yml"))
    rules = [{"record": f"dtq:q{number}", "expr": query} for number, query in enumerate(expressions())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))
    promtool("test", "rules", str(PROJECT / "tests" / "data" / "alerts_test.yml"))


def has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return (
        subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False).returncode == 0
    )


@pytest.mark.skipif(not has_compose(), reason="this machine has no docker compose")
def test_docker_compose_accepts_its_file():
    done = subprocess.run(
        ["docker", "compose", "-f", str(PROJECT / "docker-compose.yml"), "config", "--quiet"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
