"""A bookie that was away takes its place in an open ledger again, also where there is no spare."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import AppendFailed, MetadataUnavailable, NoSuchLedger
from engine.ledger.reader import LedgerReader
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import FolderAge, Registration
from engine.metadata.contract import MetadataStore, Versioned
from engine.run import Entry
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, LoopClock, ScriptedBookie, turns, until
from tests.simulation.virtual import elapse, virtually


async def stop(cluster: Cluster, bookie: ScriptedBookie) -> None:
    """The bookie answers no append any more and takes no connection."""
    bookie.append_status = Status.UNAVAILABLE
    del cluster.transport.bookies[bookie.bookie_id]
    await cluster.registry.unregister(bookie.bookie_id)


async def restart(cluster: Cluster, bookie: ScriptedBookie) -> None:
    bookie.append_status = Status.OK
    cluster.transport.bookies[bookie.bookie_id] = bookie
    bookie.boot += 1
    await cluster.registry.raise_age(bookie.bookie_id, FolderAge(bookie.boot))
    await cluster.registry.register(Registration(bookie.bookie_id, bookie.boot))


def is_whole(writer: LedgerWriter) -> bool:
    """Every index has a bookie that serves and has all that was confirmed."""
    return writer._replication.complete


async def test_a_restarted_bookie_takes_its_place_again_before_any_quarantine_is_over() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    away = cluster.bookies[2]
    await stop(cluster, away)
    for number in range(5):
        assert await writer.append(b"x") == number
    assert not writer._replication.whole
    await restart(cluster, away)
    await until(lambda: is_whole(writer))
    await writer.append(b"y")
    await until(lambda: is_whole(writer))
    assert 5 in away.entries[writer.ledger_id]


async def test_three_bookies_restart_one_after_the_other_and_the_writer_goes_on() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for bookie in cluster.bookies:
        await stop(cluster, bookie)
        for _ in range(3):
            await writer.append(b"x")
        assert not writer._replication.whole
        await restart(cluster, bookie)
        await until(lambda: is_whole(writer))
    assert await writer.append(b"y") == 9
    await until(lambda: is_whole(writer))
    assert all(9 in bookie.entries[writer.ledger_id] for bookie in cluster.bookies)


async def test_bookies_that_all_restart_learn_the_lac_of_an_idle_ledger_again() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for _ in range(3):
        await writer.append(b"x")
    await turns(10)
    for bookie in cluster.bookies:
        await stop(cluster, bookie)
        bookie.lacs.clear()
        await restart(cluster, bookie)
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed < 2
    following = asyncio.ensure_future(anext(reader.tail(2)))
    await until(lambda: all(bookie.lacs == {writer.ledger_id: 2} for bookie in cluster.bookies))
    async with asyncio.timeout(20):
        assert (await following).entry_id == 2
    await reader.close()


def test_a_bookie_that_did_not_restart_is_taken_back_when_its_quarantine_is_over() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        settings = replace(QUICK, quarantine_ms=5_000)
        cluster.client_clock = LoopClock()
        writer = await cluster.client(settings).create_ledger(3, 3, 2)
        failing = cluster.bookies[2]
        failing.append_status = Status.UNAVAILABLE
        await writer.append(b"x")
        await elapse(1)
        failing.append_status = Status.OK
        assert not is_whole(writer)
        await elapse(3)
        assert not is_whole(writer)
        await elapse(2)
        assert is_whole(writer)
        await writer.close()

    virtually(script())


def test_an_append_waits_for_bookies_that_are_away_for_a_moment() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        settings = replace(QUICK, append_timeout_ms=6_000, quarantine_ms=10_000)
        cluster.client_clock = LoopClock()
        writer = await cluster.client(settings).create_ledger(3, 3, 2)
        await writer.append(b"x")
        away = cluster.bookies[1:]
        for bookie in away:
            await stop(cluster, bookie)
        appending = asyncio.ensure_future(writer.append(b"y"))
        await elapse(1)
        assert not appending.done()
        for bookie in away:
            await restart(cluster, bookie)
        await elapse(1)
        assert appending.done() and appending.result() == 1
        await writer.close()

    virtually(script())


def test_an_append_after_a_long_idle_outage_waits_for_bookies_as_long_as_any_other() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        settings = replace(QUICK, append_timeout_ms=6_000, quarantine_ms=10_000)
        cluster.client_clock = LoopClock()
        writer = await cluster.client(settings).create_ledger(3, 3, 2)
        await writer.append(b"x")
        away = cluster.bookies[1:]
        for bookie in away:
            await stop(cluster, bookie)
        writer._replication.suspect(frozenset(bookie.bookie_id for bookie in away))
        await elapse(20)
        appending = asyncio.ensure_future(writer.append(b"y"))
        await elapse(3)
        assert not appending.done()
        for bookie in away:
            await restart(cluster, bookie)
        await elapse(1)
        assert appending.done() and appending.result() == 1
        await writer.close()

    virtually(script())


def test_a_bookie_that_comes_back_and_fails_again_keeps_no_append_waiting_for_ever() -> None:
    async def script() -> None:
        cluster = await Cluster.of(1)
        settings = replace(QUICK, append_timeout_ms=6_000, quarantine_ms=2_000)
        cluster.client_clock = LoopClock()
        writer = await cluster.client(settings).create_ledger(1, 1, 1)
        await writer.append(b"x")
        cluster.bookies[0].append_status = Status.READ_ONLY
        appending = asyncio.ensure_future(writer.append(b"y"))
        await elapse(5)
        assert not appending.done()
        await elapse(4)
        assert isinstance(appending.exception(), AppendFailed)

    virtually(script())


def test_an_append_waits_the_whole_time_for_each_bookie_that_was_not_tried_yet() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        settings = replace(QUICK, append_timeout_ms=6_000, quarantine_ms=20_000)
        cluster.client_clock = LoopClock()
        writer = await cluster.client(settings).create_ledger(1, 1, 1)
        for bookie in cluster.bookies:
            bookie.append_status = Status.READ_ONLY
        appending = asyncio.ensure_future(writer.append(b"y"))
        await elapse(5)
        cluster.bookies[0].append_status = Status.OK
        await restart(cluster, cluster.bookies[0])
        await elapse(1)
        assert appending.done() and appending.result() == 0
        await writer.close()

    virtually(script())


class _Session:
    """A metadata session that counts reads of ledgers' records, can hold them, and may be deaf."""

    def __init__(self, store: MetadataStore, *, deaf: bool) -> None:
        self._store = store
        self._deaf = deaf
        self.reads, self.reads_max = 0, 1_000
        self.open = asyncio.Event()
        self.open.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        return (lambda: None) if self._deaf else self._store.watch(key, changed)

    async def get(self, key: str) -> Versioned | None:
        found = await self._store.get(key)
        if key.startswith("/ledgers/"):
            self.reads += 1
            await self.open.wait()
            if self.reads > self.reads_max:
                raise MetadataUnavailable("it does not answer")
        return found


async def _following(
    cluster: Cluster, session: _Session
) -> tuple[LedgerWriter, LedgerReader, "asyncio.Future[Entry]"]:
    """A follower of a ledger whose bookies have gone away."""
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"x")
    store: Any = session
    reader = await cluster.client(store=store).open_ledger(writer.ledger_id, recover=False)
    following = asyncio.ensure_future(anext(reader.tail(1)))
    for bookie in cluster.bookies:
        await stop(cluster, bookie)
    await elapse(3.0)
    return writer, reader, following


async def test_a_follower_of_unreachable_bookies_reads_the_metadata_every_few_seconds() -> None:
    cluster = await Cluster.of(3)
    session = _Session(cluster.tree.session(), deaf=True)
    writer, reader, following = await _following(cluster, session)
    before = session.reads
    await elapse(60.0)
    assert 9 <= session.reads - before <= 12
    await cluster.client().delete_ledger(writer.ledger_id)
    await elapse(7.0)
    with pytest.raises(NoSuchLedger):
        following.result()
    await reader.close()


async def test_a_follower_hears_of_a_change_that_comes_while_it_reads_the_metadata() -> None:
    cluster = await Cluster.of(3)
    session = _Session(cluster.tree.session(), deaf=False)
    writer, reader, following = await _following(cluster, session)
    session.open.clear()
    reads = session.reads
    await until(lambda: session.reads > reads)
    await cluster.client().delete_ledger(writer.ledger_id)
    await elapse(0.1)
    session.open.set()
    await elapse(0.1)
    with pytest.raises(NoSuchLedger):
        following.result()
    await reader.close()


async def test_a_follower_wakes_up_for_what_it_read_although_the_next_read_fails() -> None:
    cluster = await Cluster.of(3)
    session = _Session(cluster.tree.session(), deaf=False)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"x")
    store: Any = session
    reader = await cluster.client(store=store).open_ledger(writer.ledger_id, recover=False)
    following = asyncio.ensure_future(anext(reader.tail(1)))
    await elapse(1.0)
    session.open.clear()
    await writer.close()
    reads = session.reads
    await until(lambda: session.reads > reads)
    session.reads_max = session.reads
    # Another notice, during the read that shows that the ledger is closed.
    reader._follower._refresh()
    session.open.set()
    await elapse(0.1)
    with pytest.raises(StopAsyncIteration):
        following.result()
    session.reads_max = 1_000
    await reader.close()
