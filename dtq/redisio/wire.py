"""Commands as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hiredis import pack_command

Arg: TypeAlias = bytes | str | int | float
"""What a command may be made of; text goes out as UTF-8."""

_SMALL_BYTES = 4096
_SMALL_NUMBER = 2**63
_COPIED_TWICE_BYTES = 4096


def pack(args: Sequence[Arg]) -> bytes:
    """Return one command in the Redis protocol.

    Raises TypeError for an argument that is not an Arg (None, bool), ValueError for what cannot be written down.
    """
    for arg in args:
        kind = arg.__class__
        if kind is bytes or kind is str:
            if len(arg) > _SMALL_BYTES:  # type: ignore[arg-type]
                return _pack_with_care(args)
        elif kind is int:
            if not -_SMALL_NUMBER < arg < _SMALL_NUMBER:  # type: ignore[operator]
                return _pack_with_care(args)
        elif kind is not float:
            return _pack_with_care(args)
    packed: bytes = pack_command(tuple(args))  # type: ignore[arg-type]  # its types lack the int among floats
    return packed


def _pack_with_care(args: Sequence[Arg]) -> bytes:
    """hiredis takes fifty times as long as this for a megabyte, crashes on an int of more than 4300 digits, refuses
    what is derived from int, lets what is derived from float write itself, and reads past a memoryview's steps.
    """
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = _encode(arg)
        if len(data) < _COPIED_TWICE_BYTES:
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        else:  # copied once, by the join
            parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


def _encode(arg: Arg) -> bytes:
    if isinstance(arg, bytes):
        return arg if arg.__class__ is bytes else memoryview(arg).tobytes()  # its own idea of a length does not count
    if isinstance(arg, str):
        return str.encode(arg)  # also an enum member whose value is text
    if isinstance(arg, bool):
        raise TypeError("a bool is not a Redis argument: say 0 or 1")
    if isinstance(arg, int):
        return b"%d" % arg
    if isinstance(arg, float):
        return float.__repr__(arg).encode()
    raise TypeError(f"{type(arg).__name__} is not a Redis argument: use bytes, str, int or float")
