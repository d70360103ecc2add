"""Expiry times that one machine writes and another one checks: of pins, uploads and tokens.

Invariants:
- Every check allows for the difference between the two clocks, so nothing expires before its time
  by the writer's clock, and everything lasts a little longer.
- Nothing else compares such a time with a clock.
"""

from typing import Final

CLOCK_DIFFERENCE_MS: Final = 10_000
"""How far the wall clocks of two machines may differ, in milliseconds."""


def is_over(expires_ms: int, now_ms: int, clock_difference_ms: int = CLOCK_DIFFERENCE_MS) -> bool:
    """Whether a time by any machine's wall clock has passed by all of their clocks.

    All times are in milliseconds since 1970.
    """
    return expires_ms + clock_difference_ms <= now_ms
