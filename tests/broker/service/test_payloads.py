"""Payloads and results that are too big for the log: where they lie, and when they go."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import herdbook
from broker.connection import Attempt, Completion, Ended, Run
from broker.errors import BrokerUnavailable, PayloadMissing, TooLarge
from broker.http import create_app, desk_of
from broker.memory import MemoryBroker, SteppedClock
from broker.payloads import STORED_BYTES_MAX, MemoryPayloads, kept
from broker.ports import PayloadStore
from broker.sweeping import sweep
from broker.task import PAYLOAD_BYTES_MAX
from broker.worker import Registry, task
from broker.worker.stored import StoredPlaces
from herdbook.payload_store import BUCKET, BucketPayloads, OpenedPayloads
from tests.broker.http.asking import Client

BIG = bytes(range(256)) * 5_000
assert PAYLOAD_BYTES_MAX < len(BIG) < STORED_BYTES_MAX
REGISTRY = Registry()


@task(name="turn", registry=REGISTRY)
def turn(data: bytes) -> bytes:
    return data[::-1]


@task(name="tests.turn")
def turn_there(data: bytes) -> bytes:
    """The same, in processes."""
    return data[::-1]


@asynccontextmanager
async def store_of(kind: str, folder: Path) -> AsyncIterator[PayloadStore]:
    """A store of payloads."""
    if kind == "memory":
        yield MemoryPayloads(SteppedClock(), random.Random(1))
        return
    async with herdbook.open_async(folder) as book:
        if kind == "bucket":
            yield BucketPayloads(book.blobs, random.Random(1))
            return
        async with OpenedPayloads(str(folder)) as payloads:
            yield payloads


@pytest.mark.parametrize("kind", ["memory", "bucket", "opened"])
async def test_what_was_put_is_there_until_it_is_deleted(kind: str, tmp_path: Path) -> None:
    async with store_of(kind, tmp_path) as store:
        assert [each async for each in store.older_than(-1)] == []
        first, second = await store.put(BIG), await store.put(b"")
        assert first != second and first.isascii() and len(first) <= 100
        assert (await store.get(first), await store.get(second)) == (BIG, b"")
        assert [each async for each in store.older_than(60_000)] == []
        # Whatever was put before a moment yet to come.
        assert {each async for each in store.older_than(-60_000)} == {first, second}
        await store.delete([first, "0" * 32])
        with pytest.raises(PayloadMissing):
            await store.get(first)
        assert await store.get(second) == b""
        with pytest.raises(PayloadMissing):
            await store.get("nobody put this")


async def test_users_see_bytes_and_the_log_where_they_are() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        big = await broker.tasks.submit("turn", BIG)
        small = await broker.tasks.submit("turn", b"moo")
        assert len(broker.payloads) == 1
        told = await big.get()
        assert told.payload == b"" and told.payload_object
        assert await broker.tasks.payload(big.id) == BIG
        assert await broker.tasks.payload(small.id) == b"moo"
        assert await broker.run_waiting() == 2
        assert await big.wait() == BIG[::-1] and await small.wait() == b"oom"
        assert len(broker.payloads) == 2 and (await big.get()).result_object


async def test_what_nobody_has_room_for_is_refused() -> None:
    with pytest.raises(TooLarge, match=str(PAYLOAD_BYTES_MAX)):
        await kept(None, BIG)
    async with MemoryBroker(registry=REGISTRY) as broker:
        with pytest.raises(TooLarge, match=str(STORED_BYTES_MAX)):
            await broker.tasks.submit("turn", bytes(STORED_BYTES_MAX + 1))
        assert not len(broker.payloads) and not (await broker.tasks.list()).tasks


async def test_payloads_go_with_the_last_that_names_them() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        tasks = broker.tasks
        await tasks.schedule("often", "turn", BIG, every_ms=30_000, retention_ms=60_000)
        handle = await tasks.submit("turn", BIG, retention_ms=60_000)
        waiting = await tasks.submit("turn", BIG, delay_ms=3_600_000)
        forgotten = await broker.payloads.put(BIG)
        young = 10_000
        assert await sweep(broker.broker, broker.payloads, young) == 0
        # Before the schedule has fired it alone names its payload.
        await broker.advance(15_000)
        assert await sweep(broker.broker, broker.payloads, young) == 1
        with pytest.raises(PayloadMissing):
            await broker.payloads.get(forgotten)
        await broker.advance(16_000)
        await broker.run_waiting()
        # Three payloads and two results.
        assert len(broker.payloads) == 5
        assert await sweep(broker.broker, broker.payloads, young) == 0
        assert await handle.wait() == BIG[::-1]
        await tasks.delete_schedule("often")
        await broker.advance(120_000)
        assert await sweep(broker.broker, broker.payloads, young) == 4
        assert len(broker.payloads) == 1
        assert await tasks.payload(waiting.id) == BIG


async def test_http_tells_big_ones_whole_or_where_they_are() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        handle = await broker.tasks.submit("turn", BIG)
        await broker.run_waiting()
        client = Client(create_app(desk_of(broker.broker, broker.payloads)), broker.broker)
        told = await client.v1("GET", f"/tasks/{handle.id}")
        task = await handle.get()
        assert (told["payload_object"], told["payload"]) == (task.payload_object, None)
        assert (told["result_object"], told["result"]) == (task.result_object, None)
        for what, wanted in (("payload", BIG), ("result", BIG[::-1])):
            reply = await client.http.get(f"/api/v1/tasks/{handle.id}/{what}")
            assert reply.content == wanted
        # A server that has no store of payloads says so.
        bare = Client(create_app(desk_of(broker.broker)), broker.broker)
        told = await bare.v1("GET", f"/tasks/{handle.id}/payload", expect=404)
        assert "not known here" in told["error"]["message"]


class Places:
    """Places that end nothing by themselves."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    @property
    def running(self) -> list[Attempt]:
        return [(run.id, run.attempt) for run in self.runs]

    def __len__(self) -> int:
        return len(self.runs)

    def run(self, runs: list[Run]) -> None:
        self.runs += runs

    def interrupt(self, attempts: list[Attempt], reason: str) -> None:
        """None of these tests interrupts what has begun."""
        assert not set(attempts) & set(self.running)

    def give_back(self) -> None:
        self.runs.clear()

    async def end_all(self) -> None:
        self.runs.clear()

    async def idle(self) -> None:
        return


class Slow(MemoryPayloads):
    """A store that fails as often as it is told, then answers when it is told."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__(SteppedClock(), random.Random(1))
        self.failures = failures
        self.answers = asyncio.Event()

    async def get(self, payload_id: str) -> bytes:
        await self._turn()
        return await super().get(payload_id)

    async def put(self, data: bytes) -> str:
        await self._turn()
        return await super().put(data)

    async def _turn(self) -> None:
        await self.answers.wait()
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailable("no bookies")


def run_of(task_id: int, payload_object: str = "") -> Run:
    return Run(task_id, 1, "t", "turn", b"", payload_object=payload_object)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_attempt_runs_from_its_assignment_until_its_end_is_told() -> None:
    told: list[Completion] = []
    store, inner = Slow(), Places()
    store.answers.set()
    payload_id = await store.put(BIG)
    store.answers.clear()
    places = StoredPlaces(inner, store, told.extend)
    places.run([run_of(1), run_of(2, payload_id), run_of(3, payload_id), run_of(4, "gone")])
    assert inner.running == [(1, 1)] and len(places) == 4
    assert set(places.running) == {(1, 1), (2, 1), (3, 1), (4, 1)}
    places.interrupt([(3, 1)], "cancelled")
    assert [(each.id, each.ended) for each in told] == [(3, Ended.INTERRUPTED)]
    store.answers.set()
    await settled()
    assert [(run.id, run.payload) for run in inner.runs] == [(1, b""), (2, BIG)]
    assert (told[1].id, told[1].ended, told[1].no_retry) == (4, Ended.FAILED, True)
    store.answers.clear()
    inner.runs.clear()
    places.done([Completion(1, 1, Ended.FINISHED, b"7"), Completion(2, 1, Ended.FINISHED, BIG)])
    assert [each.id for each in told] == [3, 4, 1] and places.running == [(2, 1)]
    store.answers.set()
    await places.idle()
    assert (told[3].result, await store.get(told[3].result_object)) == (b"", BIG)
    assert not places.running


@pytest.mark.parametrize(("failures", "ended"), [(2, Ended.FINISHED), (9, Ended.FAILED)])
async def test_a_result_is_stored_within_a_few_tries_or_failed(
    failures: int, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.worker.stored._PAUSE_S", 0.0)
    told: list[Completion] = []
    store = Slow(failures)
    store.answers.set()
    places = StoredPlaces(Places(), store, told.extend)
    places.done([Completion(1, 1, Ended.FINISHED, BIG)])
    await places.idle()
    [end] = told
    assert end.ended is ended and ("no bookies" in end.error) == (ended is Ended.FAILED)


async def test_what_cannot_be_fetched_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.worker.stored._PAUSE_S", 0.0)
    told: list[Completion] = []
    without = StoredPlaces(Places(), None, told.extend)
    without.run([run_of(1, "x")])
    without.done([Completion(2, 1, Ended.FINISHED, BIG)])
    await without.idle()
    failing = Slow(99)
    failing.answers.set()
    places = StoredPlaces(Places(), failing, told.extend)
    places.run([run_of(3, "x")])
    await places.idle()
    slow = StoredPlaces(Places(), Slow(), told.extend)
    slow.run([run_of(4, "x")])
    slow.give_back()
    await slow.close()
    ends = {each.id: each.ended for each in told}
    back = Ended.HANDED_BACK
    assert ends == {1: back, 2: Ended.FAILED, 3: back, 4: back}


def test_big_payloads_and_results_pass_through_a_folder(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book, book.tasks.workers(1):
        handle = book.tasks.submit(turn_there, BIG)
        assert handle.wait(30_000) == BIG[::-1]
        # Another opener of the folder has the same store.
        with herdbook.open(tmp_path) as other:
            assert other.tasks.wait(handle.id, 1_000) == BIG[::-1]
            assert other.tasks.payload(handle.id) == BIG
        assert len(list(book.blobs.bucket(BUCKET).scan())) == 2
