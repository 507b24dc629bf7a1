"""When enough of a request has come for a thread to read it: told from its bytes, without parsing them."""

from __future__ import annotations

import re

GATHER_BYTES = 64 * 1024
"""So much of a request is gathered while no thread waits for it; only then one waits for the rest."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:", re.IGNORECASE)


def is_ready(held: bytes) -> bool:
    """Whether a request is complete, as far as its length is announced, or is not to be gathered any further.

    What is no request is ready too: the parser refuses it.
    """
    end = held.find(b"\r\n\r\n")
    if end < 0:
        return len(held) >= GATHER_BYTES or b"\n\n" in held
    length = _LENGTH.search(held, 0, end + 2)
    if length is None or len(held) >= min(end + 4 + int(length[1]), GATHER_BYTES):
        return True
    return _EXPECT.search(held, 0, end) is not None  # the client waits for an answer before it sends its body
