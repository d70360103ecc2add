"""Token buckets: how many may begin in a second.

Invariants:
- Between any two moments no more begin than the burst and what the rate gives in that time.
- A clock that goes back gives nothing, and takes nothing away.
"""

from math import ceil

from broker.settings import Rate

_ROUNDING = 1e-9


class Bucket:
    """The tokens of one rate. Full at first."""

    __slots__ = ("_burst", "_filled_ms", "_per_ms", "_tokens")

    def __init__(self, rate: Rate) -> None:
        self._per_ms = rate.per_second / 1_000
        self._burst = float(rate.burst)
        self._tokens = self._burst
        self._filled_ms: int | None = None

    def set(self, rate: Rate) -> None:
        """Another rate from the next look on; what was saved stays, up to the new burst."""
        self._filled_ms = None
        self._per_ms = rate.per_second / 1_000
        self._burst = float(rate.burst)
        self._tokens = min(self._tokens, self._burst)

    def ready(self, now_ms: int) -> bool:
        """Whether one may begin."""
        if self._filled_ms is None:
            self._filled_ms = now_ms
        elif now_ms > self._filled_ms:
            gained = (now_ms - self._filled_ms) * self._per_ms
            self._tokens = min(self._burst, self._tokens + gained)
            self._filled_ms = now_ms
        return self._tokens >= 1 - _ROUNDING

    def use(self) -> None:
        """One begins."""
        assert self._tokens >= 1 - _ROUNDING
        self._tokens -= 1

    def give_back(self) -> None:
        """One did not begin after all."""
        self._tokens = min(self._burst, self._tokens + 1)

    def ready_ms(self) -> int:
        """When the next one may begin."""
        assert self._filled_ms is not None
        lacking = max(0.0, 1 - _ROUNDING - self._tokens)
        return self._filled_ms + max(1, ceil(lacking / self._per_ms))
