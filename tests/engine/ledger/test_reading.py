"""What a reader promises: intact entries, in order, never past the LAC unless asked."""

import asyncio
import gc

import pytest

from engine.errors import (
    CannotRead,
    DeadlineExceeded,
    EntryPastEnd,
    InvalidRequest,
    NoSuchEntry,
    NoSuchLedger,
)
from engine.ledger.reader import LedgerReader
from engine.ledger.settings import ClientSettings
from engine.ledger.writer import LedgerWriter
from engine.transport.contract import Bookie, LacReply, Status
from tests.engine.ledger.scripted import Cluster, turns
from tests.simulation.virtual import elapse, virtually


async def written(cluster: Cluster, count: int) -> LedgerWriter:
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append_many([b"entry %d" % number for number in range(count)])
    await turns()
    return writer


async def read_all(reader: LedgerReader) -> list[bytes]:
    return [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]


async def test_entries_come_back_in_order_with_their_ids() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 700)
    reader = await cluster.client().open_ledger(writer.ledger_id)
    entries = [entry async for entry in reader.read(100, 650)]
    assert [entry.entry_id for entry in entries] == list(range(100, 651))
    assert entries[0].body == b"entry 100"


async def test_a_read_past_the_end_is_refused_at_once() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 3)
    reader = await cluster.client().open_ledger(writer.ledger_id)
    for first, last in [(0, 3), (3, 3), (7, 9)]:
        with pytest.raises(EntryPastEnd):
            reader.read(first, last)
    for first, last in [(-1, 0), (2, 0)]:
        with pytest.raises(InvalidRequest):
            reader.read(first, last)


def test_a_read_waits_a_moment_for_the_first_bookie_that_is_there_again() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        writer = await written(cluster, 1)
        reader = await cluster.client().open_ledger(writer.ledger_id)
        for bookie in cluster.bookies:
            bookie.down = True
        reading = asyncio.create_task(read_all(reader))
        await elapse(0.5)
        assert not reading.done()
        cluster.bookies[1].down = False
        assert await reading == [b"entry 0"]
        cluster.bookies[1].down = True
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(CannotRead):
            await read_all(await cluster.client().open_ledger(writer.ledger_id))
        assert asyncio.get_running_loop().time() - began_s <= 3.0

    virtually(script())


async def test_a_corrupt_copy_is_never_served_and_another_replica_is() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 5)
    for bookie in cluster.bookies[:2]:
        for entry_id in (0, 3):
            bookie.corrupt(writer.ledger_id, entry_id)
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert await read_all(reader) == [b"entry %d" % number for number in range(5)]


async def test_all_copies_corrupt_is_cannot_read_and_not_no_such_entry() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 5)
    await writer.close()
    for bookie in cluster.bookies:
        bookie.corrupt(writer.ledger_id, 2)
    reader = await cluster.client().open_ledger(writer.ledger_id)
    with pytest.raises(CannotRead):
        await read_all(reader)


async def test_no_such_entry_needs_every_replica_to_say_so() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 5)
    await writer.close()
    for bookie in cluster.bookies:
        del bookie.entries[writer.ledger_id][2]
    reader = await cluster.client().open_ledger(writer.ledger_id)
    with pytest.raises(NoSuchEntry):
        await read_all(reader)
    cluster.bookies[0].down = True
    with pytest.raises(CannotRead):
        await read_all(reader)


async def test_a_slow_replica_costs_a_speculative_read_and_not_the_deadline() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 5)
    await writer.close()
    reader = await cluster.client().open_ledger(writer.ledger_id)
    never = asyncio.Event()
    asked: list[str] = []

    def slow(name: str) -> object:
        async def read(*_: object) -> None:
            asked.append(name)
            await never.wait()

        return read

    for bookie in cluster.bookies[:2]:
        bookie.read = slow(bookie.bookie_id)  # type: ignore[method-assign,assignment]
    assert len(await read_all(reader)) == 5
    assert asked, "the slow replicas were asked first"


async def test_silence_of_every_replica_ends_at_the_deadline_and_leaves_nothing_running() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 5)
    await writer.close()
    settings = ClientSettings(read_timeout_ms=30, speculative_read_ms=1)
    reader = await cluster.client(settings).open_ledger(writer.ledger_id)
    never, asked, ended = asyncio.Event(), [], []

    async def silent(*_: object) -> None:
        asked.append(1)
        try:
            await never.wait()
        finally:
            ended.append(1)

    for bookie in cluster.bookies:
        bookie.read = silent  # type: ignore[method-assign,assignment]
    with pytest.raises(DeadlineExceeded):
        await read_all(reader)
    await turns()
    assert len(asked) == len(ended) and len(asked) >= 3


async def test_a_replica_that_gives_the_call_up_has_answered_nothing() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1)
    await writer.append(b"moo")
    await writer.close()
    reader = await cluster.client().open_ledger(writer.ledger_id)

    async def gives_up(*_: object) -> None:
        raise asyncio.CancelledError

    cluster.bookies[0].read = gives_up  # type: ignore[method-assign,assignment]
    with pytest.raises(CannotRead):
        await read_all(reader)


async def test_a_reader_without_recovery_stops_at_the_lac_and_fences_nobody() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 5)
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    assert (reader.last_add_confirmed, reader.closed) == (4, False)
    for bookie in cluster.bookies:
        bookie.holding = True
    unconfirmed = asyncio.ensure_future(writer.append(b"unconfirmed"))
    await turns()
    assert await reader.read_last_add_confirmed() == 4
    with pytest.raises(EntryPastEnd):
        reader.read(5, 5)
    assert [entry.body async for entry in reader.read_unconfirmed(4)] == [
        b"entry 4",
        b"unconfirmed",
    ]
    for bookie in cluster.bookies:
        bookie.release()
    assert await unconfirmed == 5


async def unheard(cluster: Cluster) -> LedgerReader:
    """A reader of ten entries, of which the third bookie has heard the first one alone."""
    writer = await written(cluster, 1)
    ensemble = (await cluster.client().ledger_metadata(writer.ledger_id)).fragments[0].ensemble
    cluster.at(ensemble, 2).mute = True
    await writer.append_many([b"entry %d" % number for number in range(1, 10)])
    cluster.at(ensemble, 2).mute = False
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed >= 0
    return reader


async def test_a_reader_waits_for_the_one_bookie_that_knows_what_was_confirmed() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 2)
    await turns(10)
    knows, *others = cluster.bookies
    for bookie in others:
        bookie.lacs.clear()
    answer = knows.wait_lac

    async def slowly(ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        await turns(50)
        return await answer(ledger_id, above, timeout_ms)

    knows.wait_lac = slowly  # type: ignore[method-assign]
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    assert await reader.read_last_add_confirmed() == -1
    assert await reader.read_last_add_confirmed(1) == 1
    assert len(await read_all(reader)) == 2
    await reader.close()


@pytest.mark.parametrize("left", [0, 2])
async def test_one_bookie_of_three_does_not_tell_where_what_was_acknowledged_ends(
    left: int,
) -> None:
    cluster = await Cluster.of(3)
    reader = await unheard(cluster)
    for index, name in enumerate(reader.metadata.fragments[0].ensemble):
        cluster.transport.bookies[name].down = index != left
    seen: list[int] = []
    with pytest.raises(CannotRead):
        async for entry in reader.read_unconfirmed(0, acknowledged=True):
            seen.append(entry.entry_id)
    assert seen == list(range(1 if left == 2 else 10))


@pytest.mark.parametrize("away", [0, 1, 2])
@pytest.mark.parametrize("hangs", [False, True])
async def test_what_was_acknowledged_ends_where_no_ack_quorum_has_more(
    away: int, hangs: bool
) -> None:
    cluster = await Cluster.of(3)
    reader = await unheard(cluster)
    bookie = cluster.at(reader.metadata.fragments[0].ensemble, away)

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    if hangs:
        bookie.read = silent  # type: ignore[method-assign,assignment]
    else:
        bookie.down = True
    found = [entry.entry_id async for entry in reader.read_unconfirmed(0, acknowledged=True)]
    assert found == list(range(10))


async def test_a_follower_sees_entries_as_they_are_confirmed_and_ends_at_the_close() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 3)
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    seen: list[int] = []

    async def follow() -> None:
        async for entry in reader.tail(1):
            seen.append(entry.entry_id)

    follower = asyncio.ensure_future(follow())
    for _ in range(5):
        await writer.append(b"more")
    await writer.close()
    await follower
    assert seen == list(range(1, 8))
    await reader.close()


async def test_a_lac_that_comes_before_the_metadata_of_its_fragment_misleads_no_reader() -> None:
    cluster = await Cluster.of(6)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"old")
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == 0
    fresh = [b for b in cluster.bookies if b.bookie_id not in writer.metadata.bookies()]
    for bookie in cluster.bookies:
        if bookie not in fresh:
            bookie.append_status = Status.UNAVAILABLE
    assert await writer.append(b"new") == 1
    await turns(100)
    reader._follower._learn(LacReply(Status.OK, 1, fresh[0].bookie_id, 1))
    assert len(reader.metadata.fragments) == 1, "the reader still knows the old ensemble only"
    assert reader.last_add_confirmed == 1
    assert [entry.body async for entry in reader.read(0, 1)] == [b"old", b"new"]


async def test_a_follower_ends_at_the_end_that_a_recoverer_found() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 3)
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)

    async def follow() -> list[int]:
        return [entry.entry_id async for entry in reader.tail()]

    follower = asyncio.ensure_future(follow())
    await turns()
    await cluster.client().open_ledger(writer.ledger_id)
    assert await follower == [0, 1, 2]


def test_a_follower_asks_a_bookie_that_is_away_ever_less_often_and_hears_of_it_again() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        writer = await written(cluster, 3)
        settings = ClientSettings(retry_pause_ms=50)
        reader = await cluster.client(settings).open_ledger(writer.ledger_id, recover=False)
        tail = reader.tail()
        assert [(await anext(tail)).entry_id for _ in range(3)] == [0, 1, 2]
        for bookie in cluster.bookies:
            bookie.down = True
        asked: list[str] = []
        connect = cluster.transport.connect

        async def counting(bookie_id: str) -> Bookie:
            asked.append(bookie_id)
            return await connect(bookie_id)

        cluster.transport.connect = counting  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(anext(tail))
        await elapse(60.0)
        assert 3 * 55 <= len(asked) <= 3 * 70, "once a second, after a few quick tries"
        for bookie in cluster.bookies:
            bookie.down = False
        await writer.append(b"news")
        await writer.close()
        await elapse(1.5)
        assert (await waiting).body == b"news"

    virtually(script())


def test_a_bookie_that_is_away_is_asked_as_rarely_while_the_others_tell_news() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        writer = await written(cluster, 3)
        settings = ClientSettings(retry_pause_ms=50)
        reader = await cluster.client(settings).open_ledger(writer.ledger_id, recover=False)
        away = cluster.bookies[0]
        away.down = True
        asked: list[str] = []
        connect = cluster.transport.connect

        async def slowly(bookie_id: str) -> Bookie:
            asked.append(bookie_id)
            await elapse(0.005)
            return await connect(bookie_id)

        cluster.transport.connect = slowly  # type: ignore[method-assign]

        async def follow() -> int:
            return len([entry async for entry in reader.tail()])

        following = asyncio.ensure_future(follow())
        for _ in range(2_000):
            await writer.append(b"news")
            await elapse(0.002)
        assert asked.count(away.bookie_id) < 20
        await writer.close()
        assert await following == 2_003

    virtually(script())


async def test_following_a_deleted_ledger_says_so() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await written(cluster, 1)
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    tail = reader.tail()
    assert (await anext(tail)).entry_id == 0
    waiting = asyncio.ensure_future(anext(tail))
    await turns()
    await client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        await waiting


async def test_a_tail_ends_with_a_word_when_its_client_is_closed() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 1)
    client = cluster.client()
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    tail = reader.tail()
    assert (await anext(tail)).body == b"entry 0"
    waiting = asyncio.ensure_future(anext(tail))
    await turns()
    assert not waiting.done()
    await client.close()
    await turns()
    assert waiting.done() and isinstance(waiting.exception(), InvalidRequest)
    with pytest.raises(InvalidRequest, match="was closed: open it again"):
        await anext(reader.tail(1))
    await reader.close()


async def test_unknown_and_deleted_ledgers_are_not_found_and_ids_are_never_reused() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    with pytest.raises(NoSuchLedger):
        await client.open_ledger(404)
    writer = await written(cluster, 1)
    await client.delete_ledger(writer.ledger_id)
    for recover in (True, False):
        with pytest.raises(NoSuchLedger):
            await client.open_ledger(writer.ledger_id, recover=recover)
    with pytest.raises(NoSuchLedger):
        await client.delete_ledger(writer.ledger_id)
    assert (await client.create_ledger(1, 1, 1)).ledger_id > writer.ledger_id


async def test_ledgers_are_listed_with_their_custom_metadata() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writers = [
        await client.create_ledger(3, 3, 2, metadata={"app": b"%d" % number}) for number in range(3)
    ]
    assert await client.list_ledgers() == [writer.ledger_id for writer in writers]
    assert (await client.ledger_metadata(writers[1].ledger_id)).custom == {"app": b"1"}


@pytest.mark.real_time
async def test_what_was_read_ahead_for_nobody_fails_in_silence() -> None:
    cluster = await Cluster.of(3)
    writer = await written(cluster, 700)
    reader = await cluster.client().open_ledger(writer.ledger_id)
    unheard: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    for bookie in cluster.bookies:
        bookie.down = True
    ahead = reader._fetch_ahead(0, 699)
    await asyncio.wait([ahead])
    del ahead
    gc.collect()
    await asyncio.sleep(0)
    await reader.close()
    assert not unheard
