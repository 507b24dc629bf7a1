"""Events over HTTP: pages, and sockets that cost others nothing, whatever their clients do."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtq.apikeys import create_key
from dtq.events import EventId
from dtq.keys import Keys
from dtq.redisio import Server
from dtq.web.schemas import EventPage
from tests.conftest import ServerFactory
from tests.support.dump import namespace_of
from tests.support.engine import Engine
from tests.support.servers import ServerProcess
from tests.support.web import running_api
from tests.support.web_server import WebServer, running_web
from tests.support.websocket import SocketClient, answer_to, opened

Wait = Callable[..., Any]


@pytest.fixture(scope="module")
def small_web(valkey: ServerProcess) -> Iterator[WebServer]:
    """Eight threads, six of which sockets may have."""
    with running_web(valkey.url, web_threads=8, max_websockets=6) as server:
        yield server


@pytest.fixture
def web(small_web: WebServer, server: Server) -> WebServer:
    return small_web


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


def types(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["type"] for frame in frames]


def pid_of(web: WebServer) -> int:
    [pid] = web.worker_pids()
    return pid


def open_files(web: WebServer) -> int:
    return len(os.listdir(f"/proc/{pid_of(web)}/fd"))


def status_of(web: WebServer, field: str) -> int:
    """A number of /proc/<pid>/status, such as Threads or VmRSS (KiB)."""
    text = Path(f"/proc/{pid_of(web)}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{field}:"))


def median_post_s(web: WebServer, number: int = 30) -> float:
    took = []
    for _ in range(number):
        began = time.monotonic()
        assert web.submit().status == 202
        took.append(time.monotonic() - began)
    return statistics.median(took)


def add_events(server: Server, number: int, kind: str = "TASK_QUEUED", task_id: str = "0" * 32) -> None:
    """Append so many events, packed as scripts do it."""
    line = f"{kind}\t{task_id}\tdefault\techo\t1\tw1\t"
    server.call(
        "XADD", Keys(namespace_of(server)).events(), "MAXLEN", "~", 10_000, "*", "e", "\n".join([line] * number)
    )


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_page_of_events_goes_on_where_the_last_one_ended(server: Server) -> None:
    with running_api(server.safe_url) as api:
        first = api.post(queue="a")["task_id"]
        api.post(queue="b")
        api.succeed(api.claim("a"))
        everything = api.http.get("/api/v1/events").json
        EventPage.model_validate(everything)
        assert types(everything["events"]) == ["TASK_QUEUED", "TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]
        assert (everything["more"], everything["gap"]) == (False, False)
        page = api.http.get("/api/v1/events?since=0&limit=3&queue=a").json
        assert (len(page["events"]), page["more"]) == (3, True)
        again = api.http.get(f"/api/v1/events?since={page['next_since']}").json
        assert (again["events"], again["more"], again["next_since"]) == ([], False, everything["next_since"])
        wanted = api.http.get(f"/api/v1/events?task_id={first}&type=TASK_STARTED,TASK_SUCCEEDED").json["events"]
        assert types(wanted) == ["TASK_STARTED", "TASK_SUCCEEDED"]
        assert wanted[0]["worker_id"] == api.worker_id
        gone = api.http.get("/api/v1/events?since=1-0-0&limit=1").json
        assert (gone["gap"], len(gone["events"])) == (True, 1)


@pytest.mark.parametrize(
    "query",
    [
        "since=x",
        "since=",
        "limit=0",
        "limit=1001",
        "type=NOPE",
        "type=",
        "task_id=1",
        "queue=A",
        "x=1",
        "since=0&since=0",
    ],
)
def test_a_query_for_events_that_is_none_is_refused(query: str) -> None:
    with running_api("memory://events-queries") as api:
        response = api.http.get(f"/api/v1/events?{query}")
        assert (response.status_code, response.json["code"]) == (400, "INVALID_REQUEST")
        assert "Value error" not in response.text


# --- what a socket brings ---------------------------------------------------------------------------------------------


def test_events_come_as_they_happen_and_only_those_that_were_asked_for(web: WebServer, engine: Engine) -> None:
    with (
        opened(web.port) as everything,
        opened(web.port, "/ws/events?queue=mail&type=TASK_SUCCEEDED,TASK_FAILED") as ends,
    ):
        engine.submit(queue="other")
        began = time.monotonic()
        task_id = engine.submit(queue="mail", payload={"secret": "s3cret"})
        engine.commit(engine.claim_one(queue="mail"), result=b'"s3cret"')
        frames = everything.frames(4)
        assert time.monotonic() - began < 5
        assert types(frames) == ["TASK_QUEUED", "TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]
        assert "s3cret" not in str(frames)
        [end] = ends.frames(1)
        assert end == frames[3]
        assert (end["task_id"], end["queue"], end["worker_id"], end["attempt"]) == (task_id, "mail", "w1", 1)
        ends.say_goodbye()
        assert ends.end() == 1000
    with opened(web.port, f"/ws/events?task_id={task_id}&since=0") as one:
        assert types(one.frames(3)) == ["TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]


def test_a_replay_goes_over_into_what_happens_and_says_what_it_misses(web: WebServer, engine: Engine) -> None:
    before = engine.submit_many(300)
    with opened(web.port, "/ws/events?since=0") as first:
        seen = first.frames(300)
    place = seen[149]["id"]
    with opened(web.port, f"/ws/events?since={place}") as client:
        after = engine.submit_many(300)
        frames = client.frames(450)
        assert [frame["task_id"] for frame in frames] == before[150:] + after
        assert client.frames(1, timeout_s=0.2) == []
    with opened(web.port, "/ws/events?since=1-1-1") as late:
        frames = late.frames(601)
        assert frames[0] == {"type": "gap"}
        assert [frame["task_id"] for frame in frames[1:]] == before + after


def test_sockets_are_refused_before_the_upgrade_like_any_request(web: WebServer, engine: Engine) -> None:
    for path, headers, status, code in (
        ("/ws/events?type=NOPE", {}, 400, "INVALID_REQUEST"),
        ("/ws/events?since=x", {}, 400, "INVALID_REQUEST"),
        ("/ws/events?nope=1", {}, 400, "INVALID_REQUEST"),
        ("/ws/events", {"Sec_WebSocket_Version": "8"}, 426, "UPGRADE_REQUIRED"),
        ("/ws/events", {"Sec_WebSocket_Key": "short"}, 400, "INVALID_REQUEST"),
        ("/ws/nope", {}, 404, "NOT_FOUND"),
    ):
        assert answer_to(web.port, path, **headers) == (status, code), path
    with web.connect() as client:
        shake = (
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22
        )
        client.sendall(b"HEAD /ws/events HTTP/1.1\r\nHost: localhost\r\n" + shake + b"==\r\n\r\n")
        assert client.recv(65_536).startswith(b"HTTP/1.1 426 "), "a WebSocket begins with GET"
    plain = web.call("GET", "/ws/events")
    assert (plain.status, plain.headers["Upgrade"]) == (426, "websocket")
    assert "Traceback" not in web.log


# --- what sockets cost others -----------------------------------------------------------------------------------------


def test_ws_01_idle_sockets_take_no_thread_that_requests_need(web: WebServer, wait_until: Wait) -> None:
    """Fifty clients at eight threads: six get a socket, the others are told when to come again, and POSTs go on."""
    calm = median_post_s(web)
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(opened(web.port))
        refused = [stack.enter_context(SocketClient(web.port)) for _ in range(44)]
        assert {(client.status, client.problem["code"]) for client in refused} == {(503, "TOO_MANY_WEBSOCKETS")}
        assert int(refused[0].headers["retry-after"]) >= 1
        assert median_post_s(web) < max(0.2, 10 * calm)
        path = web.submit().headers["Location"]
        began = time.monotonic()
        answer = web.call("GET", f"{path}?wait=1")  # six sockets, and one thread is kept free: one may wait
        assert (answer.status, 1 <= time.monotonic() - began < 4) == (200, True)
    wait_until(lambda: answer_to(web.port) == (101, ""), what="room for another one")


def test_ws_01_a_thousand_connects_that_are_reset_leave_nothing_behind(web: WebServer, wait_until: Wait) -> None:
    with opened(web.port) as client:
        web.submit()
        client.frames(1)
    files, threads = open_files(web), status_of(web, "Threads")
    for number in range(1000):
        client = SocketClient(web.port)
        if number % 3 and client.status == 101:
            client.send("x" * 100)
        client.reset()
    wait_until(lambda: open_files(web) <= files + 2, what="the files to be closed", timeout_s=30)
    assert status_of(web, "Threads") <= threads + 5
    wait_until(lambda: answer_to(web.port) == (101, ""), what="a socket after all that")
    assert "Traceback" not in web.log


@pytest.fixture(scope="module")
def large_web(valkey: ServerProcess) -> Iterator[WebServer]:
    """Room for fifty sockets of one address."""
    with running_web(valkey.url, web_threads=64, max_websockets=52, max_websockets_per_ip=51) as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ws_02_fifty_clients_that_never_read_slow_no_post_and_end(
    large_web: WebServer, engine: Engine, wait_until: Wait
) -> None:
    """50 000 events go to one client that reads, quickly, while fifty others are cut off; memory stays bounded."""
    web, rest, task_id = large_web, 50_000, "1" * 32
    calm = median_post_s(web)
    with contextlib.ExitStack() as stack:
        normal = stack.enter_context(opened(web.port, f"/ws/events?task_id={task_id}"))
        memory = status_of(web, "VmRSS")
        stuck = [stack.enter_context(opened(web.port, receive_buffer=4096)) for _ in range(50)]
        assert answer_to(web.port) == (429, "TOO_MANY_WEBSOCKETS")
        lags, growth, posts = [], 0, []
        while rest > 0:
            began = time.monotonic()
            add_events(engine.server, 500, task_id=task_id)
            rest -= 500
            frames = normal.frames(500, timeout_s=30)
            lags.append(time.monotonic() - began)
            assert len(frames) == 500
            assert set(types(frames)) == {"TASK_QUEUED"}
            if rest % 5000 == 0:
                growth = max(growth, status_of(web, "VmRSS") - memory)
                began = time.monotonic()
                assert web.submit().status == 202
                posts.append(time.monotonic() - began)
        assert statistics.median(lags) < 1
        assert statistics.median(posts) < max(0.5, 20 * calm)
        assert growth < 40 * 1024  # KiB; about 10 where it was measured
        wait_until(lambda: probe(web), what="the others' end", timeout_s=60)
        for client in stuck:
            assert client.end(20) is None
        assert normal.frames(1, timeout_s=0.1) == []
        add_events(engine.server, 1, task_id=task_id)
        assert types(normal.frames(1)) == ["TASK_QUEUED"]
    assert "Traceback" not in web.log


def probe(web: WebServer) -> bool:
    """Threads of a pool stay; that their sockets are gone shows when new ones fit."""
    with contextlib.ExitStack() as stack:
        return all(stack.enter_context(SocketClient(web.port)).status == 101 for _ in range(50))


def test_a_client_that_reads_slowly_is_told_how_much_it_lost_and_keeps_every_end(
    large_web: WebServer, engine: Engine
) -> None:
    task_id = "2" * 32
    with opened(large_web.port, f"/ws/events?task_id={task_id}", receive_buffer=4096) as slow:
        for number in range(12):
            add_events(engine.server, 500, task_id=task_id)
            add_events(engine.server, 1, "TASK_SUCCEEDED", task_id)
            time.sleep(0.02 if number % 4 else 0.1)  # the reader goes on meanwhile; the client does not
        frames: list[dict[str, Any]] = []
        while types(frames).count("TASK_SUCCEEDED") < 12 and not slow.ended:
            frames += slow.frames(200, timeout_s=1)
        dropped = sum(frame["count"] for frame in frames if frame["type"] == "dropped")
        assert dropped > 0
        assert dropped + types(frames).count("TASK_QUEUED") == 6000
        assert types(frames).count("TASK_SUCCEEDED") == 12
        ids = [EventId.parse(frame["id"]) for frame in frames if "id" in frame]
        assert ids == sorted(ids)


def test_a_client_too_slow_even_for_the_ends_of_tasks_is_closed_with_1013(large_web: WebServer, engine: Engine) -> None:
    with opened(large_web.port, receive_buffer=4096) as slow:
        for _ in range(20):
            add_events(engine.server, 500, "TASK_SUCCEEDED")
        assert slow.end(20) == 1013


# --- who may ----------------------------------------------------------------------------------------------------------


def test_ws_05_a_socket_is_opened_by_nobody_who_might_not_read(server: Server, tmp_path: Path) -> None:
    """No key, a foreign page with a cookie or a foreign name: refused before the upgrade, and no key in any log."""
    path = tmp_path / "keys"
    key, wrong = create_key(path, "reader", "read"), "dtq_wrong_key_0123456789"
    settings = {"api_keys_file": path, "protect": "all", "log_level": "DEBUG", "allowed_hosts": "127.0.0.1"}
    with running_web(server.safe_url, web_threads=8, max_websockets=6, max_websockets_per_ip=3, **settings) as web:

        def refusal(where: str = "/ws/events", **headers: str) -> tuple[int, str]:
            return answer_to(web.port, where, **headers)

        own = f"http://127.0.0.1:{web.port}"
        assert refusal() == (401, "API_KEY_MISSING")
        assert refusal(X_API_Key=wrong) == (403, "API_KEY_WRONG")
        assert refusal(X_API_Key=key, Origin="http://evil.test") == (403, "CROSS_SITE")
        assert refusal(X_API_Key=key, Origin="null") == (403, "CROSS_SITE")
        assert refusal(X_API_Key=key, Sec_Fetch_Site="cross-site") == (403, "CROSS_SITE")
        assert refusal(X_API_Key=key, Host="evil.test") == (403, "FOREIGN_HOST")
        assert refusal(X_API_Key=key, Host="evil.test", Origin="http://evil.test") == (403, "FOREIGN_HOST")
        for name in ("api_key", "key", "X-API-Key", "token"):
            assert refusal(f"/ws/events?{name}={key}") == (400, "INVALID_REQUEST")
        with (
            SocketClient(web.port, X_API_Key=key, Origin=own) as first,
            SocketClient(web.port, X_API_Key=key) as second,
        ):
            third = SocketClient(web.port, "/ws/events?auth=message", Origin=own)
            assert refusal(X_API_Key=key) == (429, "TOO_MANY_WEBSOCKETS")
            engine = Engine(server)
            engine.submit()
            assert types(first.frames(1)) == types(second.frames(1)) == ["TASK_QUEUED"]
            assert third.frames(1, timeout_s=0.3) == []
            third.send(f'{{"api_key": "{key}"}}')
            assert third.frames(1, timeout_s=0.3) == []
            engine.submit()
            assert types(third.frames(1)) == ["TASK_QUEUED"]
            third.close()
        for message in (f'{{"api_key": "{wrong}"}}', f'"{key}"', "no json"):
            with opened(web.port, "/ws/events?auth=message") as client:
                client.send(message)
                assert client.frames(1) == []
                assert client.close_code == 1008
        assert web.call("GET", "/api/v1/events").status == 401
        with opened(web.port, X_API_Key=key) as client:
            path.write_text("")  # the key is gone, and with it what it has opened
            assert client.end() == 1008
        assert key not in web.log
        assert wrong not in web.log
        assert "Traceback" not in web.log


def test_ws_05_without_keys_a_server_on_loopback_goes_by_its_own_names_only(web: WebServer) -> None:
    assert answer_to(web.port, Host="evil.test", Origin="http://evil.test") == (403, "FOREIGN_HOST")
    assert answer_to(web.port, Origin="http://evil.test") == (403, "CROSS_SITE")
    assert answer_to(web.port, Host="localhost", Origin="http://localhost") == (101, "")


# --- outages, and the end ---------------------------------------------------------------------------------------------


def test_sockets_outlive_redis_and_a_wait_is_not_fooled_by_its_absence(
    server_factory: ServerFactory, wait_until: Wait
) -> None:
    process = server_factory("valkey", aof=True, options=("--appendfsync", "always"))
    server = Server.connect(process.url)
    engine = Engine(server)
    with running_web(process.url, web_threads=8, max_websockets=4) as web, SocketClient(web.port) as client:
        task_id = engine.submit()
        claim = engine.claim_one()
        assert types(client.frames(2)) == ["TASK_QUEUED", "TASK_STARTED"]
        answers: list[Any] = []
        waiter = threading.Thread(
            target=lambda: answers.append(web.call("GET", f"/api/v1/tasks/{task_id}?wait=20", timeout_s=25).json)
        )
        waiter.start()
        time.sleep(0.5)  # until the request waits, which nothing tells
        process.kill()
        with SocketClient(web.port, "/ws/events?since=0") as other:
            assert other.end() == 1013
        assert web.call("GET", "/api/v1/events").status == 503
        process.start()
        wait_until(lambda: web.call("GET", "/ready").status == 200, what="Redis again")
        engine = Engine(Server.connect(process.url))
        engine.commit(claim)
        assert types(client.frames(1)) == ["TASK_SUCCEEDED"]
        waiter.join(20)
        assert answers[0]["status"] == "succeeded"
        assert web.log.count("events cannot be read") == 1
        assert "Traceback" not in web.log
        engine.server.close()
    server.close()


def test_stopping_closes_every_socket_with_1012_without_waiting_for_the_grace(server: Server) -> None:
    with running_web(server.safe_url, web_threads=16, max_websockets=12) as web, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(SocketClient(web.port, "/ws/events?queue=calm")) for _ in range(8)]
        stuck = [stack.enter_context(SocketClient(web.port, receive_buffer=4096)) for _ in range(2)]
        for _ in range(20):
            add_events(server, 500)
        time.sleep(0.5)  # until the server waits for those two, which nothing tells
        began = time.monotonic()
        web.terminate()
        for client in clients:
            assert client.end() == 1012
            client.close()
        assert web.process.wait(20) == 0
        assert time.monotonic() - began < 20  # about two where nothing else runs; the grace is 25
        assert len(stuck) == 2
        assert "Traceback" not in web.log


def test_a_wait_ends_within_milliseconds_of_its_task_and_asks_redis_nothing_meanwhile(
    large_web: WebServer, engine: Engine
) -> None:
    """Twenty requests wait; what Redis is asked meanwhile is what the one reader asks."""
    web = large_web
    task_ids = engine.submit_many(20)
    ended_at: dict[str, float] = {}
    answers: dict[str, tuple[str, float]] = {}

    def wait(task_id: str) -> None:
        answer = web.call("GET", f"/api/v1/tasks/{task_id}?wait=20", timeout_s=25)
        answers[task_id] = answer.json["status"], time.monotonic()

    def commands() -> int:
        text = engine.server.call("INFO", "stats").decode()
        return int(text.split("total_commands_processed:")[1].split("\r")[0])

    threads = [threading.Thread(target=wait, args=(task_id,)) for task_id in task_ids]
    for thread in threads:
        thread.start()
    time.sleep(1)  # until all wait, which nothing tells
    before = commands()
    time.sleep(2)
    assert commands() - before < 60  # twenty that ask four times a second: 160
    for claim in engine.claim():
        ended_at[claim.task_id] = time.monotonic()
        engine.commit(claim)
        time.sleep(0.02)
    for thread in threads:
        thread.join(25)
    assert {status for status, _ in answers.values()} == {"succeeded"}
    lags = sorted(answers[task_id][1] - ended_at[task_id] for task_id in task_ids)
    looks = []
    for task_id in task_ids:
        began = time.monotonic()
        web.call("GET", f"/api/v1/tasks/{task_id}")
        looks.append(time.monotonic() - began)
    assert lags[10] < 0.1 + 10 * statistics.median(looks)


@pytest.mark.long
def test_ws_01_an_idle_socket_lives_on_by_its_pings(web: WebServer, engine: Engine) -> None:
    """Longer than any time limit of the web server: two minutes and more without an event."""
    with opened(web.port) as client:
        assert client.frames(1, timeout_s=130) == []
        assert not client.ended
        engine.submit()
        assert types(client.frames(1)) == ["TASK_QUEUED"]
