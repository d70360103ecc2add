"""`/api/v1/rates`: what went on in the last five minutes, for charts.

Tasks are what the broker's leader says has ended, by tenant; entries and bytes are what each bookie
says it has taken since it started. Both are asked for every five seconds, by whichever server is
looked at: in its memory they stay for five minutes.

Invariants:
- What was not answered is a gap (null), never a nought; a counter that begins anew is a gap, too.
- Nobody sees the numbers of a tenant whose tasks they may not see.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec

from broker.access import Asking
from broker.errors import BrokerError
from broker.http.routes import Told
from engine.errors import EngineError
from engine.metadata.bookies import Bookies
from herdbook.http.house import House
from herdbook.http.routes import KNOWN, Ask, Route

INTERVAL_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 2.0
_Series = dict[str, list[float | None]]
_logger: Final = logging.getLogger(__name__)


class RatesFacts(msgspec.Struct):
    """A second's worth at each of some moments, by name; null where it is not known.

    `times` are milliseconds of the wall clock, `appends` entries and `bytes` bytes by bookie,
    `tasks` ended tasks by tenant.
    """

    interval_ms: int
    times: list[int]
    appends: dict[str, list[float | None]]
    bytes: dict[str, list[float | None]]
    tasks: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at a moment. What was not answered is not in it."""

    wall_ms: int
    at_s: float
    entries: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    ended: Mapping[str, int] | None = None


class Sampler:
    """Asks for counters, again and again."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                # Charts are no reason to end anything.
                _logger.exception("the counters could not be looked at")
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Keep the counters as they are now."""
        house = self._house
        clock = house.ledgers.clock
        bookies, ended = await asyncio.gather(_of_bookies(house), _of_broker(house))
        entries = {name: each[0] for name, each in bookies.items()}
        sizes = {name: each[1] for name, each in bookies.items()}
        house.samples.append(Sample(clock.wall_ms(), clock.monotonic(), entries, sizes, ended))


async def _of_bookies(house: House) -> dict[str, tuple[int, int]]:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            names = list(await Bookies(house.ledgers.store).available())
    except (EngineError, TimeoutError):
        return {}

    async def one(name: str) -> tuple[str, tuple[int, int]] | None:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                info = await (await house.ledgers.transport.connect(name)).info()
        except (EngineError, TimeoutError):
            return None
        return name, (info.taken_entries, info.taken_bytes)

    return dict(filter(None, await asyncio.gather(*map(one, names))))


async def _of_broker(house: House) -> dict[str, int] | None:
    """What has ended, by tenant; None: nobody told."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await house.desk.calls.ended()
    except (BrokerError, TimeoutError):
        return None


def rates_of(samples: list[Sample], who: Asking) -> RatesFacts:
    """What happened between samples, as far as somebody may see it."""
    pairs = list(pairwise(samples))
    tenants = {name for each in samples for name in each.ended or () if who.sees(name)}
    bookies = {name for each in samples for name in each.entries} if who.admin else set[str]()
    tasks = {
        name: [
            _rate(_counted(a.ended, name), _counted(b.ended, name), b.at_s - a.at_s)
            for a, b in pairs
        ]
        for name in sorted(tenants)
    }
    return RatesFacts(
        int(INTERVAL_S * 1000),
        [after.wall_ms for _, after in pairs],
        _by_bookie(bookies, [(a.entries, b.entries, b.at_s - a.at_s) for a, b in pairs]),
        _by_bookie(bookies, [(a.bytes, b.bytes, b.at_s - a.at_s) for a, b in pairs]),
        tasks,
    )


def _by_bookie(
    names: set[str], pairs: list[tuple[Mapping[str, int], Mapping[str, int], float]]
) -> _Series:
    return {
        name: [_rate(before.get(name), after.get(name), gap_s) for before, after, gap_s in pairs]
        for name in sorted(names)
    }


def _counted(ended: Mapping[str, int] | None, tenant: str) -> int | None:
    """A tenant of which nobody has heard yet has ended nothing."""
    return None if ended is None else ended.get(tenant, 0)


def _rate(before: int | None, after: int | None, gap_s: float) -> float | None:
    """So much a second."""
    if before is None or after is None or after < before or gap_s <= 0:
        return None
    return round((after - before) / gap_s, 3)


async def show_rates(house: House, ask: Ask) -> Told:
    """The last five minutes."""
    return Told(rates_of(list(house.samples), Asking.of(ask.who)))


ROUTES: Final = (
    Route(
        "GET",
        "/rates",
        "show_rates",
        "What went on in the last five minutes.",
        KNOWN,
        show_rates,
        reply=RatesFacts,
    ),
)
