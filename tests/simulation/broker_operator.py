"""What operators of a broker do while it works: they change its settings and mend its tasks.

Invariants:
- The oracle learns of each possible change before the request for it is sent.
- In the end nothing is paused or held back by a rate, and no schedule is left.
"""

import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from broker.commands import Schedule, Spec
from broker.errors import BrokerUnavailable
from broker.service import Broker
from broker.settings import Limit, Mapping, Pause, Rate, Setting, TenantLimits
from broker.task import Backoff
from tests.simulation.broker_oracle import PRESS_MOST, RESOURCES, BrokerOracle

PAUSED: Final = ("type:mow", "tenant:ann", "tenant:dan")
RATED: Final = ("tenant:bob", "type:plough", "resource:database")
FOR_EVER_MS: Final = 10**12
BACKOFF: Final = Backoff(100, 200, 1_000, 20)
_INTERVALS_MS: Final = (700, 3_000)
_SOME: Final = 3

Call = Callable[[Broker], Coroutine[Any, Any, Any]]


class Asking(Protocol):
    """A client through whom an operator asks."""

    async def once(self, call: Call) -> bool:
        """Ask once; whether it is known to be done."""
        ...

    async def until_done(self, call: Call) -> Any:
        """Ask until somebody has done it."""
        ...


class Rhythm(NamedTuple):
    """When a schedule is due: at `first_ms` and after each interval."""

    first_ms: int
    interval_ms: int


class Operator:
    """One operator."""

    def __init__(self, client: Asking, oracle: BrokerOracle, rng: random.Random) -> None:
        self.rhythms: dict[str, Rhythm] = {}
        self._client = client
        self._oracle = oracle
        self._rng = rng
        self._changing = 0
        """Changes of a limit that may be under way."""

    async def act(self) -> None:
        """Do one random action."""
        deeds = (
            *(self._pause, self._weigh, self._rate, self._map, self._limit),
            *(self._schedule, self._begin_anew, self._remove),
        )
        await self._rng.choice(deeds)()

    async def end(self) -> None:
        """Remove everything that keeps a task from running."""
        for name in PAUSED:
            await self._client.until_done(setting("pause", name, None))
        for name in RATED:
            await self._client.until_done(setting("rate", name, None))
        for name in self.rhythms:
            await self._client.until_done(_without_schedule(name))

    # Settings

    async def _pause(self) -> None:
        name = self._rng.choice(PAUSED)
        value = None if self._rng.random() < 0.5 else Pause("drawn")
        await self._client.once(setting("pause", name, value))

    async def _weigh(self) -> None:
        rng = self._rng
        limits = TenantLimits(rng.choice([0.5, 2.0]), rng.choice([0, 1]))
        await self._client.once(setting("tenant", rng.choice(list(RESOURCES)), limits))

    async def _rate(self) -> None:
        rng = self._rng
        value = None if rng.random() < 0.5 else Rate(rng.choice([0.5, 5.0]), rng.choice([1, 4]))
        await self._client.once(setting("rate", rng.choice(RATED), value))

    async def _map(self) -> None:
        rng = self._rng
        resources = rng.choice([("press",), (), ("press", "mail")])
        await self._client.once(
            setting("mapping", "eve", Mapping(rng.choice([1, 1, 2]), resources))
        )

    async def _limit(self) -> None:
        """Change a limit, and tell the oracle from when on it counts."""
        limit = self._rng.randint(1, PRESS_MOST)

        async def change(broker: Broker) -> None:
            # At the broker: a call that comes late changes it late, too.
            self._oracle.press = None
            self._changing += 1
            try:
                await broker.set("resource", "press", Limit(limit))
            except BrokerUnavailable:
                self._changing -= 1
                raise
            self._changing -= 1
            if not self._changing:
                # Tasks that are assigned from here on count under this limit.
                self._oracle.press = limit, broker.term.time.now_ms()

        await self._client.until_done(change)

    # Schedules and tasks

    async def _schedule(self) -> None:
        """Declare a schedule, as programs do each time they start."""
        number = self._rng.randrange(len(_INTERVALS_MS))
        name, interval_ms = f"rhythm {number}", _INTERVALS_MS[number]
        known, paused = self.rhythms.get(name), self._rng.random() < 0.5

        async def declare(broker: Broker) -> None:
            first_ms = broker.term.time.now_ms() + interval_ms
            self.rhythms.setdefault(name, Rhythm(first_ms, interval_ms))
            spec = Spec(
                "plough",
                "dan",
                name.encode(),
                backoff=BACKOFF,
                attempts_max=0,
                retention_ms=FOR_EVER_MS,
                dead_retention_ms=FOR_EVER_MS,
            )
            first_ms = self.rhythms[name].first_ms
            schedule = Schedule(name, spec, interval_ms=interval_ms, next_due_ms=first_ms)
            if known is None or not paused:
                await broker.set_schedule(schedule)
            if known is not None:
                await broker.pause_schedule(name, paused=paused)

        await self._client.once(declare)

    async def _begin_anew(self) -> None:
        oracle, rng = self._oracle, self._rng
        ids = [task_id for task_id in oracle.accepted.values() if task_id not in oracle.deleted]
        for task_id in rng.sample(ids, min(_SOME, len(ids))):
            oracle.anew[task_id] += 1
            await self._client.once(_retry(task_id))

    async def _remove(self) -> None:
        oracle, rng = self._oracle, self._rng
        ids = list(oracle.accepted.values())[:-_SOME]
        if ids:
            task_id = rng.choice(ids)
            oracle.deleted.add(task_id)
            await self._client.once(lambda broker: broker.delete([task_id]))


def setting(kind: str, name: str, value: Setting | None) -> Call:
    """The call that changes a setting."""
    return lambda broker: broker.set(kind, name, value)


def _retry(task_id: int) -> Call:
    return lambda broker: broker.retry([task_id], "operator")


def _without_schedule(name: str) -> Call:
    async def delete(broker: Broker) -> None:
        known = {schedule.name for schedule in await broker.schedules()}
        if name in known:
            await broker.delete_schedule(name)

    return delete
