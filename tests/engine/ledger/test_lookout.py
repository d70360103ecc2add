"""A writer, or whoever else looks after news, misses none of it."""

import asyncio

from engine.errors import MetadataUnavailable
from engine.ledger.lookout import Lookout
from engine.metadata.contract import Versioned
from engine.metadata.memory import MemoryStore, MemoryTree
from tests.engine.ledger.scripted import Cluster, turns, until


class SlowStore:
    """A store whose answers about bookies wait for a gate, or fail."""

    def __init__(self, tree: MemoryTree) -> None:
        self._store: MemoryStore = tree.session()
        self.gate: asyncio.Event | None = None
        self.waiting = 0
        self.refusals = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str) -> Versioned | None:
        found = await self._store.get(key)
        if key.startswith("/bookies/"):
            if self.refusals:
                self.refusals -= 1
                raise MetadataUnavailable("the reply was lost")
            if self.gate is not None:
                self.waiting += 1
                await self.gate.wait()
        return found


async def test_a_bookie_that_goes_while_the_writer_looks_is_noticed_too() -> None:
    cluster = await Cluster.of(7)
    store = SlowStore(cluster.tree)
    client = cluster.client(store=store)  # type: ignore[arg-type]
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"x")
    first, second, _ = writer.metadata.fragments[-1].ensemble
    gate = store.gate = asyncio.Event()
    for name in (first, second):
        cluster.transport.bookies[name].down = True
        await cluster.registry.unregister(name)
        await until(lambda: store.waiting > 0)
    store.gate = None
    gate.set()
    await until(lambda: not {first, second} & set(writer.metadata.fragments[-1].ensemble))
    assert await writer.append(b"y") == 1
    await writer.close()


async def test_a_look_that_the_store_did_not_answer_is_tried_again() -> None:
    cluster = await Cluster.of(4)
    store = SlowStore(cluster.tree)
    client = cluster.client(store=store)  # type: ignore[arg-type]
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"x")
    lost = writer.metadata.fragments[-1].ensemble[0]
    store.refusals = 1
    cluster.transport.bookies[lost].down = True
    await cluster.registry.unregister(lost)
    await until(lambda: lost not in writer.metadata.fragments[-1].ensemble)
    assert store.refusals == 0
    await writer.close()


async def test_much_news_costs_one_look_more() -> None:
    looks = 0
    gate = asyncio.Event()

    async def look() -> None:
        nonlocal looks
        looks += 1
        await gate.wait()

    lookout = Lookout(look)
    lookout.news()
    await turns(2)
    for _ in range(10):
        lookout.news()
    gate.set()
    await turns(20)
    assert looks == 2


async def test_who_has_stopped_looks_no_more() -> None:
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        raise MetadataUnavailable("no connection")

    lookout = Lookout(look)
    lookout.news()
    await turns(2)
    lookout.stop()
    lookout.news()
    await turns(20)
    assert looks == 1
