"""One handler, run in this process for trying it out."""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import jsonschema

from dtq import registry
from dtq.commands.console import Exit, Failure, settings
from dtq.log import configure_logging, escape
from dtq.model import Claim, dumps, new_task_id
from dtq.registry import Handler
from dtq.settings import Settings
from dtq.worker.context import TaskContext, set_current_context

if TYPE_CHECKING:
    from dtq.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOutcome:
    """What became of one call."""

    task_type: str
    duration_ms: int
    result: Any = None
    error: str | None = None
    """Class and message of what it raised; None when it returned."""
    traceback: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the outcome for scripts."""
        status = "succeeded" if self.error is None else "failed"
        return {
            "task_type": self.task_type,
            "status": status,
            "duration_ms": self.duration_ms,
            "result": self.result,
            "error": self.error,
        }


def run_handler(task_type: str, payload: Any, modules: str | None) -> LocalOutcome:
    """Load the handlers and call one.

    modules: instead of DTQ_TASKS. Raises ConfigurationError for modules that cannot be loaded, Failure for an unknown
    type or a payload that the handler's schema refuses.
    """
    chosen = settings()
    configure_logging(chosen.log_level, json=chosen.log_json)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # DTQ_TASKS=mine means the module in this directory
    registry.default.load(modules or chosen.tasks)
    handler = registry.default.get(task_type)
    if handler is None:
        known = ", ".join(registry.default.names()) or "none"
        raise Failure(
            f"there is no handler for {escape(task_type)} in {modules or chosen.tasks}; known are: {known}"
            " (--tasks or DTQ_TASKS names the modules)",
            Exit.NOT_FOUND,
        )
    _check(handler, payload)
    _offer_client(chosen)
    return _call(handler, payload, _context(handler, payload, chosen))


def _check(handler: Handler, payload: Any) -> None:
    if not isinstance(payload, dict):
        raise Failure("PAYLOAD: must be a JSON object", Exit.USAGE)
    for error in jsonschema.Draft202012Validator(handler.schema or {}).iter_errors(payload):
        path = "".join(f"/{part}" for part in error.absolute_path)
        raise Failure(f"PAYLOAD{path}: {error.message[:200]}", Exit.USAGE)


def _offer_client(chosen: Settings) -> None:
    """Give handlers that submit, or use idempotent_operation, a client: made when needed, closed with the command."""
    context = click.get_current_context()

    def make() -> Client:
        from dtq.client import Client  # most handlers need none

        return context.with_resource(Client(settings=chosen))

    registry.use_client(make=make)
    context.call_on_close(registry.use_client)


def _context(handler: Handler, payload: Any, chosen: Settings) -> TaskContext:
    timeout_ms = handler.timeout_ms or chosen.task_timeout_ms
    claim = Claim(
        task_id=new_task_id(),
        seq=1,
        attempt=1,
        task_type=handler.name,
        queue="default",
        priority=5,
        max_attempts=1,
        timeout_ms=timeout_ms,
        failures=0,
        suspect=0,
        unknown_since=None,
        payload=dumps(payload).encode(),
        extra=b"",
        waited_s=0.0,
        age_s=0.0,
    )
    return TaskContext(claim, f"local-{os.getpid()}", time.monotonic() + timeout_ms / 1000, _show_progress)


def _show_progress(context: TaskContext) -> None:
    if context.latest is not None and sys.stderr.isatty():
        fraction, message = context.latest
        click.echo(f"{fraction:>4.0%} {escape(message)}", err=True)


def _call(handler: Handler, payload: Any, context: TaskContext) -> LocalOutcome:
    started = time.monotonic()
    result, error, told = None, None, ""
    set_current_context(context)
    try:
        result = handler.fn(payload, context)
        dumps(result)
    except Exception as caught:  # whatever a handler raises is its outcome
        result = None
        error = escape(f"{type(caught).__name__}: {caught}".removesuffix(": "))
        told = traceback.format_exc()
    finally:
        set_current_context(None)
        context.send_progress(time.monotonic())
    duration_ms = round((time.monotonic() - started) * 1000)
    return LocalOutcome(task_type=handler.name, duration_ms=duration_ms, result=result, error=error, traceback=told)
