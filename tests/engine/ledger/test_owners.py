"""Which ledgers belong to whom, as the sweeps of one process share it."""

import asyncio

import pytest

from engine.errors import MetadataUnavailable
from engine.ledger.client import LedgerClient
from engine.metadata.contract import Versioned
from engine.metadata.ledgers import LEDGERS
from engine.metadata.memory import MemoryStore, MemoryTree
from tests.engine.ledger.scripted import QUICK, Cluster


class CountedStore(MemoryStore):
    """Counts the reads of ledgers' metadata. `held`: reads wait for it."""

    fails = False
    held: asyncio.Event | None = None

    def __init__(self, tree: MemoryTree, seed: int) -> None:
        super().__init__(tree, seed)
        self.reads = 0
        self.asked = asyncio.Event()

    async def get(self, key: str) -> Versioned | None:
        if key.startswith(LEDGERS):
            self.reads += 1
            self.asked.set()
            if self.fails:
                raise MetadataUnavailable("away")
            if self.held is not None:
                await self.held.wait()
        return await super().get(key)


async def _made(cluster: Cluster, owners: list[bytes]) -> list[int]:
    client = cluster.client(QUICK)
    return [(await client.create_ledger(metadata={"owner": owner})).ledger_id for owner in owners]


async def _begun() -> tuple[Cluster, CountedStore, LedgerClient]:
    cluster = await Cluster.of(3)
    store = CountedStore(cluster.tree, 77)
    return cluster, store, cluster.client(QUICK, store=store)


async def test_each_ledger_is_read_once_for_the_sweeps_of_all_owners() -> None:
    cluster, store, client = await _begun()
    names = [b"log:%d" % number for number in range(20)]
    ids = await _made(cluster, names * 2)
    found = await asyncio.gather(*(client.owners.ledgers_of(name) for name in names))
    assert found == [[ids[number], ids[20 + number]] for number in range(20)]
    assert await client.owners.ledgers_of(*names) == ids
    assert store.reads == len(ids)


async def test_ledgers_without_an_owner_and_deleted_ones_belong_to_nobody() -> None:
    cluster, store, client = await _begun()
    one, other = await _made(cluster, [b"log:cows", b"log:cows"])
    await cluster.client(QUICK).create_ledger()
    assert await client.owners.ledgers_of(b"log:cows") == [one, other]
    assert await client.owners.ledgers_of(b"log:sheep") == []
    await client.delete_ledger(one)
    reads = store.reads
    assert await client.owners.ledgers_of(b"log:cows") == [other]
    assert store.reads == reads


async def test_a_ledger_created_while_somebody_else_looks_is_found() -> None:
    cluster, store, client = await _begun()
    [one] = await _made(cluster, [b"log:cows"])
    store.held = asyncio.Event()
    first = asyncio.create_task(client.owners.ledgers_of(b"log:cows"))
    await store.asked.wait()
    [other] = await _made(cluster, [b"log:cows"])
    second = asyncio.create_task(client.owners.ledgers_of(b"log:cows"))
    await asyncio.sleep(0)
    store.held.set()
    assert await first == [one]
    assert await second == [one, other]


async def test_a_look_that_was_cancelled_is_repeated_by_the_next_caller() -> None:
    cluster, store, client = await _begun()
    ids = await _made(cluster, [b"log:cows", b"log:sheep"])
    store.held = asyncio.Event()
    first = asyncio.create_task(client.owners.ledgers_of(b"log:cows"))
    second = asyncio.create_task(client.owners.ledgers_of(b"log:sheep"))
    await store.asked.wait()
    first.cancel()
    store.held.set()
    assert await second == [ids[1]]
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()


async def test_a_ledger_that_cannot_be_read_is_read_again_the_next_time() -> None:
    cluster, store, client = await _begun()
    ids = await _made(cluster, [b"log:cows"] * 2)
    store.fails = True
    with pytest.raises(MetadataUnavailable):
        await client.owners.ledgers_of(b"log:cows")
    store.fails = False
    key = f"{LEDGERS}/{ids[0]}"
    found = await store.get(key)
    assert found is not None
    damaged = await store.set(key, b"damaged", found.version)
    assert await client.owners.ledgers_of(b"log:cows") == [ids[1]]
    await store.set(key, found.value, damaged)
    assert await client.owners.ledgers_of(b"log:cows") == ids
