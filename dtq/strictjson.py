"""JSON as its standard means it, and nothing else: what reads every body that comes from outside.

RFC 8259 with the rules of I-JSON (RFC 7493): UTF-8, unique names, finite numbers, whole characters. Integers keep every
digit. Refusals say where, as a JSON pointer (RFC 6901), and never repeat more of the input than a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from dtq.errors import InvalidTask

MAX_DEPTH = 100
"""Levels of objects and lists in a value. Every common reader copes (Ruby stops at 100, serde at 128, orjson writes
254), and Python's own stack is in no danger, however deep in a program the JSON is read."""

MAX_ERRORS = 20
"""Faults that one refusal names."""

MAX_NAME_CHARS = 64  # of a name from outside that an answer repeats
_MAX_EXPLAINED_CHARS = 1_000_000  # a larger text is refused without saying where
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def load_json(body: bytes, max_depth: int = MAX_DEPTH) -> object:
    """Read one JSON value of at most `max_depth` levels.

    Raises InvalidTask; `context["errors"]` says what is wrong, and where if the text is JSON at all.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid("", f"the body is not UTF-8 (byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise invalid("", "the body begins with a byte order mark; send plain UTF-8")
    try:
        value = _strict.decode(text)
        # no walk for a text that has fewer brackets than levels are allowed: nearly every one
        if text.count("[") + text.count("{") > max_depth and _deeper_than(value, max_depth):
            raise RecursionError
        if _SURROGATE_ESCAPE.search(text):
            dump_json(value)
    except json.JSONDecodeError as error:
        raise invalid("", f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except _NotStrict as error:
        raise _explained(text, str(error)) from None
    except InvalidTask:
        raise _explained(text, _HALF) from None
    except RecursionError:
        raise invalid("", f"more than {max_depth} levels of objects and lists") from None
    except ValueError:  # Python's own limit on the digits of an integer
        raise invalid("", "an integer has more digits than can be read") from None
    return value


def dump_json(value: Any, pointer: str = "", *, sort: bool = False) -> bytes:
    """Return compact UTF-8 JSON of what `load_json` returned, or of plain dicts with string keys, lists and scalars.

    Raises InvalidTask, at `pointer`, for half a surrogate pair or an integer beyond Python's limit of digits.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:  # an integer above 64 bits: keep every digit; half a surrogate pair is refused below too
        pass
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=sort)
        return text.encode()
    except (ValueError, TypeError, RecursionError):
        raise invalid(pointer, "holds what JSON cannot say: half a surrogate pair or too many digits") from None


def step(part: str | int) -> str:
    """Return one step of a JSON pointer, cut to a length that an answer may repeat."""
    text = str(part)[:MAX_NAME_CHARS].encode(errors="backslashreplace").decode()
    return "/" + text.replace("~", "~0").replace("/", "~1")


def fault(pointer: str, message: str) -> dict[str, str]:
    """Return one entry of the `errors` of a refusal."""
    return {"pointer": pointer, "message": message}


def invalid(pointer: str, message: str) -> InvalidTask:
    """Return the refusal of one thing."""
    return refusal([fault(pointer, message)])


def refusal(errors: list[dict[str, str]]) -> InvalidTask:
    """Return the refusal of several things; its message tells the first and counts the others."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    name = first["pointer"].lstrip("/")
    return InvalidTask(f"{name}: {first['message']}{more}" if name else first["message"] + more, errors=errors)


# --- the decoder ------------------------------------------------------------------------------------------------------

_TWICE = "the same name stands twice in one object"
_HUGE = "this number is too large for a float"
_NO_NUMBER = "NaN and Infinity are not JSON"
_HALF = "half of a surrogate pair is not a character"


class _NotStrict(Exception):
    """The text is JSON for Python's decoder and not for us."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _NotStrict(_TWICE)
    return value


def _number(text: str) -> float:
    value = float(text)
    if value - value != 0.0:  # infinity minus infinity is not a number
        raise _NotStrict(_HUGE)
    return value


def _constant(_text: str) -> float:
    raise _NotStrict(_NO_NUMBER)


_strict = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_constant)


def _deeper_than(value: object, max_depth: int) -> bool:
    level, depth = [value], 0
    while level:
        if depth == max_depth:  # and there is one more
            return True
        depth += 1
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent if type(parent) is list else ())
            if type(child) is dict or type(child) is list
        ]
    return False


# --- saying where -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fault:
    """Stands in the decoded value for what is wrong there."""

    message: str
    name: str | None = None


def _object_or_fault(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Fault:
    value: dict[str, Any] = {}
    for name, item in pairs:
        if name in value:
            return _Fault(_TWICE, name)
        value[name] = item
    return value


def _number_or_fault(text: str) -> float | _Fault:
    value = float(text)
    return value if value - value == 0.0 else _Fault(_HUGE)


def _constant_fault(_text: str) -> _Fault:
    return _Fault(_NO_NUMBER)


_lenient = json.JSONDecoder(
    object_pairs_hook=_object_or_fault, parse_float=_number_or_fault, parse_constant=_constant_fault
)


def _explained(text: str, reason: str) -> InvalidTask:
    """Read a refused text again, slowly, to say where it is wrong."""
    errors: list[dict[str, str]] = []
    if len(text) <= _MAX_EXPLAINED_CHARS:
        try:
            errors = list(islice(_faults(_lenient.decode(text), ""), MAX_ERRORS))
        except (ValueError, RecursionError):  # it is wrong in yet another way
            errors = []
    return refusal(errors or [fault("", reason)])


def _faults(value: Any, pointer: str) -> Iterator[dict[str, str]]:
    if isinstance(value, _Fault):
        yield fault(pointer + (step(value.name) if value.name is not None else ""), value.message)
    elif isinstance(value, str):
        if not _whole(value):
            yield fault(pointer, _HALF)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not _whole(name):
                yield fault(pointer + step(name), _HALF)
            yield from _faults(item, pointer + step(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, f"{pointer}/{index}")


def _whole(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
