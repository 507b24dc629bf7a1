"""How long to wait: pure arithmetic, with the source of randomness passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential delay with a cap and a uniform jitter on both sides.

    base_s: the delay after the first failure, seconds.
    max_s: no delay before jitter is longer, seconds.
    jitter: 0.2 means a factor drawn uniformly from 0.8 to 1.2.
    """

    base_s: float
    max_s: float
    jitter: float

    def delay_s(self, attempt: int, uniform: Callable[[], float]) -> float:
        """Return the seconds to wait after attempt number `attempt` (1 is the first) has failed.

        uniform: returns a float in [0, 1), `random.random` for example.
        Never overflows: the exponent is cut where the cap is certain to hold.
        """
        exponent = min(max(attempt, 1) - 1, 1000)
        nominal = min(self.max_s, self.base_s * 2.0**exponent)
        return nominal * (1.0 - self.jitter + 2.0 * self.jitter * uniform())
