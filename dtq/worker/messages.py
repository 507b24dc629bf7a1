"""What a worker and the process of an isolated handler say to each other: JSON, one message a frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dtq.model import Claim, ErrorInfo, Outcome
from dtq.states import Disposition

_CLAIM_FIELDS = Claim._fields


def encode(kind: str, **content: Any) -> bytes:
    """Return a message."""
    return json.dumps({"kind": kind, **content}).encode()


def decode(frame: bytes) -> Mapping[str, Any]:
    """Return a message; its `kind` says what else is in it."""
    message: Mapping[str, Any] = json.loads(frame)
    return message


def claim_as_dict(claim: Claim) -> dict[str, Any]:
    """Return a claim as JSON can hold it."""
    told = {name: getattr(claim, name) for name in _CLAIM_FIELDS}
    return {**told, "payload": claim.payload.decode("latin-1"), "extra": claim.extra.decode("latin-1")}


def claim_from_dict(told: Mapping[str, Any]) -> Claim:
    """Return what `claim_as_dict` was given."""
    return Claim(
        **{**told, "payload": told["payload"].encode("latin-1"), "extra": told["extra"].encode("latin-1")},
    )


def outcome_as_dict(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome, without its claim, as JSON can hold it."""
    return {
        "kind": outcome.kind,
        "duration_ms": outcome.duration_ms,
        "result": None if outcome.result is None else outcome.result.decode(),
        "result_too_large": outcome.result_too_large,
        "delay_ms": outcome.delay_ms,
        "reason": outcome.reason,
        "error": None if outcome.error is None else list(outcome.error),
        "disposition": outcome.disposition.value,
        "max_attempts": outcome.max_attempts,
    }


def outcome_from_dict(claim: Claim, told: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a claim."""
    return Outcome(
        **{
            **told,
            "claim": claim,
            "result": None if told["result"] is None else told["result"].encode(),
            "error": None if told["error"] is None else ErrorInfo(*told["error"]),
            "disposition": Disposition(told["disposition"]),
        }
    )
