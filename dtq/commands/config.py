"""`flask dtq config`: what the settings are, and whether they can be used."""

from __future__ import annotations

import logging
import os
import sys

import click

from dtq.commands.console import Exit, Failure, Group, json_option, print_json, settings
from dtq.commands.tables import Column, print_table
from dtq.errors import ConfigurationError
from dtq.fields import shown, variable
from dtq.log import escape
from dtq.redisio import Server
from dtq.registry import TaskFunction, default
from dtq.settings import Settings

log = logging.getLogger("dtq.config")


@click.group("config", cls=Group)
def config() -> None:
    """Look at the settings."""


@config.command("show")
@click.option("--changed", is_flag=True, help="Only what is not as by default.")
@json_option
def show(changed: bool, as_json: bool) -> None:
    """Show the settings in force, without passwords and keys."""
    chosen = settings()
    values = chosen.as_shown()
    differing = {variable(name) for name in Settings.model_fields if name in chosen.model_fields_set}
    if changed:
        values = {name: value for name, value in values.items() if name in differing}
    if as_json:
        print_json(values)
        return
    rows = [(name, value or "-", "set" if name in differing else "default") for name, value in values.items()]
    columns = (Column(name="VARIABLE"), Column(name="VALUE", cut=True), Column(name="FROM", optional=True))
    print_table(columns, rows, empty="everything is as by default")


@config.command("check")
@json_option
def check(as_json: bool) -> None:
    """Say whether the settings can be used: values, the Redis URL, the modules with the handlers. Connects nowhere."""
    faults: list[str] = []
    warnings = Warnings()
    logging.getLogger("dtq").addHandler(warnings)
    try:
        faults, types = _look()
    finally:
        logging.getLogger("dtq").removeHandler(warnings)
    if as_json:
        print_json({"ok": not faults, "errors": faults, "warnings": warnings.messages, "task_types": types})
    else:
        for message in warnings.messages:
            click.echo(f"Note: {message}", err=True)
        for fault in faults[1:]:
            click.secho(f"Error: {fault}", err=True, fg="red")
    if faults:
        raise Failure(faults[0], Exit.CONFIGURATION)
    if not as_json:
        click.echo(f"the settings can be used; task types: {', '.join(types)}")


def _look() -> tuple[list[str], list[str]]:
    """Return what is wrong, and the task types that the modules register."""
    try:
        chosen = settings()
    except ConfigurationError as error:
        return [escape(line) for line in error.message.splitlines()], []
    faults = []
    if chosen.redis_url:
        try:
            Server.connect(chosen.redis_url, namespace=chosen.namespace).close()
        except ConfigurationError as error:
            faults.append(escape(error.message))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as the worker does
    return _look_at_tasks(chosen.tasks, faults)


def _look_at_tasks(modules: str, faults: list[str]) -> tuple[list[str], list[str]]:
    """Load the modules, each by itself; return the faults with theirs, and the task types."""
    types: set[str] = set()
    bare = []
    for name in [part.strip() for part in modules.split(",") if part.strip()] or [""]:
        try:
            found = _types_of(name)
        except ConfigurationError as error:
            faults.append(escape(error.message))
        else:
            types.update(found)
            if not found:
                bare.append(escape(name))
    if bare and not types:
        has = "has" if len(bare) == 1 else "have"
        faults.append(f"DTQ_TASKS: {', '.join(bare)} {has} no handler: put @task before a function in it")
    elif bare:  # it may be there to prepare something for the others
        log.warning("DTQ_TASKS: %s adds no handler", ", ".join(bare))
    return faults, sorted(types)


def _types_of(name: str) -> set[str]:
    """Return the task types that a module defines, imports, or has others register."""
    before = set(default.names())
    default.load(name)
    there = {value.handler.name for value in vars(sys.modules[name]).values() if isinstance(value, TaskFunction)}
    own = {
        one.name for one in default.handlers.values() if f"{getattr(one.fn, '__module__', '')}.".startswith(f"{name}.")
    }
    return there | own | (set(default.names()) - before)


class Warnings(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.messages.append(shown(record.getMessage()))
