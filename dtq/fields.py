"""How a setting is declared and told: its field, its variable, what it allows, and its value fit to be shown."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

PREFIX = "DTQ_"
"""Every variable of dtq begins so."""

_MAX_SHOWN_CHARS = 200


def setting(told: str, default: Any = ..., *, allowed: str = "", auto: str = "", **rules: Any) -> Any:
    """Declare a field with its help text; a number needs its bounds `ge` and `le` among the rules.

    allowed: what may be given, in words, where the type and the bounds do not say it.
    auto: the default in words, where it is worked out.
    """
    if "default_factory" not in rules:
        rules["default"] = default
    return Field(description=told, json_schema_extra={"allowed": allowed, "auto": auto}, **rules)


def variable(name: str) -> str:
    """Return the environment variable of a field."""
    return PREFIX + name.upper()


def allowed(field: FieldInfo) -> str:
    """Return in words what the variable of a field may hold."""
    if words := note(field, "allowed"):
        return words
    if field.annotation is bool:
        return "true or false (also 1 or 0, yes or no)"
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    bounds = {kind: getattr(rule, kind) for rule in field.metadata for kind in ("ge", "le") if hasattr(rule, kind)}
    whole = "whole " if field.annotation is int else ""
    return f"a {whole}number from {plain(bounds['ge'])} to {plain(bounds['le'])}"


def note(field: FieldInfo, kind: Literal["allowed", "auto"]) -> str:
    """Return what the field itself says about its values or its default; empty when the type says it."""
    extra = field.json_schema_extra
    return str(extra[kind]) if isinstance(extra, dict) else ""


def plain(number: float) -> str:
    """Return a number as a person would write it: 30, not 30.0; 604800, not 6.048e+05."""
    return str(int(number)) if float(number).is_integer() else str(number)


def shown(value: Any) -> str:
    """Return the value of a setting as its variable would hold it, on one line and of bounded length."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return plain(value)
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."
