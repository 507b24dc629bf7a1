"""The log: one line a record, for people or as JSON, and nothing in a value can forge a line."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator

import pytest

from dtq.log import configure_logging, escape

Written = Callable[[], list[str]]


@pytest.fixture
def configured() -> Iterator[Callable[..., Written]]:
    """Call it like configure_logging; what it returns gives the lines written so far."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def configure(level: str = "INFO", json: bool = False) -> Written:
        stream = io.StringIO()
        configure_logging(level, json, stream)
        return lambda: stream.getvalue().split("\n")[:-1]

    yield configure
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_a_line_has_time_level_logger_message_and_extras(configured: Callable[..., Written]) -> None:
    written = configured()
    logging.getLogger("dtq.x").warning("met %d", 3, extra={"task_id": "ab12", "queue": "mail", "reason": "", "n": 1})
    (line,) = written()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING dtq\.x met 3 task_id=ab12 queue=mail n=1", line
    )


def test_values_with_spaces_or_quotes_are_quoted(configured: Callable[..., Written]) -> None:
    written = configured()
    logging.getLogger("dtq.x").info("m", extra={"a": "x y", "b": 'say "no"', "c": "k=v"})
    assert written()[0].endswith(' m a="x y" b="say \\"no\\"" c="k=v"')


def test_less_than_the_level_is_not_written(configured: Callable[..., Written]) -> None:
    written = configured("ERROR")
    logging.getLogger("dtq.x").warning("quiet")
    assert written() == []


@pytest.mark.parametrize("as_json", [False, True])
def test_no_value_can_forge_a_line_or_a_colour(configured: Callable[..., Written], as_json: bool) -> None:
    written = configured(json=as_json)
    evil = "a\n2026-01-01T00:00:00.000Z INFO dtq forged\r\x1b[31m\u2028\ud800\x00"
    logging.getLogger("dtq.x").info("%s", evil, extra={"value": evil, "na\nme": 1})
    assert len(written()) == 1
    assert written()[0].isprintable()
    assert written()[0].isascii()


def test_a_traceback_is_indented_so_that_it_is_no_record(configured: Callable[..., Written]) -> None:
    written = configured()
    try:
        raise ValueError("first\n2026-01-01T00:00:00.000Z INFO dtq forged")
    except ValueError:
        logging.getLogger("dtq.x").exception("bad", stack_info=True)
    first, *rest = written()
    assert first.endswith("ERROR dtq.x bad")
    assert "    Traceback (most recent call last):" in rest
    assert "    Stack (most recent call last):" in rest
    assert all(line.startswith("    ") for line in rest)


def test_json_lines_carry_the_same(configured: Callable[..., Written]) -> None:
    written = configured(json=True)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("dtq.x").exception("bad %s", "ä", extra={"task_id": "ab", "n": 1})
    (line,) = written()
    record = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert record.pop("exc_info").endswith("ValueError: no")
    assert record == {"level": "ERROR", "logger": "dtq.x", "message": "bad ä", "task_id": "ab", "n": 1}


def test_what_is_not_json_becomes_text(configured: Callable[..., Written]) -> None:
    written = configured(json=True)
    logging.getLogger("dtq.x").info("m", extra={"nan": float("nan"), "deep": [float("-inf")], "set": {1}, "fn": escape})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads(written()[0], parse_constant=refuse)
    assert (record["nan"], record["deep"]) == ("NaN", ["-Infinity"])


def test_configuring_again_replaces_and_never_doubles(configured: Callable[..., Written]) -> None:
    first, second = configured(), configured("DEBUG")
    logging.getLogger("dtq.x").debug("once")
    assert (len(first()), len(second())) == (0, 1)


def test_warnings_of_libraries_are_lines_too(configured: Callable[..., Written]) -> None:
    written = configured()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(
            False
        )  # who captured before, outside of this block, would make the next line do nothing
        logging.captureWarnings(True)
        warnings.warn("old\nway", stacklevel=1)
    assert len(written()) == 1
    assert "WARNING py.warnings" in written()[0]


def test_without_a_stream_the_log_goes_to_stderr(
    configured: Callable[..., Written], capsys: pytest.CaptureFixture[str]
) -> None:
    configured()
    configure_logging()
    logging.getLogger("dtq.x").info("here")
    out, err = capsys.readouterr()
    assert (out, err.endswith("INFO dtq.x here\n")) == ("", True)


def test_what_is_printable_stays_as_it_is() -> None:
    assert escape("grüße 任务") == "grüße 任务"
    assert escape("tab\there") == "tab\\there"
