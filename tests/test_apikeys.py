"""The file of API keys: made, read again when it changes, and never holding a key."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dtq import apikeys
from dtq.apikeys import KeyRing, create_key, digest_of, read_keys, remove_key
from dtq.errors import ConfigurationError
from tests.support.commands import Commands

GOOD = f"ci submit sha256:{'0' * 64} 2030-01-01T00:00:00Z\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_key_is_returned_once_and_only_its_hash_is_kept_in_a_file_for_its_owner(path: Path) -> None:
    key = create_key(path, "ci", "submit")
    assert len(key) >= 47  # 256 bits and a mark by which scanners for leaked secrets know it
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [kept] = read_keys(path)
    assert (kept.name, kept.role, kept.digest) == ("ci", "submit", digest_of(key))
    assert os.listdir(path.parent) == ["keys"]


def test_whose_a_key_is_and_that_a_changed_file_counts_without_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apikeys, "LOOK_AGAIN_S", 0.0)
    first = create_key(path, "first", "admin")
    ring = KeyRing("sole", path)
    assert (ring.whose(first).name, ring.whose("sole").name, ring.whose("other")) == ("first", "default", None)
    second = create_key(path, "second", "read")
    assert ring.whose(second).role == "read"
    assert remove_key(path, "first")
    assert not remove_key(path, "first")
    assert ring.whose(first) is None
    assert ring.named("first") is None
    assert ring.named("second").digest == digest_of(second)


def test_a_file_that_turns_bad_leaves_the_keys_as_they_were_and_is_told_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apikeys, "LOOK_AGAIN_S", 0.0)
    key = create_key(path, "ci", "read")
    ring = KeyRing("", path)
    path.write_text("nonsense\n")
    assert [ring.whose(key).name for _ in range(3)] == ["ci"] * 3
    path.unlink()
    assert ring.whose(key) is not None
    told = [record.getMessage() for record in caplog.records if record.name == "dtq.apikeys"]
    assert len(told) == 2
    assert "line 1" in told[0]


def test_the_file_is_looked_at_no_more_than_once_a_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = create_key(path, "ci", "read")
    ring, looks = KeyRing("", path), []
    real = apikeys._signature
    monkeypatch.setattr(apikeys, "_signature", lambda path: looks.append(1) or real(path))
    for _ in range(1_000):
        assert ring.whose(key) is not None
    assert len(looks) <= 1


def test_an_empty_file_asks_for_a_key_that_nobody_has(path: Path) -> None:
    path.write_text("# nobody yet\n\n")
    assert KeyRing("", path).asks
    assert not KeyRing("").asks


@pytest.mark.parametrize(
    "text",
    ["ci\n", "ci submit\n", "ci boss sha256:" + "0" * 64, "ci submit sha256:12", "ci submit md5:" + "0" * 64,
     "default admin sha256:" + "0" * 64, "a b c d e", GOOD + GOOD, "\x00", "x" * 300_000,
     "é submit sha256:" + "0" * 64],
)  # fmt: skip
def test_a_line_that_is_none_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="keys"):
        KeyRing("", path)


def test_a_file_that_is_not_there_or_no_text_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        KeyRing("", path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="not text"):
        KeyRing("", path)


def test_changes_at_the_same_time_lose_no_key_and_keep_who_may_read_the_file(path: Path) -> None:
    create_key(path, "k", "read")
    path.chmod(0o640)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: create_key(path, f"k{n}", "read"), range(16)))
    assert len(read_keys(path)) == 17
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_commands_make_list_and_remove_keys(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands("memory://keys")
    made = commands("key", "create", "ci", "--role", "submit", "--file", str(path))
    key = made.stdout.strip()
    assert read_keys(path)[0].digest == digest_of(key)
    assert key not in made.stderr
    commands.environment["DTQ_API_KEYS_FILE"] = str(path)
    second = commands.json("key", "create", "boss", "--role", "admin")
    assert {key.name: key.digest for key in read_keys(path)}["boss"] == digest_of(second["key"])
    listed = commands.json("key", "list")["keys"]
    assert [(one["name"], one["role"]) for one in listed] == [("ci", "submit"), ("boss", "admin")]
    assert "sha256" not in commands("key", "list").stdout
    commands("key", "create", "ci", "--role", "read", code=4)
    commands("key", "create", "a b", "--role", "read", code=2)
    commands("key", "create", "default", "--role", "read", code=2)
    commands("key", "create", "x", "--role", "boss", code=2)
    assert commands.json("key", "remove", "ci") == {"name": "ci", "removed": True}
    commands("key", "remove", "ci", code=3)
    del commands.environment["DTQ_API_KEYS_FILE"]
    commands("key", "list", code=2)
    commands("key", "list", "--file", str(path) + "x", code=78)
    commands("key", "create", "x", "--role", "read", "--file", str(path) + "/x", code=78)


def test_a_wrong_key_costs_as_much_as_a_right_one(path: Path) -> None:
    """Every key is compared, whichever fits: the number of comparisons does not tell where, or whether, one did."""
    keys = [create_key(path, f"k{n}", "read") for n in range(5)]
    ring, compared = KeyRing("", path), []
    real = apikeys.hmac.compare_digest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apikeys.hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
        for offered in (keys[0], keys[4], "wrong", ""):
            compared.clear()
            ring.whose(offered)
            assert len(compared) == 5
