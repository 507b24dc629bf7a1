"""What pages cost: a number of commands that does not grow with what there is, and little time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dtq.serverinfo import server_info
from dtq.states import Status
from tests.support.dashboard import fragments, running_dashboard
from tests.support.masses import seed
from tests.support.servers import ServerProcess, find_program
from tests.support.web import Api

MOST_COMMANDS = 60
MOST_S = 0.150
ROUNDS = 5
LISTS = (
    *("/", "/queues", "/queues/queue-3", "/tasks", "/tasks?q=status:dead_lettered", "/tasks?q=type:type.3+tag:none"),
    *("/tasks?q=error:refused", "/failures", "/failures?q=queue:queue-1", "/dead", "/dead?q=class:HTTPError"),
    *(
        "/dead?q=error:nothing-like-it",
        "/tasks/cancel-all?q=error:nothing-like-it",
        "/tasks/cancel-all?q=queue:default+age>1s",
        "/workers",
        "/messages",
        "/bulk",
        "/events",
        "/audit",
        "/settings",
        "/tasks/new",
    ),
)


def _started(tasks: int, dead: int) -> Iterator[Api]:
    program = find_program("valkey")
    assert program is not None
    process = ServerProcess(program).start()
    try:
        with running_dashboard(process.url) as api:
            seed(api.client, tasks=tasks, dead=dead)
            for _ in range(20):
                api.register_worker()
                api.worker_id += "x"
            yield api
    finally:
        process.remove()


@pytest.fixture(scope="module")
def many() -> Iterator[Api]:
    yield from _started(3_000, 3_000)


@pytest.fixture(scope="module")
def masses() -> Iterator[Api]:
    yield from _started(200_000, 50_000)


def commands(api: Api, path: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many commands a page sends."""
    sent: list[int] = []
    server = api.client.server
    call, pipeline = type(server).call, type(server).pipeline

    def counting(*args: Any) -> Any:
        sent.append(1)
        return call(server, *args)

    def counting_many(asked: Any) -> Any:
        sent.append(len(asked))
        return pipeline(server, asked)

    with monkeypatch.context() as patch:
        patch.setattr(server, "call", counting)
        patch.setattr(server, "pipeline", counting_many)
        response = api.http.get(path, headers={"Accept": "text/html"})
    assert response.status_code == 200, path
    assert response.text.count("<tr") <= 130, path
    return sum(sent)


def pages(api: Api) -> list[str]:
    dead = api.client.queries.dead_letters
    from dtq.deadletters import DeadFilter

    return [*LISTS, f"/tasks/{dead.page(DeadFilter(), 1, None).letters[0].task_id}"]


def test_dash_01_no_page_sends_more_than_sixty_commands(many: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {path: commands(many, path, monkeypatch) for path in pages(many)}
    assert {path: number for path, number in first.items() if number > MOST_COMMANDS} == {}
    again = {path: commands(many, path, monkeypatch) for path in pages(many)}
    assert again["/"] <= 40, "minutes that are over are not read again"


def test_dash_01_a_refresh_of_what_is_open_costs_no_more(many: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = " ".join(task.task_id for task in many.client.tasks(limit=50).tasks)
    sent: list[int] = []
    server = many.client.server
    call, pipeline = type(server).call, type(server).pipeline
    monkeypatch.setattr(server, "call", lambda *args: sent.append(1) or call(server, *args))
    monkeypatch.setattr(server, "pipeline", lambda asked: sent.append(len(asked)) or pipeline(server, asked))
    for path in ("/", "/queues", "/tasks", "/failures", "/dead", "/workers", "/events"):
        sent.clear()
        fragments(many, path, rows)
        assert sum(sent) <= MOST_COMMANDS, path


@pytest.mark.long
@pytest.mark.timeout(600)
def test_dash_01_every_page_is_quick_with_two_hundred_thousand_tasks_and_fifty_thousand_dead(
    masses: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = masses.client.queries.queues()
    assert sum(queue.counts[Status.SUCCEEDED] for queue in counts) == 200_000
    slow, told = {}, []
    for path in pages(masses):
        assert commands(masses, path, monkeypatch) <= MOST_COMMANDS, path
        began, worked = time.perf_counter(), work_s(masses)
        for _ in range(ROUNDS):
            assert masses.http.get(path, headers={"Accept": "text/html"}).status_code == 200
        took_s, worked_s = (time.perf_counter() - began) / ROUNDS, (work_s(masses) - worked) / ROUNDS
        told.append(f"{path:45} {1000 * worked_s:6.1f} ms of work, {1000 * took_s:6.1f} ms on this machine now")
        if worked_s > MOST_S:
            slow[path] = round(worked_s, 3)
    print("\n".join(told))
    assert slow == {}


def work_s(api: Api) -> float:
    """Return the processor time that this process and Redis have used: what else runs here is no fault of a page."""
    told = server_info(api.client.server, "cpu")
    return time.process_time() + float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_dash_01_the_last_page_of_the_dead_letters_is_reached(masses: Api) -> None:
    from dtq.deadletters import DeadFilter

    letters, seen, cursor = masses.client.queries.dead_letters, 0, None
    while True:
        page = letters.page(DeadFilter(), 200, cursor)
        seen += len(page.letters)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == 50_000
