"""dtq.http_client against a real web server, through a proxy that loses answers, and against scripted answers."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dtq.errors
from dtq.client import Client
from dtq.errors import (
    ConfigurationError,
    DtqError,
    HttpError,
    InvalidRequest,
    InvalidTask,
    KeyMissing,
    QueueFull,
    RedisUnavailable,
    RoleTooSmall,
    ServerUnreachable,
    TaskFinished,
    TaskNotFound,
    WrongState,
)
from dtq.http_client import HttpClient
from dtq.http_client.answers import error_of, task_of
from dtq.model import Outcome, Task
from dtq.redisio import Server
from dtq.states import Disposition
from tests.support.engine import Engine
from tests.support.proxy import FlakyProxy, http_length
from tests.support.servers import ServerProcess
from tests.support.web import running_api
from tests.support.web_server import WebServer, running_web

POST = b"POST /api/v1/tasks "


@pytest.fixture(scope="module")
def web(valkey: ServerProcess) -> Iterator[WebServer]:
    with running_web(valkey.url, web_processes=2, web_threads=8) as web:
        yield web


@pytest.fixture
def engine(server: Server) -> Engine:
    """The worker, as the tests are it; on an empty Redis."""
    return Engine(server)


@pytest.fixture
def proxy(web: WebServer) -> Iterator[FlakyProxy]:
    proxy = FlakyProxy(f"redis://127.0.0.1:{web.port}", tcp=True, length=http_length)
    yield proxy
    proxy.close()


@pytest.fixture
def client(proxy: FlakyProxy, engine: Engine) -> Iterator[HttpClient]:
    """Talks to the web server through the proxy."""
    with HttpClient(proxy.url.replace("redis://", "http://"), timeout_s=5) as client:
        yield client


def end(engine: Engine, kind: Any = "succeed", **more: Any) -> str:
    """Run the next task of the queue `default` to its end."""
    [claim] = engine.claim("w1", 1)
    engine.broker.commit("w1", [Outcome(claim=claim, kind=kind, **more)])
    return claim.task_id


# --- submitting -------------------------------------------------------------------------------------------------------


def test_a_task_comes_back_as_the_python_client_would_give_it(client: HttpClient, engine: Engine) -> None:
    run_at = datetime.now(UTC) + timedelta(hours=1)
    task = client.submit("echo", {"n": 2**70, "e": []}, priority=9, tags=["a"], run_at=run_at, metadata={"who": "ü"})
    assert isinstance(task, Task)
    assert (task.status, task.payload, task.priority, task.tags) == ("pending", {"n": 2**70, "e": []}, 9, ["a"])
    assert task.available_at == pytest.approx(run_at.timestamp(), abs=0.002)
    assert task.idempotency_key is not None
    with Client(settings=engine.settings.model_copy(update={"redis_url": engine.server.safe_url})) as direct:
        assert direct.get(task.task_id).as_json() == {**client.get(task.task_id).as_json(), "warnings": []}


def test_idem_02_a_submission_whose_answer_was_lost_is_sent_again_and_makes_one_task(
    client: HttpClient, proxy: FlakyProxy, engine: Engine
) -> None:
    for key in ({}, {"idempotency_key": 'a "quoted" \\ key'}, {"idempotency_key": "schlüssel"}):
        proxy.drop_next_reply(POST, times=2)
        task = client.submit("echo", {"n": 1}, **key)
        assert task.duplicate
        assert key.get("idempotency_key", task.idempotency_key) == task.idempotency_key
        assert [one.task_id for one in client.tasks().tasks] == [task.task_id]
        assert end(engine) == task.task_id
        engine.server.call("FLUSHALL")
    assert proxy.dropped == 6


def test_idem_02_fifty_clients_with_one_key_get_one_task_though_answers_are_lost(
    client: HttpClient, proxy: FlakyProxy
) -> None:
    proxy.drop_next_reply(POST, times=10)
    with ThreadPoolExecutor(25) as pool:
        tasks = list(pool.map(lambda _: client.submit("echo", idempotency_key="race"), range(50)))
    assert proxy.dropped == 10
    assert len({task.task_id for task in tasks}) == 1
    assert len(client.tasks().tasks) == 1


def test_many_are_submitted_in_order_once_each_and_refused_by_themselves(client: HttpClient, proxy: FlakyProxy) -> None:
    asked: list[dict[str, Any]] = [{"task_type": "echo", "payload": {"n": n}} for n in range(1_200)]
    asked[7]["priority"] = 10
    asked[8]["payload"] = {"n": {1, 2}}
    proxy.drop_next_reply(b"POST /api/v1/tasks/batch")
    answers = client.submit_many(asked)
    assert proxy.dropped == 1
    assert [n for n, one in enumerate(answers) if isinstance(one, InvalidTask)] == [7, 8]
    good = [one for one in answers if isinstance(one, Task)]
    assert [one.payload["n"] for one in good] == [n for n in range(1_200) if n not in (7, 8)]
    assert len({one.task_id for one in client.iter_tasks()}) == 1_198
    assert client.submit_many([]) == []


def test_what_cannot_be_sent_is_refused_here(client: HttpClient, proxy: FlakyProxy) -> None:
    before = proxy.connections
    for payload in ({"n": float("nan")}, {"n": object()}, {"n": datetime.now(UTC)}):
        with pytest.raises(InvalidTask):
            client.submit("echo", payload)
    for task_id in ("x", "../queues", "A" * 32, ""):
        with pytest.raises(TaskNotFound):
            client.get(task_id)
    with pytest.raises(DtqError, match="no such queue"):
        client.pause("../x")
    assert proxy.connections == before


def test_a_full_queue_is_tried_again_when_its_time_has_come(server: Server, engine: Engine) -> None:
    with running_web(server.safe_url, max_queue_depth=1) as web, HttpClient(f"http://127.0.0.1:{web.port}") as client:
        for _ in range(20):  # so that the server knows how fast the queue drains
            client.submit("echo")
            end(engine)
        first = client.submit("echo")
        with HttpClient(f"http://127.0.0.1:{web.port}", retry_for_s=0) as impatient, pytest.raises(QueueFull) as caught:
            impatient.submit("echo")
        assert 1 <= caught.value.context["retry_after"] < 10
        timer = threading.Timer(0.3, end, [engine])
        timer.start()
        started = time.monotonic()
        second = client.submit("echo")
        assert second.task_id != first.task_id
        assert time.monotonic() - started > 0.9
        timer.join()


def test_while_redis_is_away_a_submission_waits_for_it(server: Server, flaky_proxy: Any) -> None:
    redis = flaky_proxy(server.safe_url, tcp=True)
    with running_web(redis.url) as web, HttpClient(f"http://127.0.0.1:{web.port}") as client:
        redis.refuse()
        redis.cut()
        with HttpClient(f"http://127.0.0.1:{web.port}", retry_for_s=0) as impatient, pytest.raises(RedisUnavailable):
            impatient.get("0" * 32)
        timer = threading.Timer(0.5, redis.accept)
        timer.start()
        assert client.submit("echo").status == "queued"
        timer.join()


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_task_is_waited_for_over_lost_answers_and_its_result_is_there(
    client: HttpClient, proxy: FlakyProxy, engine: Engine, wait_until: Callable[..., Any]
) -> None:
    task = client.submit("echo")
    proxy.drop_next_reply(b"GET /api/v1/tasks/")
    timer = threading.Timer(0.5, end, [engine], {"result": b'{"n":1}'})
    timer.start()
    ended = client.wait(task.task_id, 20)
    assert (ended.status, ended.result, ended.result_state) == ("succeeded", {"n": 1}, "stored")
    assert proxy.dropped == 1
    timer.join()


def test_waiting_ends_with_the_time_that_was_asked_for(client: HttpClient) -> None:
    task = client.submit("echo")
    started = time.monotonic()
    assert client.wait(task.task_id, 0.3).status == "queued"
    assert 0.3 <= time.monotonic() - started < 5
    with pytest.raises(TaskNotFound):
        client.wait("0" * 32, 1)


def test_lists_are_filtered_and_gone_through(client: HttpClient) -> None:
    ids = [client.submit("echo", queue="mail", tags=[f"n{n}"]).task_id for n in range(5)]
    client.submit("echo")
    page = client.tasks(2, queue="mail")
    assert [task.task_id for task in page.tasks] == ids[:-3:-1]
    assert [task.task_id for task in client.iter_tasks(queue="mail", limit=2)] == ids[::-1]
    assert [task.task_id for task in client.iter_tasks(tag="n1", created_after=datetime(2020, 1, 1, tzinfo=UTC))] == [
        ids[1]
    ]
    with pytest.raises(InvalidRequest) as caught:
        client.tasks(nonsense=1)
    assert caught.value.context["errors"][0]["pointer"] == "/nonsense"


def test_every_task_is_read_as_it_was_told(engine: Engine) -> None:
    with running_api(engine.server.safe_url) as api:
        ids = [api.post(delay_seconds=60)["task_id"], api.post(metadata={"ttl_seconds": 5})["task_id"]]
        for kind, more in (
            ("retry", {"delay_ms": 1000, "disposition": Disposition.FAILED}),
            ("dead", {"reason": "permanent", "disposition": Disposition.FAILED}),
            ("succeed", {"result": b"null"}),
        ):
            api.post()
            ids.append(end(engine, kind, **more))
        for task_id in ids:
            answer = api.get(task_id)
            assert task_of(answer).as_json() == answer


def test_events_are_gone_through_as_they_happen(client: HttpClient, proxy: FlakyProxy, engine: Engine) -> None:
    old = client.submit("echo").task_id
    events = client.events(poll_s=0.05, for_s=20)
    timer = threading.Timer(0.3, end, [engine])
    timer.start()
    proxy.drop_next_reply(b"GET /api/v1/events")
    seen = [next(events) for _ in range(2)]
    assert [(event.type, event.task_id) for event in seen] == [("TASK_STARTED", old), ("TASK_SUCCEEDED", old)]
    timer.join()
    since = list(client.events("0", for_s=0))
    assert [event.type for event in since] == ["TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]
    assert since[0].time == pytest.approx(time.time(), abs=60)
    assert list(client.events("0", types=["TASK_SUCCEEDED"], queue="default", task_id=old, for_s=0)) == since[2:]
    assert list(client.events(since[1].id, for_s=0)) == since[2:]


def test_an_iterator_of_events_ends_with_its_client(web: WebServer, engine: Engine) -> None:
    client = HttpClient(f"http://127.0.0.1:{web.port}")
    timer = threading.Timer(0.3, client.close)
    timer.start()
    assert list(client.events(poll_s=30)) == []
    timer.join()


# --- changing ---------------------------------------------------------------------------------------------------------


def test_a_cancel_whose_answer_was_lost_has_been_done_and_another_ones_is_an_error(
    client: HttpClient, proxy: FlakyProxy
) -> None:
    task = client.submit("echo")
    proxy.drop_next_reply(b"/cancel ")
    cancelled = client.cancel(task.task_id, "not needed")
    assert (cancelled.status, cancelled.reason) == ("cancelled", "not needed")
    with pytest.raises(TaskFinished) as caught:
        client.cancel(task.task_id)
    assert caught.value.context["status"] == "cancelled"


def test_a_requeue_is_not_sent_twice(client: HttpClient, proxy: FlakyProxy, engine: Engine) -> None:
    task = client.submit("echo")
    with pytest.raises(WrongState):
        client.requeue(task.task_id)
    end(engine, "dead", reason="permanent", disposition=Disposition.FAILED)
    proxy.drop_next_reply(b"/requeue ")
    with pytest.raises(ServerUnreachable):
        client.requeue(task.task_id, priority=9)
    assert client.get(task.task_id).requeued == 1
    assert sum(b"/requeue " in command for command in proxy.commands) == 2


def test_queues_are_paused_and_resumed_and_workers_listed(client: HttpClient) -> None:
    client.submit("echo")
    client.pause("default", "maintenance")
    [queue] = client.queues()
    assert (queue["queue"], queue["pause"]["reason"]) == ("default", "maintenance")
    client.resume("default")
    assert client.queues()[0]["paused"] is False
    assert client.workers() == []


# --- errors -----------------------------------------------------------------------------------------------------------


def test_every_code_is_raised_as_the_error_that_it_was() -> None:
    kinds = [kind for kind in vars(dtq.errors).values() if isinstance(kind, type) and issubclass(kind, DtqError)]
    for kind in kinds:
        document = {"code": kind.code, "message": "m", "status": 400, "task_status": "s", "task_id": "t", "limit": 5}
        error = error_of(kind.http_status, document)
        if kind is not DtqError:
            assert type(error) is kind
            assert (error.message, error.context) == ("m", {"status": "s", "task_id": "t", "limit": 5})
    unknown = error_of(418, {"code": "TEAPOT", "message": "short", "status": 418})
    assert isinstance(unknown, HttpError)
    assert (unknown.context["code"], unknown.context["status"]) == ("TEAPOT", 418)
    assert "502 Bad Gateway" in str(error_of(502, None))
    assert isinstance(error_of(799, "<html>"), HttpError)


def test_keys_are_sent_and_their_errors_raised(server: Server, tmp_path: Any) -> None:
    from dtq.apikeys import create_key

    key = create_key(tmp_path / "keys", "ci", "submit")
    with running_web(server.safe_url, api_keys_file=tmp_path / "keys", protect="all") as web:
        url = f"http://127.0.0.1:{web.port}"
        with HttpClient(url, api_key=key) as client:
            task = client.submit("echo")
            assert client.get(task.task_id).status == "queued"
            with pytest.raises(RoleTooSmall) as caught:
                client.cancel(task.task_id)
            assert (caught.value.context["role"], caught.value.context["needed"]) == ("submit", "admin")
        with HttpClient(url) as client, pytest.raises(KeyMissing):
            client.get(task.task_id)
        assert key not in web.log


class Scripted:
    """A session of requests that answers what it was told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []

    def request(self, method: str, url: str, **options: Any) -> Any:
        self.sent.append((method, url, options))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Answer:
    def __init__(self, status_code: int, body: object, **headers: str) -> None:
        self.status_code = status_code
        self.content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def scripted(*answers: Any, **options: Any) -> tuple[HttpClient, Scripted]:
    session = Scripted(*answers)
    return HttpClient("http://h", session=session, **options), session  # type: ignore[arg-type]


AWAY = {"code": "REDIS_UNAVAILABLE", "message": "away"}


def test_retry_after_is_waited_for_and_no_longer_than_one_is_willing_to() -> None:
    client, session = scripted(Answer(503, AWAY, Retry_After="1"), Answer(200, {"queues": []}))
    started = time.monotonic()
    assert client.queues() == []
    assert 1 <= time.monotonic() - started < 5
    client, session = scripted(Answer(503, AWAY, Retry_After="40"), retry_for_s=30)
    with pytest.raises(RedisUnavailable):
        client.queues()
    assert len(session.sent) == 1


def test_a_gateway_that_is_away_is_tried_again_and_what_is_final_is_not() -> None:
    client, session = scripted(Answer(502, b"<html>"), Answer(200, {"queues": []}))
    assert client.queues() == []
    for answer, kind in (
        (Answer(500, {"code": "INTERNAL_ERROR", "message": "m"}), HttpError),
        (Answer(404, b"<html>"), HttpError),
        (Answer(301, b"", Location="http://elsewhere"), HttpError),
        (Answer(200, b"<html>"), HttpError),
        (Answer(403, {"code": "API_KEY_WRONG", "message": "m"}), DtqError),
    ):
        client, session = scripted(answer)
        with pytest.raises(kind):
            client.queues()
        assert len(session.sent) == 1
        assert session.sent[0][2]["allow_redirects"] is False


def test_a_certificate_that_is_wrong_is_not_tried_again() -> None:
    import requests

    client, session = scripted(requests.exceptions.SSLError("bad"))
    with pytest.raises(ServerUnreachable, match="not to be trusted"):
        client.queues()
    assert len(session.sent) == 1


def test_a_server_that_is_not_there_is_told_in_the_end() -> None:
    from tests.support.servers import free_port

    with HttpClient(f"http://user:pw@127.0.0.1:{free_port()}", retry_for_s=0.3, timeout_s=1) as client:
        with pytest.raises(ServerUnreachable) as caught:
            client.submit("echo")
        assert "pw" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h", "http://", "http://h/?x=1", "redis://h"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        HttpClient(url)


def test_without_requests_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(ConfigurationError, match=r"dtq\[http\]"):
        HttpClient("http://h")
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match="API key"):
        HttpClient("http://h", api_key="a\nb")


def test_a_server_that_answers_something_else_is_told() -> None:
    client, _ = scripted(Answer(200, {"task_id": "x"}))
    with pytest.raises(HttpError, match="does not answer as this dtq expects"):
        client.get("0" * 32)
