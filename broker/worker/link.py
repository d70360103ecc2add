"""A worker's link to the broker: what is to be said over it, and what was said and not heard yet.

Invariants:
- Messages have growing numbers, and go in the order of those.
- What ended gathers while something is being sent; one message takes a bounded part of it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.connection import (
    Attempt,
    Completion,
    Done,
    FromWorker,
    Heartbeat,
    Leaving,
    WorkerLink,
)
from broker.errors import BrokerError
from engine.ports.clock import Clock

_DONE_ITEMS_MAX: Final = 1_000
_DONE_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(slots=True)
class Beat:
    """When a heartbeat was sent."""

    sent_s: float


class Link:
    """One link: what is to be said over it, and what was said and not acknowledged yet."""

    def __init__(self, inner: WorkerLink, clock: Clock) -> None:
        self.inner = inner
        self.session = 0
        self._clock = clock
        self._sequence = 0
        self._said: list[FromWorker] = []
        self._completions: list[Completion] = []
        self._waiting: dict[int, Beat | list[Attempt]] = {}
        self._something = asyncio.Event()
        self.left = False
        """Whether the broker has heard that the worker drains: it sends nothing more here."""
        self._leaving = 0
        self._last = 0
        self._over = asyncio.Event()

    def say(self, make: Callable[[int], FromWorker]) -> int:
        """Say a message, made with its number."""
        self._sequence += 1
        message = make(self._sequence)
        self._said.append(message)
        if isinstance(message, Heartbeat):
            self._waiting[self._sequence] = Beat(self._clock.monotonic())
        self._something.set()
        return self._sequence

    def tell(self, completions: list[Completion]) -> None:
        """Tell of ends."""
        if completions:
            self._completions += completions
            self._something.set()

    async def write(self) -> None:
        """Send what gathers, as long as the link lives. Raises `BrokerError`."""
        while True:
            await self._something.wait()
            self._something.clear()
            while self._said or self._completions:
                self._gather()
                said, self._said = self._said, []
                await self.inner.send(said)

    def acked(self, sequence: int) -> Beat | list[Attempt] | None:
        """What was said under a number that is acknowledged now."""
        if sequence == self._leaving:
            self.left = True
        elif sequence == self._last:
            self._over.set()
        return self._waiting.pop(sequence, None)

    def leave(self) -> None:
        """Say that the worker drains."""
        self._leaving = self.say(lambda sequence: Leaving(sequence))

    async def farewell(self, limit_ms: int) -> None:
        """Say that the session is over, and wait a while for the answer."""
        self._last = self.say(lambda sequence: Leaving(sequence, ended=True))
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._over.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Let go of it."""
        try:
            await self.inner.close()
        except BrokerError:
            return

    def _gather(self) -> None:
        """Make a message of what ended, as much as one takes."""
        completions = self._completions
        if not completions:
            return
        count, size_bytes = 0, 0
        for each in completions[:_DONE_ITEMS_MAX]:
            size_bytes += len(each.result) + len(each.error)
            if count and size_bytes > _DONE_BYTES_MAX:
                break
            count += 1
        told, self._completions = completions[:count], completions[count:]
        sequence = self.say(lambda sequence: Done(sequence, self.session, told))
        self._waiting[sequence] = [(each.id, each.attempt) for each in told]
