"""A broker on a log whose speed the test controls.

Invariants:
- Proposals made while the log is held are applied when the test says so, in their order.
- Time advances only when the test advances it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

from broker.machine import BrokerMachine
from broker.memory import MemoryReplica, SteppedClock
from broker.service import Broker
from broker.settings import BrokerSettings
from engine.errors import NotLeader
from engine.replica import ReadRows
from engine.replica.confirmed_reads import note_write, will_be_confirmed
from engine.replica.leading import Waiter

T = TypeVar("T")


class HeldReplica(MemoryReplica):
    """A replica whose log may be held. It is its own term, for `ConfirmedReads`."""

    lease_ms = 1_000
    next_batch = 1
    taken_batch = 0

    def __init__(self, machine: BrokerMachine) -> None:
        super().__init__(machine)
        self.held = False
        self.waiting: list[tuple[bytes, Waiter]] = []
        self.leased = True
        self.deposed = False
        self.confirmed = 0
        """How many blocks of reads the log has confirmed."""
        self.proposed = 0
        self._turned = asyncio.Event()

    def lead(self, term: int) -> None:
        """Lead in this term from now on; 0: another replica leads."""
        self.term = term
        self._turned.set()

    async def until_other_term(self, term: int) -> int:
        """See `Replicated`."""
        while term == self.term:
            self._turned.clear()
            await self._turned.wait()
        return self.term

    def may_answer(self) -> bool:
        """Whether its lease holds, as the test has it."""
        return self.leased and super().may_answer()

    def read_now(self, look: Callable[[ReadRows], T]) -> T:
        """Without a lease only inside `ConfirmedReads`."""
        if not self.leased and not will_be_confirmed(self):
            raise NotLeader("its lease has run out")
        return super().read_now(look)

    async def confirm(self) -> None:
        """As a log that is taken over, or takes an entry."""
        if self.deposed:
            raise NotLeader("another replica leads")
        self.confirmed += 1

    def propose_for(self, command: bytes, waiter: Waiter, level: int = 1) -> None:
        """Keep it, while the log is held."""
        self.proposed += 1
        note_write()
        if self.held:
            self.waiting.append((command, waiter))
        else:
            super().propose_for(command, waiter, level)

    def apply(self, count: int) -> None:
        """Apply so many of the commands that wait, in one turn."""
        now, self.waiting = self.waiting[:count], self.waiting[count:]
        before, self._proposed = self._proposed, now
        self._apply()
        self._proposed = before + self._proposed

    def release(self) -> None:
        """Stop holding the log."""
        self.held = False
        self.apply(len(self.waiting))


class HeldBroker:
    """A broker on such a log."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.clock = SteppedClock()
        self.machine = BrokerMachine()
        self.replica = HeldReplica(self.machine)
        self.broker = Broker(
            self.clock,
            Random(1),
            self.machine,
            settings or BrokerSettings(),
            later=self.clock.later,
        )

    async def turns(self, count: int = 12) -> None:
        """Run everything that can run at this moment, while the log is held."""
        for _ in range(count):
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Release the log, and wait until nothing is in flight."""
        self.replica.release()
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            self.replica.release()
            serving = self.broker.serving
            idle = serving and self.broker.term.dispatching.idle and self.broker.term.proposing.idle
            quiet = quiet + 1 if idle and self.replica.idle else 0

    async def advance(self, milliseconds: int) -> None:
        """Let time pass, with the log as it is."""
        until_ms = self.clock.passed_ms + milliseconds
        while self.clock.step(until_ms):
            await self.turns()
        await self.turns()


@asynccontextmanager
async def held_broker(settings: BrokerSettings | None = None) -> AsyncIterator[HeldBroker]:
    """A broker that serves; its log is held when the test says so."""
    made = HeldBroker(settings)
    made.broker.start(made.replica)
    await made.broker.until_serving(60_000)
    try:
        yield made
    finally:
        made.replica.release()
        await made.broker.close()
