"""Many durations in little memory: how many, their mean and longest, and percentiles within 5 %.

Invariants:
- Memory grows with the logarithm of the longest one, not with how many there are.
"""

from math import ceil, log
from typing import Final

import msgspec

_STEP: Final = log(1.05)


class Durations(msgspec.Struct):
    """Durations in milliseconds, counted by classes of which each reaches 5 % further.

    >>> waits = Durations()
    >>> for wait_ms in range(1, 101): waits.add(wait_ms)
    >>> waits.count, waits.longest_ms, 90 <= waits.percentile(0.9) <= 95
    (100, 100, True)
    """

    count: int = 0
    sum_ms: int = 0
    longest_ms: int = 0
    classes: dict[int, int] = {}

    def add(self, duration_ms: int) -> None:
        """Count one more; a negative one, which clocks may tell, counts as none."""
        duration_ms = max(0, duration_ms)
        self.count += 1
        self.sum_ms += duration_ms
        self.longest_ms = max(self.longest_ms, duration_ms)
        number = ceil(log(duration_ms) / _STEP) + 1 if duration_ms else 0
        self.classes[number] = self.classes.get(number, 0) + 1

    @property
    def mean_ms(self) -> int:
        """The mean, 0 of none."""
        return self.sum_ms // self.count if self.count else 0

    def percentile(self, share: float) -> int:
        """What so large a share of all do not exceed, up to 5 % more; 0 of none."""
        left = self.count * share
        for number in sorted(self.classes):
            left -= self.classes[number]
            if left <= 0:
                upper_ms = ceil(1.05 ** (number - 1)) if number else 0
                return min(upper_ms, self.longest_ms)
        return self.longest_ms
