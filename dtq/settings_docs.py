"""Writes docs/settings.md and .env.example from the fields of the settings: `make docs`."""

from __future__ import annotations

from pathlib import Path

from dtq.fields import allowed, note, shown, variable
from dtq.settings import Settings

GROUPS = {
    "redis_url": "Redis",
    "api_host": "Web",
    "tasks": "Worker",
    "max_payload_bytes": "Tasks",
    "max_attempts": "Retries and dead letters",
    "max_queue_depth": "Limits",
    "task_retention_s": "How long things are kept",
    "log_level": "Log",
}
"""The first field of each group, and what the group is called."""

_HEAD = """\
# Settings

<!-- Made by `make docs` from dtq/settings.py: change it there. -->

Each is an environment variable, or a line of `.env` in the directory where dtq is started; the environment wins.
They are read once, when a process starts. An empty value is as good as none. `flask dtq config show` prints what is
in force.
"""

_ENV_HEAD = """\
# Every setting of dtq with its default. Copy this file to .env and take the # off what you change.
# Made by `make docs` from dtq/settings.py.
"""


def default_text(name: str) -> str:
    """Return the default of a field in words."""
    field = Settings.model_fields[name]
    return note(field, "auto") or shown(field.default)


def as_markdown() -> str:
    """Return docs/settings.md: a table for each group."""
    lines = [_HEAD]
    for name, field in Settings.model_fields.items():
        if name in GROUPS:
            lines += [f"\n## {GROUPS[name]}\n", "| variable | default | allowed | what it is |", "|---|---|---|---|"]
        cells = (f"`{variable(name)}`", default_text(name), allowed(field), field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def as_env_example() -> str:
    """Return .env.example: every variable, commented out, with its default."""
    lines = [_ENV_HEAD]
    for name, field in Settings.model_fields.items():
        if name in GROUPS:
            lines.append(f"\n# --- {GROUPS[name]} ---\n")
        lines.append(f"# {field.description}")
        lines.append(f"# Allowed: {allowed(field)}")
        if auto := note(field, "auto"):
            lines += [f"# Default: {auto}", f"#{variable(name)}=", ""]
        else:
            lines += [f"#{variable(name)}={shown(field.default)}", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def main(root: Path) -> None:
    """Write both files below the root of the project."""
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "settings.md").write_text(as_markdown(), encoding="utf-8")
    (root / ".env.example").write_text(as_env_example(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).resolve().parent.parent)
