"""`flask dtq openapi` and `flask dtq completion`: what other programs read of this one."""

from __future__ import annotations

import json
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from dtq.commands.console import Exit, Failure, json_option, print_json, settings

SHELLS = ("bash", "zsh", "fish")


@click.command("openapi")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to a file.")
@json_option
def openapi(output: Path | None, as_json: bool) -> None:
    """Print the description of the HTTP API (OpenAPI 3.1, JSON), as the server answers it. Needs no Redis."""
    from dtq.web.application import create_app
    from dtq.web.openapi import document

    described = document(create_app(settings()))
    text = json.dumps(described, ensure_ascii=False, indent=None if as_json else 2)
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise Failure(f"{output} cannot be written: {error.strerror}", Exit.FAILED) from None


COMPLETION_HELP = """Print what makes a shell complete `flask dtq ...`.

\b
bash: eval "$(flask dtq completion bash)"   in ~/.bashrc
zsh:  eval "$(flask dtq completion zsh)"    in ~/.zshrc
fish: flask dtq completion fish | source    in ~/.config/fish/config.fish
"""


@click.command("completion", help=COMPLETION_HELP)
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print the script of one shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "flask", "_FLASK_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
