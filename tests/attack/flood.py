"""`python -m tests.attack.flood`: measures key reads while another user floods a served folder.

The flooding user has two connections; each sends the next statement as soon as the last one was
answered. Meanwhile another user reads one row by key, again and again. For each flood this prints
how long the reads take, and how much memory the node and its child processes use. The flood
`ordinary reads` sends the same key reads. It shows how much slower reads become just because the
machine is busy, so no attack may slow them much more.

Invariants:
- The exit status is 0 only if no read failed, the 99th percentile of the reads was at most
  `--times` times the larger of those without a flood and during `ordinary reads`, memory stayed
  within its limit, SIGTERM ended the node in time, and no acknowledged row was lost.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx

from engine import limits
from herd.settings import HerdSettings
from herd.sql.query_settings import CONNECTIONS
from herd.store import open_folder
from tests.attack.test_reader import ATTACKS, ask, asker, askers, held_bytes, served, until_served

READ: Final = "SELECT name FROM cow WHERE id = 7"
ORDINARY: Final = "ordinary reads"
ENDLESS: Final = ATTACKS["a count without end"]
FLOODS: Final = {
    ORDINARY: READ,
    **ATTACKS,
    "200,000 texts": "SELECT " + "'a'," * 200_000 + "1",
    "400,000 numbers": "SELECT " + "1," * 400_000 + "1",
    "90,000 rows": "INSERT INTO cow VALUES " + ",".join(["(1, 'a')"] * 90_000),
    "a row of 200,000": "INSERT INTO cow VALUES (" + "'a'," * 200_000 + "1)",
    "a text without end": "SELECT " + "a," * 9_000 + "'" + "x" * 900_000,
    "9,900 columns": "SELECT " + "a," * 9_900 + "1",
    "4,900 conditions": "SELECT 1 WHERE " + "a = 1 AND " * 4_900 + "b",
    "2,400 cases": "SELECT " + "CASE WHEN a THEN b ELSE c END, " * 2_400 + "1",
    "3,900 calls and an error": "SELECT " + "f(a), " * 3_900 + " FROM FROM",
    "a list of 140,000": f"SELECT name FROM cow WHERE id IN ({','.join(map(str, range(140_000)))})",
    "180,000 comments": "SELECT 1" + "/*x*/" * 180_000,
    "900,000 semicolons": "SELECT 1" + ";" * 900_000,
}
_CONNECTIONS: Final = 2
_WARM_S: Final = 2.0
_STOP_S: Final = 10.0
_NICENESS: Final = 19


def main() -> int:
    """Run all floods, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.flood", description=__doc__)
    parser.add_argument("names", nargs="*", help="the floods to run; all if none is named")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long to measure each flood")
    parser.add_argument(
        "--times", type=float, default=3.0, help="how many times as long reads may take"
    )
    arguments = parser.parse_args()
    names = arguments.names or list(FLOODS)
    with tempfile.TemporaryDirectory() as folder:
        good = _flood(Path(folder), [ORDINARY, *names], arguments.seconds, arguments.times)
        return 0 if good else 1


def _flood(folder: Path, names: list[str], seconds: float, times_max: float) -> bool:
    acknowledged: list[int] = []
    with served(folder, write=("ann",)) as (node, url):
        until_served(url)
        pid = node.process.pid
        with askers(url, "bob", "ann") as (bob, ann):
            for client in (bob, ann):
                _reads(client, 0.5)
            ask(ann, "CREATE TABLE acknowledged (n INT PRIMARY KEY)")
            alone_ms, _ = _reads(bob, seconds)
            rest_bytes = held_bytes(pid)
            allowed_bytes = rest_bytes + 1.1 * CONNECTIONS * HerdSettings().query_bytes
            alone = _hundredth(alone_ms)
            print(f"alone: p50 {_middle(alone_ms):.1f} ms, p99 {alone:.1f} ms", flush=True)
            good, ordinary = True, 0.0
            for name in dict.fromkeys(names):
                with ThreadPoolExecutor(1) as watcher, _Flood(url, FLOODS[name]) as flood:
                    watched = watcher.submit(_most_bytes, pid, seconds)
                    if ask(
                        ann, f"INSERT INTO acknowledged VALUES ({len(acknowledged)})"
                    ).is_success:
                        acknowledged.append(len(acknowledged))
                    found_ms, failed = _reads(bob, seconds)
                most_bytes, slow = watched.result(), _hundredth(found_ms)
                ordinary = slow if name == ORDINARY else ordinary
                passed = slow <= times_max * max(alone, ordinary)
                passed = passed and not failed and most_bytes <= allowed_bytes
                good = good and passed
                print(
                    f"{name}: p50 {_middle(found_ms):.1f} ms, p99 {slow:.1f} ms, "
                    f"{slow / alone:.1f} times alone, {slow / ordinary:.1f} times beside ordinary "
                    f"reads; {failed} failed; {most_bytes // limits.MIB} MiB; answers "
                    f"{dict(flood.answers)}{'' if passed else '  TOO MUCH'}",
                    flush=True,
                )
        with ThreadPoolExecutor(6) as threads, askers(url, *["eve"] * 6) as eves:
            for eve in eves:
                threads.submit(ask, eve, ENDLESS, 60_000)
            _wait(1.0)
            begun_s = time.monotonic()
            node.end(signal.SIGTERM)
            took_s = time.monotonic() - begun_s
        print(f"SIGTERM during six endless queries: the node ended in {took_s:.1f} s")
    lost = asyncio.run(_lost(folder / "data", acknowledged))
    print(f"{len(acknowledged)} rows acknowledged, {len(lost)} lost")
    return good and took_s <= _STOP_S and not lost


class _Flood:
    """One user's connections, each in its own process, until the block ends."""

    def __init__(self, url: str, sql: str) -> None:
        context = get_context("spawn")
        self.answers: Counter[str] = Counter()
        """How many answers had each status, and how many requests failed with each error."""
        self._stop, self._counted = context.Event(), context.Queue()
        given = (url, sql, self._stop, self._counted)
        self._processes = [context.Process(target=_ask_on, args=given) for _ in range(_CONNECTIONS)]

    def __enter__(self) -> "_Flood":
        for process in self._processes:
            process.start()
        _wait(_WARM_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for _process in self._processes:
            self.answers.update(self._counted.get())
        for process in self._processes:
            process.join()


def _ask_on(url: str, sql: str, stop: ProcessEvent, counted: Any) -> None:
    # Attackers run on other machines. Here they get the processor time that others leave.
    os.nice(_NICENESS)
    answers: Counter[str] = Counter()
    with asker(url, "eve") as eve:
        while not stop.is_set():
            try:
                answers[str(ask(eve, sql, 2_000).status_code)] += 1
            except httpx.TransportError as error:
                answers[type(error).__name__] += 1
    counted.put(answers)


def _wait(seconds: float) -> None:
    """Let a node go on."""
    Event().wait(seconds)


def _reads(client: httpx.Client, seconds: float) -> tuple[list[float], int]:
    """The duration of each read in milliseconds, and the number of reads that failed."""
    found_ms, failed, last_s = [], 0, time.monotonic() + seconds
    while time.monotonic() < last_s:
        begun_s = time.perf_counter()
        failed += ask(client, READ).status_code != 200
        found_ms.append(1_000 * (time.perf_counter() - begun_s))
    return found_ms, failed


def _most_bytes(pid: int, seconds: float) -> int:
    most, last_s = 0, time.monotonic() + seconds
    while time.monotonic() < last_s:
        most = max(most, held_bytes(pid))
        _wait(0.5)
    return most


def _middle(found_ms: list[float]) -> float:
    return sorted(found_ms)[len(found_ms) // 2]


def _hundredth(found_ms: list[float]) -> float:
    return sorted(found_ms)[len(found_ms) * 99 // 100]


async def _lost(data: Path, acknowledged: list[int]) -> set[int]:
    async with open_folder(data) as herd:
        session = await herd.session()
        found = await session.execute("SELECT n FROM acknowledged")
        rows = {n for (n,) in found.rows}
        await session.close()
    return set(acknowledged) - rows


if __name__ == "__main__":
    sys.exit(main())
