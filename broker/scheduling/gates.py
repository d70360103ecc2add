"""Gates: what must be open for a task to begin. One for each resource, type and tenant.

Invariants:
- `used` counts the running tasks that hold a unit, and is never below zero.
- Nothing passes a gate that is full, paused or out of tokens. One whose limit fell below its use
  stops nothing and lets nothing pass.
- What met a closed gate is parked there, and nothing looks at it again before the gate opens.
"""

from __future__ import annotations

from typing import Protocol

from broker.scheduling.rates import Bucket
from broker.settings import Rate


class Parked(Protocol):
    """What can wait at a gate. `gate` is the one where it does."""

    gate: Gate | None

    def enter(self) -> None:
        """Take part again."""
        ...


class Gate:
    """A limit, a pause and a rate of one resource, type or tenant; each may be missing."""

    __slots__ = ("alarm_ms", "bucket", "kind", "lanes", "limit", "name", "parked", "paused", "used")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.limit: int | None = None
        self.paused = False
        self.bucket: Bucket | None = None
        self.alarm_ms: int | None = None
        """When it is looked at again because its rate lets one more through."""
        self.used = 0
        self.lanes = 0
        """How many lanes lead through it."""
        self.parked: dict[Parked, None] = {}

    @property
    def idle(self) -> bool:
        """Whether forgetting it would change nothing."""
        settings = self.limit is not None or self.paused or self.bucket is not None
        return not (settings or self.used or self.lanes or self.parked)

    def has_room(self) -> bool:
        """Whether one more may pass, as far as limit and pause go."""
        return not self.paused and (self.limit is None or self.used < self.limit)

    def opens(self, now_ms: int) -> bool:
        """Whether one more may pass."""
        if self.paused or (self.limit is not None and self.used >= self.limit):
            return False
        return self.bucket is None or self.bucket.ready(now_ms)

    def park(self, item: Parked) -> None:
        """Let an item wait until the gate opens."""
        assert item.gate is None
        item.gate = self
        self.parked[item] = None

    def leave(self, item: Parked) -> None:
        """Let an item wait no more; it has gone."""
        assert item.gate is self
        item.gate = None
        del self.parked[item]

    def wake(self) -> None:
        """Let all that is parked take part again."""
        parked, self.parked = self.parked, {}
        for item in parked:
            item.gate = None
        for item in parked:
            item.enter()

    def use(self) -> None:
        """One passes."""
        self.used += 1
        if self.bucket is not None:
            self.bucket.use()

    @property
    def room(self) -> int | None:
        """How many more it lets pass at once; None: any number. One at a time if it has a rate."""
        if self.bucket is not None:
            return 1
        return None if self.limit is None else self.limit - self.used

    def use_many(self, count: int) -> None:
        """So many pass, no more than there is room for."""
        assert self.bucket is None and count <= (self.room or count)
        self.used += count

    def release(self, count: int = 1) -> None:
        """So many that passed have ended."""
        assert self.used >= count
        self.used -= count

    def set_rate(self, rate: Rate | None) -> None:
        """Another rate, or none. What waits for the old one is to be looked at anew."""
        self.alarm_ms = None
        if rate is None:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = Bucket(rate)
        else:
            self.bucket.set(rate)
