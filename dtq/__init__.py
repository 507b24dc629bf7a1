"""dtq: a distributed task queue on Redis Streams, and a reliable message queue beside it.

The names below are the public Python API. Each is imported when it is first used, so `import dtq` costs next to nothing
and a process that only runs handlers never loads what only submitters or web pages need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtq import errors as errors
    from dtq.client import Client as Client
    from dtq.client import idempotent_operation as idempotent_operation
    from dtq.errors import ConfigurationError as ConfigurationError
    from dtq.errors import DtqError as DtqError
    from dtq.errors import PermanentError as PermanentError
    from dtq.errors import RetryableError as RetryableError
    from dtq.errors import Snooze as Snooze
    from dtq.errors import TaskCancelled as TaskCancelled
    from dtq.errors import TaskTimeout as TaskTimeout
    from dtq.model import Actor as Actor
    from dtq.model import Task as Task
    from dtq.registry import task as task
    from dtq.states import Status as Status
    from dtq.worker.context import TaskContext as TaskContext

__version__ = "0.1.0"

_HOMES = {
    "Actor": "dtq.model",
    "Client": "dtq.client",
    "ConfigurationError": "dtq.errors",
    "DtqError": "dtq.errors",
    "PermanentError": "dtq.errors",
    "RetryableError": "dtq.errors",
    "Snooze": "dtq.errors",
    "Status": "dtq.states",
    "Task": "dtq.model",
    "TaskCancelled": "dtq.errors",
    "TaskContext": "dtq.worker.context",
    "TaskTimeout": "dtq.errors",
    "idempotent_operation": "dtq.client",
    "task": "dtq.registry",
}
"""Where each public name lives."""

__all__ = [  # noqa: RUF022 - as a reader meets them
    "task",
    "TaskContext",
    "RetryableError",
    "PermanentError",
    "Snooze",
    "TaskTimeout",
    "TaskCancelled",
    "idempotent_operation",
    "Client",
    "Actor",
    "Task",
    "Status",
    "DtqError",
    "ConfigurationError",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("dtq.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'dtq' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # so that this is asked once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
