"""What commands print for people: tables that fit, times in words, errors in one line."""

from __future__ import annotations

import click
import pytest

from dtq import errors
from dtq.commands.console import Exit, Failure, duration
from dtq.commands.tables import Column, cut, display_width, print_pairs, print_table

COLUMNS = (
    Column(name="ID"),
    Column(name="TYPE", cut=True),
    Column(name="N", right=True),
    Column(name="AGE", right=True, optional=True),
    Column(name="ERROR", cut=True, optional=True),
)
ROW = ("0123456789abcdef", "a_rather_long_type", 12, "3 s", "an error message that is much too long for any terminal")


@pytest.fixture
def table(monkeypatch, capsys):
    def lines(width=None, rows=(ROW,)):
        if width is not None:
            monkeypatch.setenv("COLUMNS", str(width))
        print_table(COLUMNS, rows, empty="nothing")
        return capsys.readouterr().out.splitlines()

    monkeypatch.delenv("COLUMNS", raising=False)
    return lines


def test_where_output_goes_to_a_program_nothing_is_cut(table):
    assert table()[1].split("  ") == ["0123456789abcdef", *map(str, ROW[1:])]


@pytest.mark.parametrize("width", [100, 80, 60, 50, 40])
def test_a_table_fits_the_width_and_never_cuts_an_id(table, width):
    lines = table(width)
    assert max(map(display_width, lines)) <= width
    assert all(line.startswith(("ID", "0123456789abcdef")) for line in lines)


def test_what_is_less_important_goes_first(table):
    assert "an error" in table(80)[1]
    assert "AGE" in table(48)[0]
    assert "AGE" not in table(32)[0]
    assert "a_rat…" in table(28)[1]


def test_a_table_without_rows_says_so_on_stderr(capsys):
    print_table(COLUMNS, [], empty="nothing there")
    assert capsys.readouterr() == ("", "nothing there\n")


def test_stored_text_cannot_move_the_cursor_or_make_lines(table, capsys):
    (line,) = table(rows=[("id", "evil\x1b[2J\nline", 1, "-", "x\r")])[1:]
    assert "\x1b" not in line
    assert "evil\\x1b[2J\\nline" in line
    print_pairs([("key", "a\nb"), ("left out", None), ("empty", "")])
    assert capsys.readouterr().out == "key  a\\nb\n"


def test_wide_characters_count_twice(table):
    assert display_width("数据") == 4
    assert cut("数据数据", 5) == "数据…"
    lines = table(40, rows=[("id", "数据" * 20, 1, "-", "x"), ("id", "abc", 1, "-", "x")])
    assert {display_width(line) for line in lines[1:]} == {display_width(lines[1])} <= set(range(41))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-3, "0 ms"), (0.25, "250 ms"), (1, "1 s"), (59.4, "59 s"), (59.6, "1 min"), (3599, "1 h"),
     (7200, "2 h"), (86_400, "1 d"), (864_000, "10 d")],
)  # fmt: skip
def test_a_length_of_time_has_one_unit(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidTask("x"), 2),
        (errors.PayloadTooLarge("x"), 2),
        (errors.UnknownTaskType("x"), 2),
        (errors.IdempotencyKeyReused("x"), 2),
        (errors.TaskNotFound("x"), 3),
        (errors.TaskFinished("x"), 4),
        (errors.WrongState("x"), 4),
        (errors.QueueFull("x"), 5),
        (errors.ScheduleFull("x"), 5),
        (errors.TooManyQueues("x"), 5),
        (errors.RedisFull("x"), 5),
        (errors.RedisUnavailable("x"), 69),
        (errors.ServerStartFailed("x"), 69),
        (errors.ConfigurationError("x"), 78),
        (errors.Undecodable("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error, code):
    assert Failure.of(error).exit_code == code


def test_an_error_is_one_line_whatever_it_holds(capsys):
    Failure("first\n  second\x1b[31m\n", Exit.FAILED).show()
    assert capsys.readouterr().err == "Error: first; second\\x1b[31m\n"


def test_every_command_has_a_help_text_and_json():
    from dtq.commands.root import dtq

    def leaves(group, path):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from leaves(command, f"{path} {name}")
            else:
                yield f"{path} {name}", command

    found = dict(leaves(dtq, "dtq"))
    assert len(found) > 20
    for path, command in found.items():
        assert command.help, path
        if path != "dtq worker run":
            assert any("--json" in parameter.opts for parameter in command.params), path
