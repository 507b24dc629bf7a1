"""What a program's log looks like: one line a record, for people or as JSON. Libraries only log; programs call this."""

from __future__ import annotations

import json as jsonlib
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_BREAKS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def configure_logging(
    level: str = "INFO",
    json: bool = False,
    stream: TextIO | None = None,
    fields: Callable[[], Mapping[str, object] | None] | None = None,
) -> None:
    """Make the root logger write to `stream` (stderr) and to nothing else; may be called again.

    level: the least that is written, such as "INFO". json: each line is a JSON object.
    fields: asked in the thread of each record for what it is to carry beside its own; None for nothing.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    if fields is not None:
        handler.addFilter(_Carrying(fields))
    handler.setFormatter(_json_formatter() if json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)


class _Carrying(logging.Filter):
    """Adds to records what the thread works on: whichever logger a handler uses, its lines can be found by the task."""

    def __init__(self, fields: Callable[[], Mapping[str, object] | None]) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in (self._fields() or {}).items():
            record.__dict__.setdefault(name, value)
        return True


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z WARNING dtq.worker.fetcher Redis is away queue=mail`, and the traceback indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or one and the indented lines of a traceback: only a record's own line is not indented."""
        line = " ".join(
            [_utc(record.created), record.levelname, record.name, escape(record.getMessage()), *_extras(record)]
        )
        told = []
        if record.exc_info:
            told.append(self.formatException(record.exc_info))
        if record.stack_info:
            told.append(self.formatStack(record.stack_info))
        return "\n".join([line, *(f"    {escape(row)}" for text in told for row in text.splitlines())])


def escape(text: str) -> str:
    """Return the text without line breaks and control characters, so that no value can forge a line or a colour."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else _BREAKS.get(char) or char.encode("unicode_escape").decode() for char in text
    )


def _extras(record: logging.LogRecord) -> list[str]:
    return [
        f"{escape(name)}={_value(value)}" for name, value in record.__dict__.items() if name not in _OWN and value != ""
    ]


def _value(value: Any) -> str:
    text = escape(str(value))
    return '"' + text.replace('"', '\\"') + '"' if " " in text or '"' in text or "=" in text else text


def _utc(seconds: float) -> str:
    milliseconds = int(seconds * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{whole}.{milliseconds % 1000:03d}Z"


def log_with_trace(logger: logging.Logger, message: str, trace: str, extra: Mapping[str, object]) -> None:
    """Log an error with a traceback that is text already: sanitized, bounded, perhaps another process's."""
    if logger.isEnabledFor(logging.ERROR):
        record = logger.makeRecord(logger.name, logging.ERROR, "", 0, message, (), None, extra=extra)
        record.stack_info = trace or None
        logger.handle(record)


def _json_formatter() -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter  # only where it is asked for

    class Formatter(JsonFormatter):
        def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
            return _utc(record.created)

    return Formatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        json_serializer=_dumps,
    )


def _dumps(record: Any, **options: Any) -> str:
    try:
        return jsonlib.dumps(record, allow_nan=False, **options)
    except ValueError:  # NaN and Infinity are not JSON: as text
        return jsonlib.dumps(jsonlib.loads(jsonlib.dumps(record, **options), parse_constant=str), **options)
