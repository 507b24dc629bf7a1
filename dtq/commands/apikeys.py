"""`flask dtq key`: who has a key to the API, and with which role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dtq.apikeys import ROLES, Role, checked_name, create_key, read_keys, remove_key
from dtq.commands.console import Exit, Failure, Group, json_option, print_json, settings
from dtq.commands.tables import Column, print_table


@click.group("key", cls=Group)
def key() -> None:
    """Make, list and remove API keys. Without DTQ_API_KEYS_FILE, each command needs --file."""


def _file_option(command: Any) -> Any:
    told = "The file of the keys; by default DTQ_API_KEYS_FILE."
    return click.option("--file", "path", type=click.Path(dir_okay=False, path_type=Path), help=told)(command)


def _path(given: Path | None) -> Path:
    if given is not None:
        return given
    if found := settings().api_keys_file:
        return Path(found)
    raise Failure("which file? Set DTQ_API_KEYS_FILE, or give --file", Exit.USAGE)


def _name(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        return checked_name(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@key.command("create")
@click.argument("name", callback=_name)
@click.option(
    "--role", type=click.Choice(ROLES), required=True, help="read: look; submit: that too; admin: everything."
)
@_file_option
@json_option
def create(name: str, role: Role, path: Path | None, as_json: bool) -> None:
    """Make a key and print it, once: the file holds only its hash."""
    path = _path(path)
    try:
        made = create_key(path, name, role)
    except ValueError as error:
        raise Failure(str(error), Exit.WRONG_STATE) from None
    if as_json:
        print_json({"name": name, "role": role, "key": made, "file": str(path)})
    else:
        click.echo(f"The key of {name} ({role}), shown only now:", err=True)
        click.echo(made)


@key.command("list")
@_file_option
@json_option
def list_keys(path: Path | None, as_json: bool) -> None:
    """List the names and roles; the keys themselves are nowhere."""
    found = read_keys(_path(path))
    if as_json:
        print_json({"keys": [{"name": one.name, "role": one.role, "created": one.created or None} for one in found]})
        return
    columns = (Column(name="NAME", cut=True), Column(name="ROLE"), Column(name="CREATED", optional=True))
    print_table(columns, [(one.name, one.role, one.created or "-") for one in found], empty="no keys")


@key.command("remove")
@click.argument("name")
@_file_option
@json_option
def remove(name: str, path: Path | None, as_json: bool) -> None:
    """Remove a key: within a second it opens nothing any more."""
    if not remove_key(_path(path), name):
        raise Failure(f"there is no key {name}", Exit.NOT_FOUND)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        click.echo(f"the key {name} is removed")
