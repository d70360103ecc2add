"""Writes to a table of 100,000 rows: every one a commit of its own, durable when it is answered.

Invariants:
- A caller never has two statements under way; more load means more callers.
- Callers update different rows: what is measured is the way of a write, not the wait for a lock.
- The peers do the same statements, on the same disk, in the same run. They have one copy of all,
  so writes in three copies have no peer.
- The limit is the disk's own: as many files as copies, as many synced entries of 1 KiB at a time as
  there are callers.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import herd
from benchmarks import disk_limit
from benchmarks.herd_peers import (
    Peer,
    at_once,
    batches,
    create,
    insert,
    peers,
    spread,
    update,
)
from benchmarks.result import Result
from benchmarks.setting import Setting, run
from herd.aio import AsyncConnection

SUBJECT: Final = "herd"
CALLERS_MANY: Final = 64
KEY: Final = "BIGINT"
Measure = Callable[[Path], float]


def table_rows(setting: Setting) -> int:
    """How many rows the table has."""
    return setting.size(100_000, 5_000)


def update_one(setting: Setting) -> list[Result]:
    """One task that awaits one UPDATE at a time."""
    return _updates(setting, "update-pk-one", 1, setting.size(5_000, 200), bookies=1)


def update_many(setting: Setting) -> list[Result]:
    """64 tasks, each with a connection."""
    count = setting.size(100_000, 1_280)
    return _updates(setting, "update-pk-many", CALLERS_MANY, count, bookies=1)


def update_one_3(setting: Setting) -> list[Result]:
    """One task; three copies, two of them acknowledged."""
    return _updates(setting, "update-pk-one-3", 1, setting.size(3_000, 100), bookies=3)


def update_many_3(setting: Setting) -> list[Result]:
    """64 tasks; three copies, two of them acknowledged."""
    count = setting.size(100_000, 1_280)
    return _updates(setting, "update-pk-many-3", CALLERS_MANY, count, bookies=3)


def update_threads(setting: Setting) -> list[Result]:
    """64 threads, each with a connection of PEP 249."""
    rows, count = table_rows(setting), setting.size(50_000, 640)
    keys = spread(count, rows)

    def measure(folder: Path) -> float:
        with herd.open_herd(folder) as opened:
            fill(opened, rows)

            def work(place: int) -> None:
                with opened.connect(autocommit=True) as connection:
                    cursor, statement = connection.cursor(), update("?")
                    for key in keys[place::CALLERS_MANY]:
                        cursor.execute(statement, (key,))

            return _median(setting, lambda: count / at_once(CALLERS_MANY, work))

    value, limit = _beside_limit(setting, 1, CALLERS_MANY, measure)
    peers_rates = _peers(setting, rows, lambda peer: peer.update_rate(keys, CALLERS_MANY))
    return [_result("update-pk-threads", value, "updates/s", limit, peers_rates)]


def insert_batch(setting: Setting) -> list[Result]:
    """`executemany` with 10,000 rows a transaction."""
    rows, count = table_rows(setting), setting.size(200_000, 10_000)
    starts = [rows + count * turn for turn in range(setting.rounds)]

    def measure(folder: Path) -> float:
        with herd.open_herd(folder) as opened:
            fill(opened, rows)
            return statistics.median([_insert(opened, start, count) for start in starts])

    with setting.scratch() as folder:
        value = measure(folder / "data")
    following = iter(starts * 2)
    rates = _peers(setting, rows, lambda peer: peer.insert_rate(next(following), count), rounds=1)
    return [_result("insert-batch", value, "rows/s", None, rates)]


def fill(opened: herd.Herd, rows: int) -> None:
    """Make the table."""
    with opened.connect(autocommit=True) as connection:
        connection.execute(create(KEY))
        for batch in batches(0, rows):
            connection.executemany(insert("?"), batch)


def _insert(opened: herd.Herd, first: int, count: int) -> float:
    given = list(batches(first, count))
    with opened.connect(autocommit=True) as connection:
        start_s = time.perf_counter()
        for batch in given:
            connection.executemany(insert("?"), batch)
        return count / (time.perf_counter() - start_s)


def _updates(
    setting: Setting, scenario: str, callers: int, count: int, bookies: int
) -> list[Result]:
    rows = table_rows(setting)
    keys = spread(count, rows)

    async def caller(connection: AsyncConnection, place: int) -> None:
        execute, statement = connection.cursor().execute, update("?")
        for key in keys[place::callers]:
            await execute(statement, (key,))

    async def once(connections: list[AsyncConnection]) -> float:
        start_s = time.perf_counter()
        await asyncio.gather(*[caller(one, place) for place, one in enumerate(connections)])
        return count / (time.perf_counter() - start_s)

    async def work(folder: Path) -> float:
        async with herd.open_folder(folder, bookies=bookies) as opened:
            await _fill(await opened.connect(autocommit=True), rows)
            connections = [await opened.connect(autocommit=True) for _ in range(callers)]
            return await setting.median(lambda: once(connections))

    value, limit = _beside_limit(setting, bookies, callers, lambda folder: run(work(folder)))
    rates = {} if bookies > 1 else _peers(setting, rows, lambda peer: _update(peer, keys, callers))
    return [_result(scenario, value, "updates/s", limit, rates)]


def _update(peer: Peer, keys: list[int], callers: int) -> float:
    # Who has no event loop has threads; who has one writer is quickest without either.
    return peer.update_rate(keys, 1 if peer.one_connection else callers)


async def _fill(connection: AsyncConnection, rows: int) -> None:
    await connection.execute(create(KEY))
    for batch in batches(0, rows):
        await connection.executemany(insert("?"), batch)
    await connection.close()


def _peers(
    setting: Setting, rows: int, measure: Callable[[Peer], float], *, rounds: int | None = None
) -> dict[str, float]:
    with peers(setting, rows) as found:
        return {
            peer.name: statistics.median([measure(peer) for _ in range(rounds or setting.rounds)])
            for peer in found
        }


def _beside_limit(
    setting: Setting, files: int, callers: int, measure: Measure
) -> tuple[float, float]:
    in_flight_bytes = callers * disk_limit.ENTRY_BYTES
    with setting.scratch() as folder:
        before = disk_limit.append_rate(folder, files, in_flight_bytes, setting.limit_s)
        value = measure(folder / "data")
        after = disk_limit.append_rate(folder, files, in_flight_bytes, setting.limit_s)
    return value, max(before, after)


def _median(setting: Setting, measure: Callable[[], float]) -> float:
    return statistics.median([measure() for _ in range(setting.rounds)])


def _result(
    scenario: str, value: float, unit: str, limit: float | None, rates: dict[str, float]
) -> Result:
    rounded = {name: float(round(rate)) for name, rate in rates.items()}
    return Result(
        SUBJECT, scenario, round(value), unit, None if limit is None else round(limit), rounded
    )
