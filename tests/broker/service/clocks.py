"""Clocks of tests: one set by hand, one of the running loop."""

import asyncio


class HandClock:
    """Both readings stand until they are moved."""

    def __init__(self, wall_ms: int = 1_000_000) -> None:
        self.seconds = 100.0
        self.wall = wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return self.wall

    def pass_s(self, seconds: float) -> None:
        """Let time pass on both."""
        self.seconds += seconds
        self.wall += int(seconds * 1000)


class LoopClock:
    """Time as the running loop has it: virtual where that is."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._loop = asyncio.get_running_loop()
        self.wall_start_ms = wall_ms
        self.ahead_s = 0.0
        """By how much it is ahead of the loop's timers, as when the loop was busy."""

    def monotonic(self) -> float:
        return self._loop.time() + self.ahead_s

    def wall_ms(self) -> int:
        return self.wall_start_ms + int(self._loop.time() * 1000)
