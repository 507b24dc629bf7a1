"""The web server itself: clients that are silent, slow or clumsy hold nobody up, and it stops in order."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dtq.redisio import Server
from tests.support import PROJECT
from tests.support.servers import ServerProcess
from tests.support.web_server import WebServer, running_web

POST = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def shared_web(valkey: ServerProcess) -> Iterator[WebServer]:
    with running_web(valkey.url) as server:
        yield server


@pytest.fixture
def web(shared_web: WebServer, server: Server) -> WebServer:
    """One process with four threads, on an empty Redis."""
    return shared_web


def read_response(client: socket.socket) -> tuple[int, bytes]:
    """Read one response with a length, or up to the end, and return its status and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65_536)
        assert piece, f"closed after {data!r}"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(65_536)
    return int(head.split()[1]), body


def test_a_task_is_submitted_and_looked_at_over_real_connections(web: WebServer) -> None:
    answer = web.submit(b'{"task_type": "echo", "payload": {"n": 9007199254740993}}')
    assert answer.status == 202
    shown = web.call("GET", answer.headers["Location"])
    assert (shown.status, shown.json["payload"]) == (200, {"n": 9007199254740993})
    assert shown.headers["Content-Type"] == "application/json"
    head = web.call("HEAD", answer.headers["Location"])
    assert (head.status, head.body) == (200, b"")


def test_eight_silent_and_five_lingering_clients_delay_nobody(web: WebServer) -> None:
    """With four threads, stock gthread stands still for seconds for either kind."""
    with contextlib.ExitStack() as clients:
        for _ in range(8):
            clients.enter_context(web.connect())
        for _ in range(5):
            lingering = clients.enter_context(web.connect())
            lingering.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        slowest = 0.0
        for _ in range(20):
            started = time.monotonic()
            assert web.submit().status == 202
            slowest = max(slowest, time.monotonic() - started)
        assert slowest < 1.5


def test_a_client_that_lingers_gets_its_whole_answer_and_is_closed(web: WebServer) -> None:
    with web.connect() as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.2)
        client.sendall(b"what nobody wants to know")
        started = time.monotonic()
        assert read_response(client) == (200, b'{"status":"ok"}\n')
        assert client.recv(100) == b""
        assert time.monotonic() - started < 1


def test_a_connection_that_was_silent_for_a_while_is_served_all_the_same(web: WebServer) -> None:
    with web.connect() as client:
        time.sleep(1.2)
        for _ in range(3):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_response(client)[0] == 200


def test_requests_that_follow_each_other_without_waiting_are_all_answered_in_order(web: WebServer) -> None:
    def request(n: int) -> bytes:
        body = json.dumps({"task_type": "echo", "payload": {"n": n}}).encode()
        return POST + b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body

    with web.connect() as client:
        client.sendall(b"".join(request(n) for n in range(5)))
        data = b""
        while data.count(b"HTTP/1.1 202") < 5 or not data.endswith(b"}\n"):
            piece = client.recv(65_536)
            assert piece
            data += piece
    found = [json.loads(part.partition(b"\r\n\r\n")[2]) for part in data.split(b"HTTP/1.1 ")[1:]]
    assert [task["payload"]["n"] for task in found] == list(range(5))


@pytest.mark.long
def test_a_connection_that_never_sends_anything_is_closed(web: WebServer) -> None:
    with web.connect() as client:
        started = time.monotonic()
        assert client.recv(1) == b""
        assert 8 < time.monotonic() - started < 14


def test_more_clients_than_there_is_room_for_wait_until_somebody_goes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--worker-connections 6")
    with running_web(server.safe_url) as web, contextlib.ExitStack() as clients:
        held = [clients.enter_context(web.connect()) for _ in range(6)]
        late = clients.enter_context(web.connect())
        late.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert select.select([late], [], [], 0.5)[0] == []
        held[0].close()
        assert read_response(late)[0] == 200


def test_requests_that_stop_halfway_cost_no_thread_and_may_go_on(web: WebServer) -> None:
    """More than there are threads, each cut off somewhere else."""
    request = POST + b"Content-Length: 21\r\n\r\n" + b'{"task_type": "echo"}'
    with contextlib.ExitStack() as clients:
        halves = [(clients.enter_context(web.connect()), at) for at in (1, 30, 100, *range(-24, 0, 3))]
        for client, at in halves:
            client.sendall(request[:at])
        started = time.monotonic()
        assert web.submit().status == 202
        assert time.monotonic() - started < 5, "they would be given up after ten seconds"
        for client, at in halves:
            client.sendall(request[at:] + request[:50])
            assert read_response(client)[0] == 202
        assert web.submit().status == 202
        for client, _ in halves:  # what came with the end of the last one counts
            client.sendall(request[50:])
            assert read_response(client)[0] == 202
    assert "Traceback" not in web.log


METHODS = [b"GET", b"TRACE", b"CONNECT", b"FOO", b"post", b"", b"P\x00ST", b"PRI"]
PATHS = [b"/health", b"*", b"x:80", b"http://h/health", b"//x/..", b"/%00", b"/\xff"]
FRAMINGS = [
    b"Content-Length: 99", b"Content-Length: -1", b"Content-Length: 1, 1", b"Content-Length: " + b"9" * 400,
    b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, chunked", b"Expect: 100-continue", b"Expect: x",
]  # fmt: skip


def spoilt_request(random_: random.Random) -> bytes:
    """A good request over the wire with something broken in it, or cut off."""

    def some(good: bytes, others: list[bytes]) -> bytes:
        return good if random_.random() < 0.5 else random_.choice(others)

    body = b'{"task_type": "echo"}'
    method, path = some(b"POST", METHODS), some(b"/api/v1/tasks", PATHS)
    framing = some(b"Content-Length: 21", FRAMINGS)
    rest = some(body, [b"15\r\n" + body, b"zz\r\n"])
    head = b"Host: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n" + framing
    sent = bytearray(method + b" " + path + b" HTTP/1.1\r\n" + head + b"\r\n\r\n" + rest)
    for _ in range(random_.randrange(3)):
        at = random_.randrange(len(sent) + 1)
        sent[at : at + random_.randrange(3)] = random_.choice(
            [b"\x00", b"\xff", b"\r\n", b"\n", b":", b" ", b"\t", b"x" * 99]
        )
    if random_.random() < 0.3:
        del sent[random_.randrange(len(sent)) :]
    return bytes(sent)


def test_nothing_that_comes_over_the_wire_is_an_error_of_the_server(web: WebServer) -> None:
    random_ = random.Random(20300204)
    statuses = set()
    for _ in range(600):
        sent = spoilt_request(random_)
        with web.connect() as client:
            with contextlib.suppress(ConnectionError):  # it may be refused, and closed, before all is sent
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while piece := client.recv(65_536):
                    answer += piece
        if answer:
            status = int(answer.split(b" ", 2)[1])
            assert status < 500 or status == 501, (sent, answer)
            statuses.add(status)
    assert {200, 202, 400, 405} <= statuses
    assert "Traceback" not in web.log
    assert web.submit().status == 202


def test_forty_megabytes_in_chunks_without_a_length_are_refused(web: WebServer) -> None:
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    answer = b""
    with web.connect() as client, contextlib.suppress(ConnectionError):
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(640):
            if select.select([client], [], [], 0)[0]:
                break
            client.sendall(chunk)
        answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 413 "), answer


def test_pay_03_a_body_without_an_end_is_refused_after_the_limit(web: WebServer) -> None:
    """A chunked body of a gigabyte: answered after little more than the limit, without eating memory."""

    def resident_kib() -> int:
        [pid] = web.worker_pids()
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def send_without_end() -> int:
        """Returns how many bytes went out before the answer came."""
        sent = 0
        with web.connect() as client:
            client.sendall(
                POST + b"Transfer-Encoding: chunked\r\n\r\n3b9aca00\r\n"  # one chunk of a gigabyte
            )
            piece = b" " * 65_536
            client.setblocking(False)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while sent < 1_000_000_000 and not answer:
                    readable, writable, _ = select.select([client], [client], [], 10)
                    if readable:
                        answer = client.recv(65_536)
                    elif writable:
                        sent += client.send(piece)
            assert answer.startswith(b"HTTP/1.1 413 "), answer
        return sent

    send_without_end()  # what the first one imports and allocates once is not what is measured
    before = resident_kib()
    assert send_without_end() < 20_000_000
    assert resident_kib() - before < 5_000


def test_a_large_body_that_is_sent_to_its_end_gets_its_413(web: WebServer) -> None:
    body = b'{"task_type": "echo", "payload": {"t": "' + b"x" * 5_000_000 + b'"}}'
    answer = web.submit(body)
    assert (answer.status, answer.json["code"]) == (413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: x\r\n\r\n", 400),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % n for n in range(200)) + b"\r\n", 431),
        (b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
    ids=["no-http", "version", "header", "long-line", "many-headers", "length", "chunk", "tls"],
)  # fmt: skip
def test_what_is_not_http_is_refused_with_a_problem_document(web: WebServer, sent: bytes, status: int) -> None:
    with web.connect() as client:
        client.sendall(sent)
        found, body = read_response(client)
    document = json.loads(body)
    assert (found, document["status"]) == (status, status)
    assert document["request_id"]
    assert "Traceback" not in web.log


def test_one_request_has_one_answer_however_its_body_ends(web: WebServer) -> None:
    with web.connect() as client:
        client.sendall(b"POST /nope HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n")
        answers = b"".join(iter(lambda: client.recv(65_536), b""))
    assert answers.count(b"HTTP/1.1 ") == 1, answers
    assert answers.startswith(b"HTTP/1.1 404 ")


def test_a_client_that_wants_its_connection_closed_among_other_things_gets_that(web: WebServer) -> None:
    with web.connect() as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Foo, Close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    assert b"Connection: close" in answer


def test_connections_that_are_cut_off_leave_nothing_behind(web: WebServer, wait_until: Callable[..., Any]) -> None:
    [pid] = web.worker_pids()

    def open_files() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    web.submit()
    before = open_files()
    for n in range(200):
        client = web.connect()
        if n % 2:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
        client.close()
    wait_until(lambda: open_files() <= before + 2, what="the connections to be closed", timeout_s=15)
    assert web.submit().status == 202


def test_two_processes_share_a_port_and_forty_clients_are_all_served(server: Server) -> None:
    with running_web(server.safe_url, web_processes=2) as web:
        assert len(web.worker_pids()) == 2
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: web.submit(), range(40)))
        assert {answer.status for answer in answers} == {202}
        assert len({answer.json["task_id"] for answer in answers}) == 40


def test_a_second_server_on_a_port_is_refused_in_a_line(web: WebServer) -> None:
    second = web.start_process()
    assert second.wait(20) == 1
    assert "cannot listen on 127.0.0.1" in web.log
    assert "Traceback" not in web.log
    assert web.submit().status == 202


def test_a_wrong_setting_is_told_in_a_line(server: Server) -> None:
    web = WebServer(server.safe_url, web_threads="many")
    try:
        assert web.process.wait(20) == 1
        assert "DTQ_WEB_THREADS=many" in web.log
        assert "Traceback" not in web.log
    finally:
        web.close()


@pytest.mark.parametrize(
    ("host", "key", "warned"), [("0.0.0.0", "", True), ("127.0.0.1", "", False), ("0.0.0.0", "s3cret", False)]
)
def test_a_server_that_is_open_to_others_says_so_when_it_starts(host: str, key: str, warned: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"from dtq.web import gunicorn_conf; gunicorn_conf._warn_if_open([{host!r}])"],
        env={**os.environ, "DTQ_API_KEY": key, "DTQ_REDIS_URL": "memory://", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ("open to everybody who reaches 0.0.0.0" in ended.stderr) == warned


def test_a_file_of_keys_that_cannot_be_used_is_told_in_a_line(server: Server) -> None:
    web = WebServer(server.safe_url, api_keys_file="/does/not/exist")
    try:
        assert web.process.wait(20) == 1
        assert "/does/not/exist" in web.log
        assert "Traceback" not in web.log
    finally:
        web.close()


def test_stopping_answers_those_who_wait_and_does_not_wait_for_the_silent(
    server: Server, wait_until: Callable[..., Any]
) -> None:
    with running_web(server.safe_url) as web:
        path = web.submit().headers["Location"] + "?wait=30"
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(web.call("GET", path, timeout_s=35).status))
        silent = web.connect()
        with web.connect() as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            read_response(idle)
            waiter.start()
            time.sleep(0.5)  # until the request waits in the server, which does not tell
            started = time.monotonic()
            web.terminate()
            assert web.process.wait(20) == 0
        waiter.join(5)
        silent.close()
        assert answers == [200]
        assert time.monotonic() - started < 15  # a graceful end may take 25


def test_the_server_of_a_directory_is_started_by_the_first_request_and_ends_with_the_last_process(
    wait_until: Callable[..., Any],
) -> None:
    with running_web("") as web:
        assert web.call("GET", "/ready", timeout_s=20).json["redis"]["server"] == "embedded"
        assert web.submit().status == 202
        assert "serving http://" in web.log
        web.terminate()
        assert web.process.wait(20) == 0
        wait_until(lambda: not (web.directory / ".dtq" / "redis.sock").exists(), what="the server's end")
