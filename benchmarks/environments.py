"""The environments of what is measured: one for each section of requirements.txt, made when it is first needed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("BENCH_HOME", PROJECT / ".bench"))
"""Environments and the figures of the last run."""

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def python_of(section: str) -> str:
    """Return the interpreter of a system, installing what its section names. Without a section it is this one.

    Raises subprocess.CalledProcessError when it cannot be installed.
    """
    wanted = sections().get(section)
    if wanted is None:
        return sys.executable
    directory = HOME / "environments" / f"{section}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    python = directory / "bin" / "python"
    if not (directory / "complete").exists():
        print(f"installing {', '.join(wanted.split())}", file=sys.stderr, flush=True)
        venv.create(directory, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted.split()]
        subprocess.run(command, check=True)
        (directory / "complete").touch()
    return str(python)


def sections() -> dict[str, str]:
    """Return the requirements of each section, one a line."""
    parts = re.split(r"^# --- (\w+)$", _REQUIREMENTS.read_text(), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
