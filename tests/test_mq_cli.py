"""`flask dtq mq`: what each command does, says and returns."""

from __future__ import annotations

import pytest

from dtq.audit import AuditFilter
from dtq.client import Client
from dtq.redisio import Server
from dtq.settings import load_settings
from tests.support.commands import Commands


@pytest.fixture
def commands(server: Server) -> Commands:
    return Commands(server.safe_url)


@pytest.fixture
def client(server: Server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


def test_put_stores_text_or_the_bytes_of_stdin_and_says_the_key(commands: Commands, client: Client) -> None:
    assert commands("mq", "put", "commands", "retry", "hello", "--key", "k").stdout == "k  stored\n"
    assert commands("mq", "put", "commands", "retry", "hello", "--key", "k").stdout == "k  known already\n"
    told = commands.json("mq", "put", "commands", "retry", input=b"\x00\xff")
    assert told["stored"] is True
    commands("mq", "put", "commands", "retry", "-", "--delay", "60", input=b"later")
    with client.queue("commands").subscribe(["retry"]) as subscription:
        messages = [subscription.receive(5) for _ in range(2)]
        assert [(message.key, message.data) for message in messages] == [("k", b"hello"), (told["key"], b"\x00\xff")]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("put", "Commands", "retry", "x"), 2),
        (("put", "commands", "re try", "x"), 2),
        (("put", "commands", "retry", "x", "--key", ""), 2),
        (("put", "commands", "retry", "x" * 1_048_577), 2),
        (("put", "commands", "retry", "x", "--max-size", "1"), 5),
        (("stats", "nothing"), 3),
        (("peek", "commands", "retry", "--limit", "0"), 2),
    ],
)
def test_what_cannot_be_ends_with_its_exit_code(commands: Commands, arguments: tuple[str, ...], code: int) -> None:
    commands("mq", "put", "commands", "retry", "first")
    refused = commands("mq", *arguments, code=code)
    assert refused.stdout == ""
    assert refused.stderr


def test_queues_and_topics_are_shown_as_tables_and_as_json(commands: Commands, client: Client) -> None:
    assert commands("mq", "list").stdout == ""
    queue = client.queue("commands", visibility_timeout_s=7)
    queue.put_many([("retry", b"")] * 2)
    queue.put("later", b"", delay_s=60)
    queue.pause("later")
    with queue.subscribe(["retry"]) as subscription:
        subscription.receive(5).acknowledge()
        assert "commands" in commands("mq", "ls").stdout
        shown = commands("mq", "stats", "commands").stdout
    assert "7 s" in shown
    assert "paused" in shown
    (listed,) = commands.json("mq", "list")["queues"]
    assert listed["depth"] == 2
    assert commands.json("mq", "stats", "commands")["topics"][1]["counts"]["acknowledged"] == 1


def test_messages_are_shown_without_being_taken(commands: Commands, client: Client) -> None:
    queue = client.queue("commands")
    queue.put("retry", b"hello\x1b[2J", key="k")
    queue.put("retry", b"x" * 1000, key="l", delay_s=60)
    shown = commands("mq", "peek", "commands", "retry").stdout
    assert "hello" in shown
    assert "\x1b" not in shown
    messages = commands.json("mq", "peek", "commands", "retry", "--limit", "2")["messages"]
    assert [(one["key"], one["state"], len(one["data"])) for one in messages] == [
        ("k", "waiting", 9),
        ("l", "delayed", 1000),
    ]
    assert commands("mq", "peek", "commands", "other").stdout == ""
    assert queue.stats().depth == 2


def test_purge_shows_three_and_asks_and_is_audited(commands: Commands, client: Client) -> None:
    queue = client.queue("commands")
    queue.put_many([("a", b"data %d" % number) for number in range(5)])
    queue.put("b", b"", delay_s=60)
    with queue.subscribe(["a"]) as subscription:
        held = subscription.receive(5)
        refused = commands("mq", "purge", "commands", code=2)
        assert "--yes" in refused.stderr
        dry = commands("mq", "purge", "commands", "a", "--dry-run").stdout
        assert dry.startswith("would remove ")
        assert dry.count("data") == 3
        assert commands.json("mq", "purge", "commands", "--dry-run")["dry_run"] is True
        assert queue.stats().depth == 6
        assert commands("mq", "purge", "commands", "b", "--yes").stdout == "1 message removed\n"
        assert held.acknowledge()
    told = commands.json("mq", "purge", "commands", "--yes", "--reason", "a test")
    assert (told["total"], told["topics"]["a"]) == (4, 4)
    assert commands("mq", "purge", "commands", "--yes").stdout == "0 messages removed\n"
    entries = client.queries.audit(AuditFilter(), 10, None).entries
    assert [(entry.action, entry.target, entry.count) for entry in entries] == [
        ("mq.purge", "commands/a", 4),
        ("mq.purge", "commands/b", 1),
    ]
    assert entries[0].actor.startswith("cli:")
    assert entries[0].reason == "a test"
