"""Moments that one machine writes and another one judges: pins, uploads, tokens.

Invariants:
- Whoever asks whether such a moment is over allows for the difference between the two clocks: what
  was to last until then lasts until then by the clock of whoever wrote it, and a little longer.
- Nothing else compares such a moment with a clock.
"""

from typing import Final

CLOCK_DIFFERENCE_MS: Final = 10_000
"""How far the wall clocks of two machines may be apart, in milliseconds."""


def is_over(expires_ms: int, now_ms: int, clock_difference_ms: int = CLOCK_DIFFERENCE_MS) -> bool:
    """Whether a moment of somebody's wall clock has passed, by this machine's and any other's.

    All are milliseconds since 1970.
    """
    return expires_ms + clock_difference_ms <= now_ms
