"""Time as an argument: the only door to clocks.

Timers are the event loop's own (`loop.call_later`, `asyncio.sleep`), which run in virtual time
in the simulation; a component that needs to *read* a time takes a `Clock`.
"""

import time
from functools import partial
from typing import Final, Protocol


class Clock(Protocol):
    """Two readings. Neither ever blocks."""

    def monotonic(self) -> float:
        """Seconds since some start; never goes back, nor stands while the machine sleeps.

        For deadlines and leases.
        """
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump. For showing to people only."""
        ...


# A lease must not outlast the sleep of its machine, which the usual monotonic clock leaves out.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks; where the system can, the steady one counts suspended time, too."""

    # Hot paths read it several times an append: what is called is C.
    monotonic = staticmethod(partial(time.clock_gettime, _STEADY))

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
