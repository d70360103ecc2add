"""Bookies that are lost or busy while the metadata's answer is not known either."""

import asyncio
from dataclasses import replace as with_settings

import pytest

from engine.errors import AppendFailed, LedgerClosed, MetadataUnavailable
from engine.metadata.contract import Versioned
from engine.metadata.memory import MemoryStore, MemoryTree
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, turns


class MuteStore:
    """A store whose writes of ledgers, once told so, are done or not, and never answered."""

    def __init__(self, tree: MemoryTree) -> None:
        self._store: MemoryStore = tree.session()
        self.mute = False
        self.refusing = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str) -> Versioned | None:
        if self.mute and key.startswith("/ledgers"):
            raise MetadataUnavailable("the reply was lost")
        return await self._store.get(key)

    async def set(self, key: str, value: bytes, version: int) -> int:
        if self.refusing:
            raise MetadataUnavailable("the request was lost")
        stored = await self._store.set(key, value, version)
        if self.mute:
            raise MetadataUnavailable("the reply was lost")
        return stored


async def test_a_lost_bookies_acknowledgement_does_not_count_when_it_may_have_been_replaced() -> (
    None
):
    cluster = await Cluster.of(4)
    store = MuteStore(cluster.tree)
    client = cluster.client(store=store)  # type: ignore[arg-type]
    writer = await client.create_ledger(3, 3, 2)
    first, lost, last = (cluster.at(writer.metadata.fragments[0].ensemble, i) for i in range(3))
    first.holding = True
    last.append_status = Status.OVERLOADED
    on_two_of_the_old = asyncio.ensure_future(writer.append(b"x"))
    await turns()
    store.mute = True
    lost.append_status = Status.READ_ONLY
    later = asyncio.ensure_future(writer.append(b"y"))
    await turns()
    first.holding = False
    first.release()
    await asyncio.wait([on_two_of_the_old], timeout=1.0)
    store.mute = False
    stored = await client.ledger_metadata(writer.ledger_id)
    assert lost.bookie_id not in stored.fragments[-1].ensemble, "the change was made all the same"
    assert not on_two_of_the_old.done(), "one bookie of the stored ensemble holds it, not two"
    writer.abandon(LedgerClosed("the test is over"))
    await asyncio.gather(on_two_of_the_old, later, return_exceptions=True)


async def test_an_overloaded_bookie_is_asked_again_once_a_pause_and_not_once_a_request() -> None:
    cluster = await Cluster.of(1)
    settings = with_settings(QUICK, retry_pause_ms=400, append_timeout_ms=60_000)
    writer = await cluster.client(settings).create_ledger(1, 1, 1)
    bookie = cluster.bookies[0]
    bookie.append_status = Status.OVERLOADED
    futures = []
    for _ in range(20):
        futures.append(asyncio.ensure_future(writer.append(b"x")))
        await turns(3)
    refused = len(bookie.requests)
    bookie.append_status = Status.OK
    await asyncio.gather(*futures)
    assert refused == 20 and len(bookie.requests) - refused <= 2


async def test_a_bookie_that_is_overloaded_for_ever_meets_the_deadline() -> None:
    cluster = await Cluster.of(1)
    settings = with_settings(QUICK, append_timeout_ms=100)
    writer = await cluster.client(settings).create_ledger(1, 1, 1)
    cluster.bookies[0].append_status = Status.OVERLOADED
    with pytest.raises(AppendFailed):
        await writer.append(b"x")


async def test_facts_go_with_every_request_until_a_bookie_has_taken_one() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client(with_settings(QUICK, retry_pause_ms=50)).create_ledger(1, 1, 1)
    bookie = cluster.bookies[0]
    bookie.append_status = Status.OVERLOADED
    first = asyncio.ensure_future(writer.append(b"x"))
    await turns()
    second = asyncio.ensure_future(writer.append(b"y"))
    await turns()
    assert len(bookie.requests) == len(bookie.facts) == 2
    bookie.append_status = Status.OK
    assert [await first, await second] == [0, 1]


async def test_only_a_bookie_that_lacks_the_oldest_run_is_blamed_for_it() -> None:
    cluster = await Cluster.of(5)
    settings = with_settings(QUICK, straggler_bytes_max=5_000, append_timeout_ms=60_000)
    writer = await cluster.client(settings).create_ledger(4, 3, 2)
    before = writer.metadata.fragments[0].ensemble
    await writer.append(b"0")
    await turns()
    cluster.at(before, 2).holding = True
    for _ in range(8):
        await writer.append(b"x" * 1_000)
    await turns(100)
    after = writer.metadata.fragments[-1].ensemble
    assert after[2] != before[2] and after[3] == before[3], "index 3 is not in this stripe at all"


async def test_a_cancelled_early_id_does_not_keep_the_writer_from_closing() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1, explicit_ids=True)
    await writer.append_at(0, b"a")
    early = asyncio.ensure_future(writer.append_at(5, b"b"))
    await turns()
    early.cancel()
    await turns()
    assert await writer.close() == 0


async def test_a_close_that_had_to_be_repeated_still_asks_for_the_missing_replica() -> None:
    cluster = await Cluster.of(3)
    store = MuteStore(cluster.tree)
    client = cluster.client(store=store)  # type: ignore[arg-type]
    writer = await client.create_ledger(3, 3, 2)
    cluster.at(writer.metadata.fragments[0].ensemble, 2).mute = True
    await writer.append(b"on two of three")
    store.refusing = True
    with pytest.raises(MetadataUnavailable):
        await writer.close()
    store.refusing = False
    assert await writer.close() == 0
    assert writer.metadata.degraded
    assert await client.repairs() == [writer.ledger_id]


async def test_the_lac_is_asked_of_the_ensemble_that_the_writer_is_on_now() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"a")
    await turns()
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    old = cluster.bookies
    for index in range(3):
        await cluster.add(f"n{index}")
    for bookie in old:
        bookie.append_status = Status.READ_ONLY
    await writer.append(b"b")
    await writer.append(b"c")
    await turns(50)
    assert await reader.read_last_add_confirmed() == writer.last_add_confirmed == 2
