"""Reads: single rows by their key in the caller's thread, and an aggregate over a million rows.

Invariants:
- Rows are read by one thread, one after the other, all over the table.
- `cold` is the first query of a process that has just opened the folder, after a checkpoint and a
  clean stop. Among updates a query is asked again and again while one task makes 1,000 a second.
- Times are those of a query from the call to its rows; of several the median counts.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import herd
from benchmarks.herd_peers import AGGREGATE, Peer, peers, select, spread, update
from benchmarks.herd_updates import SUBJECT, fill, table_rows
from benchmarks.result import Result
from benchmarks.setting import Setting, note, run
from herd.aio import AsyncConnection

QUERIES: Final = 7
UPDATES_PER_SECOND: Final = 1_000
_STEP_S: Final = 0.005


def get_kv(setting: Setting) -> list[Result]:
    """`table.get(key)`: rows as dictionaries, without SQL."""

    def measure(opened: herd.Herd, keys: list[int]) -> float:
        get = opened.table("accounts").get
        start_s = time.perf_counter()
        for key in keys:
            assert get(key) is not None
        return len(keys) / (time.perf_counter() - start_s)

    return _rows_read(setting, "get-kv", setting.size(300_000, 10_000), measure)


def select_pk(setting: Setting) -> list[Result]:
    """`SELECT … WHERE` the key, by a cursor of PEP 249."""

    def measure(opened: herd.Herd, keys: list[int]) -> float:
        with opened.connect(autocommit=True) as connection:
            cursor, statement = connection.cursor(), select("?")
            cursor.execute(statement, (0,))
            start_s = time.perf_counter()
            for key in keys:
                assert cursor.execute(statement, (key,)).fetchone() is not None
            return len(keys) / (time.perf_counter() - start_s)

    return _rows_read(setting, "select-pk", setting.size(100_000, 5_000), measure)


def _rows_read(
    setting: Setting,
    scenario: str,
    count: int,
    measure: Callable[[herd.Herd, list[int]], float],
) -> list[Result]:
    rows = table_rows(setting)
    keys = spread(count, rows)
    with setting.scratch() as folder, herd.open_herd(folder / "data") as opened:
        fill(opened, rows)
        value = statistics.median([measure(opened, keys) for _ in range(setting.rounds)])
    with peers(setting, rows) as found:
        rates = {peer.name: float(round(_select_rate(setting, peer, keys))) for peer in found}
    return [Result(SUBJECT, scenario, round(value), "rows/s", None, rates)]


def _select_rate(setting: Setting, peer: Peer, keys: list[int]) -> float:
    return statistics.median([peer.select_rate(keys) for _ in range(setting.rounds)])


def scan_aggregate(setting: Setting) -> list[Result]:
    """An aggregate in groups over all rows: cold, warm, and among updates."""
    rows = setting.size(1_000_000, 20_000)
    seconds = 10.0 if not setting.quick else 1.0
    with setting.scratch() as folder:
        data = folder / "data"
        with herd.open_herd(data) as opened:
            fill(opened, rows)
            with opened.connect(autocommit=True) as connection:
                connection.execute("CHECKPOINT")
        times = run(_scans(data, rows, seconds))
    with peers(setting, rows) as found:
        beside = {
            peer.name: round(statistics.median([peer.aggregate_s() for _ in range(3)]), 4)
            for peer in found
        }
    return [
        Result(SUBJECT, f"scan-aggregate-{name}", round(value, 4), "s", None, beside)
        for name, value in times.items()
    ]


async def _scans(folder: Path, rows: int, seconds: float) -> dict[str, float]:
    async with herd.open_folder(folder) as opened:
        reader = await opened.connect(autocommit=True)
        writer = await opened.connect(autocommit=True)
        cold_s, answer = await _scan(reader)
        warm = [await _scan(reader) for _ in range(QUERIES)]
        assert all(again == answer for _, again in warm)
        updating = asyncio.create_task(_update(writer, rows, seconds))
        beside = []
        while not updating.done():
            beside.append((await _scan(reader))[0])
        rate = await updating
        note(f"{len(beside)} queries beside {rate:.0f} updates/s, slowest {max(beside):.3f} s")
        return {
            "cold": cold_s,
            "warm": statistics.median([taken_s for taken_s, _ in warm]),
            "updates": statistics.median(beside),
        }


async def _scan(connection: AsyncConnection) -> tuple[float, list[Any]]:
    start_s = time.perf_counter()
    answer = await (await connection.execute(AGGREGATE)).fetchall()
    return time.perf_counter() - start_s, answer


async def _update(connection: AsyncConnection, rows: int, seconds: float) -> float:
    """Updates at an even pace; returns how many a second there were."""
    statement, start_s, done = update("?"), time.perf_counter(), 0
    while (passed_s := time.perf_counter() - start_s) < seconds:
        due = int(passed_s * UPDATES_PER_SECOND) - done
        keys = [(done + place) * 7_919 % rows for place in range(due)]
        await asyncio.gather(*[connection.execute(statement, (key,)) for key in keys])
        done += due
        await asyncio.sleep(_STEP_S)
    return done / seconds
