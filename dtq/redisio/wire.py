"""Commands as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Arg: TypeAlias = bytes | str | int | float
"""What a command may be made of; text goes out as UTF-8."""

_LARGE = 4096


def pack(args: Sequence[Arg]) -> bytes:
    """Return one command in the Redis protocol. Raises TypeError for an argument that is not an Arg (None, bool)."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        if arg.__class__ is str:
            data = arg.encode()
        elif arg.__class__ is bytes:
            data = arg
        else:
            data = _encode(arg)
        if len(data) < _LARGE:
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        else:  # copied once, by the join
            parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


def _encode(arg: object) -> bytes:
    if isinstance(arg, bool):
        raise TypeError("a bool is not a Redis argument: say 0 or 1")
    if isinstance(arg, int):
        return b"%d" % arg
    if isinstance(arg, float):
        return repr(arg).encode()
    if isinstance(arg, str):  # an enum member whose value is text
        return str.encode(arg)
    raise TypeError(f"{type(arg).__name__} is not a Redis argument: use bytes, str, int or float")
