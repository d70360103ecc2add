"""What a client and a bookie count, and that they never count once an entry."""

import asyncio
import dataclasses
import random
from collections import Counter as Tally
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import cluster
from engine.ledger.client import LedgerClient
from engine.ports.clock import SystemClock
from engine.ports.metrics import LATENCY_BOUNDS_S
from engine.transport.contract import ReadReply, ReadRequest, Status
from tests.engine.ledger.scripted import QUICK, Cluster, ScriptedBookie


class Told:
    """Metrics that remember how often they were told, and what it came to."""

    def __init__(self) -> None:
        self.calls: Tally[str] = Tally()
        self.sums: Tally[str] = Tally()
        self.gauges: dict[str, Callable[[], float]] = {}

    def counter(self, name: str, says: str, **labels: str) -> "Teller":
        return Teller(self, name)

    def histogram(
        self, name: str, says: str, bounds: Sequence[float] = LATENCY_BOUNDS_S, **labels: str
    ) -> "Teller":
        return Teller(self, name)

    def gauge(
        self, name: str, says: str, read: Callable[[], float], **labels: str
    ) -> Callable[[], None]:
        self.gauges[name] = read
        return lambda: None


class Teller:
    """A counter or a histogram of `Told`."""

    def __init__(self, told: Told, name: str) -> None:
        self.told = told
        self.name = name.removeprefix("herdbook_")

    def add(self, amount: float = 1) -> None:
        self.told.calls[self.name] += 1
        self.told.sums[self.name] += int(amount)

    def observe(self, value: float) -> None:
        assert value >= 0
        self.told.calls[self.name] += 1


def client_of(bookies: Cluster, told: Told) -> LedgerClient:
    """A client of scripted bookies that tells what it does."""
    return LedgerClient(
        store=bookies.tree.session(),
        transport=bookies.transport,
        clock=SystemClock(),
        rng=random.Random(7),
        settings=dataclasses.replace(QUICK, ensemble=3, write_quorum=3, ack_quorum=2),
        metrics=told,
    )


async def test_a_lost_bookie_is_counted_as_a_changed_ensemble_or_a_lost_replica() -> None:
    bookies, told = await Cluster.of(4), Told()
    writer = await client_of(bookies, told).create_ledger()
    await writer.append(b"one")
    bookies.at(writer.metadata.fragments[0].ensemble, 0).append_status = Status.UNAVAILABLE
    await writer.append(b"two")
    await writer.close()
    assert told.sums["client_ensemble_changes_total"] == 1
    assert told.sums["client_lost_replicas_total"] == 0
    few, told = await Cluster.of(3), Told()
    writer = await client_of(few, told).create_ledger()
    few.at(writer.metadata.fragments[0].ensemble, 0).append_status = Status.UNAVAILABLE
    await writer.append(b"one")
    await writer.close()
    assert told.sums["client_ensemble_changes_total"] == 0
    assert told.sums["client_lost_replicas_total"] == 1
    assert told.sums["client_adds_total"] == 1


async def test_a_slow_replica_is_counted_as_a_speculative_read() -> None:
    bookies, told = await Cluster.of(3), Told()
    client = client_of(bookies, told)
    writer = await client.create_ledger()
    await writer.append(b"one")
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    assert [entry.body async for entry in reader.read(0, 0)] == [b"one"]
    assert told.sums["client_speculative_reads_total"] == 0
    asked: list[str] = []
    for bookie in bookies.bookies:
        bookie.read = slow_at_first(bookie, asked)  # type: ignore[method-assign,assignment]
    assert [entry.body async for entry in reader.read(0, 0)] == [b"one"]
    assert len(asked) == 2
    assert told.sums["client_speculative_reads_total"] == 1
    assert told.calls["client_read_request_seconds"] == 2


def slow_at_first(
    bookie: ScriptedBookie, asked: list[str]
) -> Callable[[ReadRequest], Coroutine[Any, Any, ReadReply]]:
    """A bookie's `read` that never answers if it is the first one that is asked."""
    answer = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        asked.append(bookie.bookie_id)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return await answer(request)

    return read


@pytest.mark.real_time
async def test_ten_thousand_entries_are_told_in_a_few_calls(tmp_path: Path) -> None:
    told = Told()
    async with cluster.open(tmp_path, bookies=3, metrics=told) as client:
        writer = await client.create_ledger()
        for _ in range(10):
            await writer.append_many([b"moo"] * 1_000)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len([entry async for entry in reader.read(0, 9_999)]) == 10_000
        seen = {name.removeprefix("herdbook_bookie_"): read() for name, read in told.gauges.items()}
        assert seen["queue_bytes"] >= 0 and seen["index_lag_records"] >= 0 and seen["writable"] == 1
        assert seen["disk_total_bytes"] > seen["disk_free_bytes"] > 0
    assert told.sums["client_adds_total"] == 10_000
    assert told.sums["bookie_requests_total"] >= 30
    assert sum(told.calls.values()) < 1_000, told.calls
