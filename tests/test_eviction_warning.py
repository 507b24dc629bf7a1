"""A Redis that throws keys away is told of at the start, once (REDIS-09)."""

from __future__ import annotations

import json

import pytest

from dtq.redisio import Server
from dtq.serverinfo import eviction_policy
from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.support.web_server import running_web
from tests.support.workers import Workers

WARNING = "maxmemory-policy allkeys-lru"


def test_redis_09_web_server_and_worker_say_once_that_keys_may_be_evicted(server, tmp_path):
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    workers = Workers(server.safe_url, tmp_path)
    worker = workers.spawn()
    with running_web(server.safe_url, web_processes=2) as web:
        ready = json.loads(web.call("GET", "/ready").body)
        assert ready["redis"]["eviction_policy"] == "allkeys-lru"
        assert WARNING in ready["warnings"][0]
        assert b'dtq_redis_eviction_policy{policy="allkeys-lru"} 1.0' in web.call("GET", "/metrics").body
        assert web.log.count(WARNING) == 1
    worker.wait_for_log(WARNING)
    assert worker.stop() == 0
    assert worker.log.count(WARNING) == 1
    workers.close()


@pytest.mark.slow
@pytest.mark.not_on("acl", "tls", "sentinel", "cluster", because="it makes a user of one plain server")
@pytest.mark.parametrize("refused", ["+@all -info -config", "+@all"])
def test_redis_09_a_server_that_does_not_tell_is_no_error(server, tmp_path, refused):
    """As managed ones: INFO is refused."""
    server.call("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", *refused.split())
    url = server.safe_url.replace("unix://", "unix://app:secret@")
    own = Server.connect(url)
    assert eviction_policy(own) == ("unknown" if "-info" in refused else "noeviction")
    own.close()
    workers = Workers(url, tmp_path)
    worker = workers.spawn()
    with running_web(url) as web:
        assert json.loads(web.call("GET", "/ready").body)["status"] == "ready"
        wait_until(lambda: b"dtq_workers_active 1.0" in web.call("GET", "/metrics").body, what="the worker")
        for log in (web.log, worker.log):
            assert "ERROR" not in log
            assert "maxmemory-policy" not in log
            assert "secret" not in log
    assert worker.stop() == 0
    workers.close()
    server.call("ACL", "DELUSER", "app")


def test_a_web_server_without_its_redis_says_at_the_start_what_to_check():
    with running_web(f"redis://:s3cret@127.0.0.1:{free_port()}/0") as web:
        wait_until(lambda: "redis is away" in web.log, what="the warning")
        (line,) = [line for line in web.log.splitlines() if "redis is away" in line]
        assert "set DTQ_REDIS_URL to where it is" in line
        assert "s3cret" not in web.log
