"""`flask dtq doctor`: whether everything is as it should be, and what to do where it is not."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import click

from dtq.commands.checks import Finding, look, of_error
from dtq.commands.config import Warnings
from dtq.commands.console import Exit, Failure, connect, json_option, print_json
from dtq.errors import RedisUnavailable, ServerStartFailed
from dtq.log import escape

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


@click.command("doctor")
@json_option
def doctor(as_json: bool) -> None:
    """Look over settings, Redis, workers and queues. Exit status: 0, 1 something is wrong, 69 Redis out of reach."""
    findings: list[Finding] = []
    away = False
    warnings = Warnings()
    logger = logging.getLogger("dtq")
    logger.addHandler(warnings)
    try:
        findings += look(connect())
    except (RedisUnavailable, ServerStartFailed) as error:
        away = True
        findings.append(of_error(error))
    finally:
        logger.removeHandler(warnings)
    findings += [
        Finding(check="settings", level="warning", message=message, fix="docs/settings.md lists what there is")
        for message in warnings.messages
    ]
    wrong = [one for one in findings if one.level == "wrong"]
    if as_json:
        verdict = "wrong" if wrong else "ok"
        print_json({"verdict": verdict, "findings": [one.as_json() for one in findings]})
    else:
        _print(findings)
    if away:
        raise Failure("Redis is out of reach", Exit.REDIS_AWAY)
    if wrong:
        raise Failure(f"{len(wrong)} of {len(findings)} checks found something wrong", Exit.FAILED)


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(one.check) for one in findings)
    for one in findings:
        level = click.style(one.level.ljust(7), fg=_COLOURS[one.level])
        click.echo(f"{level}  {one.check.ljust(width)}  {escape(one.message)}")
        if one.fix:
            click.echo(f"{' ' * (width + 11)}-> {one.fix}")
