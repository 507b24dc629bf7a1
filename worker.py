"""The worker's command line: `python worker.py`. Options go before DTQ_* variables, those before `.env`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dtq.errors import ConfigurationError
from dtq.log import configure_logging
from dtq.settings import Settings, load_settings
from dtq.worker.context import current_log_fields
from dtq.worker.launch import Options, run_worker
from dtq.worker.processes import Processes
from dtq.worker.reload import Reloader
from dtq.worker.supervisor import ExitCode

EXIT_PATIENCE_S = 1.0
"""How long the interpreter may take to end once the worker has."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        settings = load_settings(
            queues=given.queues,
            worker_concurrency=given.concurrency,
            worker_processes=given.processes,
            tasks=given.tasks,
            worker_id=given.name,
            drain_timeout_s=given.drain_timeout,
            worker_metrics_port=given.metrics_port,
            log_json=given.log_json or None,
        )
    except ConfigurationError as error:
        sys.stderr.write(f"worker.py: {error}\n")
        return ExitCode.CONFIGURATION
    configure_logging(settings.log_level, json=settings.log_json, fields=current_log_fields)
    if given.reload and settings.worker_processes > 1:
        sys.stderr.write("worker.py: --reload is for one process: leave --processes away\n")
        return 2
    if given.check:
        from dtq.worker.check import check  # needs what a worker does not

        return check(settings)
    sys.path.insert(0, os.getcwd())  # DTQ_TASKS=mine means the module in this directory
    if settings.worker_processes > 1:
        return Processes(settings.worker_processes, lambda number: _work(settings, given, number)).run()
    return _work(settings, given, None)


def _work(settings: Settings, given: argparse.Namespace, number: int | None) -> int:
    reloader = Reloader(Path.cwd()) if given.reload else None
    options = Options(max_tasks=given.max_tasks, burst=given.burst, number=number, reloader=reloader)
    ended = run_worker(settings, options)
    if reloader is not None and reloader.due:
        reloader.restart()
    return ended


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worker.py",
        description="Runs tasks until it is told to stop.",
        epilog="Signals: TERM, INT or HUP drains (again: hand back and leave now), USR1 claims nothing more, USR2 logs "
        "stacks. Exit status: 0 clean, 1 handed back unfinished work, 69 Redis out of reach at the start, 70 crash, "
        "71 too many written-off threads, 75 a burst ended with failures, 78 settings, import, or "
        "another worker of the same name.",
    )
    parser.add_argument("--queues", metavar="A,B", help="queues to serve, the most urgent first (DTQ_QUEUES)")
    parser.add_argument("--concurrency", metavar="N", help="tasks at once in a process (DTQ_WORKER_CONCURRENCY)")
    parser.add_argument("--processes", metavar="N", help="worker processes (DTQ_WORKER_PROCESSES)")
    parser.add_argument("--tasks", metavar="MODULE", help="modules with the handlers, separated by commas (DTQ_TASKS)")
    parser.add_argument("--name", metavar="S", help="the worker's id, different for each (DTQ_WORKER_ID)")
    parser.add_argument("--burst", action="store_true", help="end when there is nothing left to do")
    parser.add_argument("--max-tasks", metavar="N", type=_positive, help="end after this many tasks")
    parser.add_argument("--drain-timeout", metavar="S", help="seconds for running tasks to end (DTQ_DRAIN_TIMEOUT_S)")
    parser.add_argument("--metrics-port", metavar="P", help="port of the metrics, 0 for none (DTQ_WORKER_METRICS_PORT)")
    parser.add_argument("--check", action="store_true", help="say whether this worker's heartbeat is fresh, and end")
    parser.add_argument("--reload", action="store_true", help="begin anew when a file of the tasks changes")
    parser.add_argument("--log-json", action="store_true", help="log lines as JSON (DTQ_LOG_JSON)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    if any(thread.name.startswith("runner-") for thread in threading.enumerate()):
        os._exit(code)  # a written-off thread still runs its handler: nothing waits for it
    # Nor for threads that handlers left behind and the interpreter would wait for, those of an executor for example
    last_resort = threading.Timer(EXIT_PATIENCE_S, os._exit, (code,))
    last_resort.daemon = True
    last_resort.start()
    sys.exit(code)
