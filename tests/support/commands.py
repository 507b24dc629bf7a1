"""The commands in this process, as `flask dtq` runs them, and a worker that does what waits."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from click.testing import CliRunner, Result

from dtq.commands.root import dtq
from dtq.settings import load_settings
from dtq.worker.launch import Options, run_worker
from tests.support import PROJECT


class Commands:
    """`commands("task", "get", task_id)`: the result of `flask dtq task get ...`; its settings are DTQ_* variables."""

    def __init__(self, url: str) -> None:
        self.environment: dict[str, str] = {"DTQ_REDIS_URL": url}

    def __call__(self, *arguments: str, code: int | None = 0, **options: Any) -> Result:
        """code: the exit code that is expected; None for any."""
        result = CliRunner().invoke(dtq, arguments, env=self.environment, prog_name="flask dtq", **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if code is not None:
            assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return result

    def json(self, *arguments: str, code: int | None = 0, **options: Any) -> Any:
        """Return what the command says with `--json`."""
        return json.loads(self(*arguments, "--json", code=code, **options).stdout)

    def work(self, tasks: str = "examples.tasks") -> None:
        """Run what waits, until nothing is left."""
        settings = load_settings(
            env_file=None, redis_url=self.environment["DTQ_REDIS_URL"], tasks=tasks, worker_metrics_port=0
        )
        root = logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)
        try:
            run_worker(settings, Options(burst=True))
        finally:
            root.setLevel(level)


def flask(*arguments: str, environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start `flask dtq ...` of this project in the current directory, or another one (`cwd`)."""
    command: Sequence[str] = [sys.executable, "-m", "flask", "--app", str(PROJECT / "app.py"), "dtq", *arguments]
    return subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=options.pop("stderr", subprocess.PIPE),
        text=True,
        **options,
    )
