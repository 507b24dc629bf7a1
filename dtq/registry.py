"""Which function runs which task type, and by which rules: what `@task` notes down.

A payload or a task type never names anything to import: only modules listed in DTQ_TASKS are loaded, once, at start.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import json
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar

from dtq.errors import ConfigurationError

if TYPE_CHECKING:
    from dtq.model import Task

P = ParamSpec("P")
R = TypeVar("R")

Isolation = Literal["thread", "process"]

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_MAX_TIMEOUT_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A task type: the function that runs it and what it asks for where a submission does not say."""

    name: str
    fn: Callable[..., Any]
    """Called as `fn(payload, ctx)`."""
    max_attempts: int | None = None
    timeout_ms: int | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    """Exceptions that mean another attempt may succeed, besides those that always do."""
    isolation: Isolation = "thread"
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the payload, published to ingest; None checks nothing."""


class Submitter(Protocol):
    """What `TaskFunction.submit` needs of a client."""

    def submit(self, task_type: str, payload: Any = None, **options: Any) -> Task:
        """Submit one task."""

    def close(self) -> None:
        """Let go of its connections."""


class TaskFunction(Generic[P, R]):
    """A registered function: called like the function that it wraps, and submitted by `submit`."""

    handler: Handler

    def __init__(self, handler: Handler, fn: Callable[P, R]) -> None:
        self.handler = handler
        functools.update_wrapper(self, fn)
        self._fn = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    @property
    def name(self) -> str:
        """The task type."""
        return self.handler.name

    def submit(self, payload: Any = None, **options: Any) -> Task:
        """Queue a task of this type; the options and the errors are those of `Client.submit`."""
        return submitter().submit(self.name, payload, **options)


class Registry:
    """Task types by name. Filled while modules are imported, read by every thread afterwards."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """All handlers by task type."""
        return self._handlers

    def register(self, handler: Handler) -> None:
        """Add a handler. Raises ConfigurationError for a bad one, or for a second function with the same name."""
        _check(handler)
        known = self._handlers.get(handler.name)
        if known is not None and _origin(known.fn) != _origin(handler.fn):
            raise ConfigurationError(
                f"task type {handler.name!r} is registered twice: by {_origin(known.fn)} and by {_origin(handler.fn)}"
            )
        self._handlers[handler.name] = handler

    def get(self, name: str) -> Handler | None:
        """Return the handler of a task type, or None when there is none."""
        return self._handlers.get(name)

    def names(self) -> tuple[str, ...]:
        """Return the known task types, sorted."""
        return tuple(sorted(self._handlers))

    def load(self, modules: str) -> None:
        """Import the modules of a comma list, and take up every task that they define or import by name.

        Raises ConfigurationError that names the module and what went wrong with it.
        """
        names = [name.strip() for name in modules.split(",") if name.strip()]
        if not names:
            raise ConfigurationError("DTQ_TASKS names no module: give one or more, separated by commas")
        for name in names:
            module = _import(name)
            for value in list(vars(module).values()):
                if isinstance(value, TaskFunction):
                    self.register(value.handler)


default = Registry()
"""The registry that `@task` fills unless it is given another one."""


def task(
    name: str,
    *,
    max_attempts: int | None = None,
    timeout_ms: int | None = None,
    retry_on: tuple[type[BaseException], ...] | type[BaseException] = (),
    isolation: Isolation = "thread",
    schema: Any = None,
    registry: Registry | None = None,
) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
    """Register a function `fn(payload, ctx)` as the handler of a task type.

    max_attempts, timeout_ms: used where a submission gives none. retry_on: exceptions to retry on, besides
    RetryableError, timeouts and Redis's connection errors. isolation: "process" for a child that can be killed.
    schema: JSON Schema of the payload as a dict, or a pydantic model class.
    Raises ConfigurationError when something of this cannot be.
    """
    retried = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)

    def register(fn: Callable[P, R]) -> TaskFunction[P, R]:
        handler = Handler(
            name=name,
            fn=fn,
            max_attempts=max_attempts,
            timeout_ms=timeout_ms,
            retry_on=retried,
            isolation=isolation,
            schema=_schema(name, schema),
        )
        (default if registry is None else registry).register(handler)
        return TaskFunction(handler, fn)

    return register


# --- the client behind `handler.submit` -------------------------------------------------------------------------------

_submitter: Submitter | None = None
_make_submitter: Callable[[], Submitter] | None = None
_submitter_lock = threading.Lock()


def use_client(client: Submitter | None = None, *, make: Callable[[], Submitter] | None = None) -> Submitter | None:
    """Make `handler.submit` use `client`, or what `make` returns at the first use; neither: one made from the settings.

    Returns the client that was in use until now, for the caller to close if it is the caller's.
    """
    global _submitter, _make_submitter
    with _submitter_lock:
        before, _submitter, _make_submitter = _submitter, client, make
        return before


def submitter() -> Submitter:
    """Return the client of `handler.submit`; the first use makes it."""
    global _submitter  # noqa: PLW0603
    with _submitter_lock:
        if _submitter is None:
            # By name: the client is a layer above this one, and needed only by those who submit.
            make = _make_submitter or importlib.import_module("dtq.client").Client
            _submitter = make()
        return _submitter


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(handler: Handler) -> None:
    where = f"task {handler.name!r}"
    name: object = handler.name  # whatever the caller's types promise
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: a task type is 1 to 128 of A-Z a-z 0-9 _ . : -")
    if not callable(handler.fn):
        raise ConfigurationError(f"{where}: {handler.fn!r} cannot be called")
    if inspect.iscoroutinefunction(handler.fn) or inspect.isgeneratorfunction(handler.fn):
        raise ConfigurationError(f"{where}: a handler is a plain function, neither async nor a generator")
    _check_parameters(handler, where)
    if handler.max_attempts is not None and not _is_whole(handler.max_attempts, 1, 10_000):
        raise ConfigurationError(f"{where}: max_attempts is {handler.max_attempts!r}, allowed are 1 to 10000")
    if handler.timeout_ms is not None and not _is_whole(handler.timeout_ms, 1, _MAX_TIMEOUT_MS):
        raise ConfigurationError(f"{where}: timeout_ms is {handler.timeout_ms!r}, allowed are 1 to {_MAX_TIMEOUT_MS}")
    if handler.isolation not in ("thread", "process"):
        raise ConfigurationError(f"{where}: isolation is {handler.isolation!r}, allowed are 'thread' and 'process'")
    kinds: tuple[object, ...] = handler.retry_on
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(f"{where}: retry_on holds {kind!r}, which is no exception class")


def _check_parameters(handler: Handler, where: str) -> None:
    try:
        inspect.signature(handler.fn).bind(None, None)
    except TypeError:
        raise ConfigurationError(f"{where}: a handler takes two arguments, fn(payload, ctx)") from None
    except ValueError:  # a function of C without a signature: calling it will tell
        return


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _schema(name: str, schema: Any) -> Mapping[str, Any] | None:
    if schema is None:
        return None
    made = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
    try:
        if not isinstance(made, Mapping):
            raise TypeError("it is neither a dict nor a pydantic model class")
        json.dumps(made, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"task {name!r}: the payload schema cannot be used: {error}") from None
    return made


def _origin(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"


def _nearest(name: str) -> str:
    names = [module.name for module in pkgutil.iter_modules([entry or "." for entry in sys.path[:3]])]
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _import(name: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"DTQ_TASKS: {name!r} is not the name of a module")
    try:
        return importlib.import_module(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"DTQ_TASKS: {name}: {error.message}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"DTQ_TASKS: there is no module {name!r} in {', '.join(entry or '.' for entry in sys.path[:3])} ..."
                f"{_nearest(name)}"
            ) from error
        raise ConfigurationError(f"DTQ_TASKS: {name} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"DTQ_TASKS: {name} cannot be imported: {type(error).__name__}: {error}") from error
