"""Reading ledgers by facts that somebody else has looked up: no session of the metadata store.

Whoever plans the work asks the store for the ledgers that a piece of work reads, and for their
bookies, and sends that along. Who does the work reads from bookies at once: a thousand processes
that read are no thousand sessions of ZooKeeper.

Invariants:
- What was carried is only a beginning: when bookies deny, or cannot be reached, the store itself is
  asked, and from then on everything is.
- Nothing is written by what was carried: a write reaches for the store itself.
- Of a folder nothing is carried: its socket is the store.
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

import msgspec

from engine.errors import InvalidRequest
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.metadata.bookies import AVAILABLE, Bookies
from engine.metadata.contract import MetadataStore, Page, Versioned
from engine.metadata.deadline import DeadlineStore
from engine.metadata.ledgers import LEDGERS
from engine.place import Held, HeldClient, Holding, Place, held_client, open_place
from engine.ports.clock import SystemClock

Reach = Callable[[], Awaitable[MetadataStore]]


class Carried(msgspec.Struct, frozen=True):
    """Keys of a metadata store, and what they held."""

    facts: tuple[tuple[str, bytes], ...] = ()


async def carry(client: LedgerClient, ledger_ids: Iterable[int]) -> Carried:
    """What a reader of these ledgers needs. Raises `NoSuchLedger`, `MetadataUnavailable`."""
    wanted = sorted(set(ledger_ids))
    ledgers = await asyncio.gather(*[client.ledger_metadata(one) for one in wanted])
    bookies = sorted({bookie for ledger in ledgers for bookie in ledger.bookies()})
    keys = [f"{LEDGERS}/{one}" for one in wanted] + [f"{AVAILABLE}/{one}" for one in bookies]
    found = await asyncio.gather(*[client.store.get(key) for key in keys])
    pairs = zip(keys, found, strict=True)
    return Carried(tuple((key, value.value) for key, value in pairs if value is not None))


class CarriedStore:
    """A `MetadataStore` that knows what was carried, and opens the real one if that is too little.

    `reach` opens the real one; it is called once at a time.
    """

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._facts: dict[str, Versioned] = {}
        self._watches: dict[object, tuple[str, Callable[[], None]]] = {}
        self._ends: list[Callable[[], None]] = []
        self._real: MetadataStore | None = None
        self._reaching = asyncio.Lock()

    @property
    def reached(self) -> bool:
        """Whether the real store is asked by now."""
        return self._real is not None

    def learn(self, carried: Carried) -> None:
        """Know more facts; who watches is told of new ones."""
        news = [(key, value) for key, value in carried.facts if key not in self._facts]
        self._facts.update({key: Versioned(value, 0) for key, value in news})
        if news and self._real is None:
            self._fire({key.rpartition("/")[0] for key, _ in news})

    @property
    def cluster_id(self) -> str:
        """The real store's; "" as long as that is not known."""
        return self._real.cluster_id if self._real is not None else ""

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore.get`."""
        if self._real is None and key in self._facts:
            return self._facts[key]
        return await (await self._store()).get(key)

    async def children(self, prefix: str) -> list[str]:
        """See `MetadataStore.children`; of bookies those that were carried are enough to begin."""
        if self._real is None and prefix == AVAILABLE:
            begin = f"{AVAILABLE}/"
            return sorted(key.removeprefix(begin) for key in self._facts if key.startswith(begin))
        return await (await self._store()).children(prefix)

    async def page(self, prefix: str, above: int = -1) -> Page:
        """See `MetadataStore.page`."""
        return await (await self._store()).page(prefix, above)

    async def sync(self) -> None:
        """See `MetadataStore.sync`: what was carried may be old, so the real store is asked."""
        await (await self._store()).sync()

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """See `MetadataStore.create`."""
        return await (await self._store()).create(key, value, ephemeral=ephemeral)

    async def set(self, key: str, value: bytes, version: int) -> int:
        """See `MetadataStore.set`."""
        return await (await self._store()).set(key, value, version)

    async def delete(self, key: str, version: int | None = None) -> None:
        """See `MetadataStore.delete`."""
        await (await self._store()).delete(key, version)

    async def next_id(self, counter: str) -> int:
        """See `MetadataStore.next_id`."""
        return await (await self._store()).next_id(counter)

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        if self._real is not None:
            return self._real.watch(key, changed)
        mark = object()
        self._watches[mark] = (key, changed)

        def end() -> None:
            self._watches.pop(mark, None)

        return end

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """See `MetadataStore.watch_session`; what was carried rests on no session."""
        return self._real.watch_session(lost) if self._real is not None else lambda: None

    async def close(self) -> None:
        """End the watches; who opened the real store closes it."""
        for end in self._ends:
            end()
        self._watches.clear()

    async def _store(self) -> MetadataStore:
        async with self._reaching:
            if self._real is None:
                real = await self._reach()
                self._real = real
                # Bookies may be elsewhere than what was carried says: all who watch look again.
                for key, changed in list(self._watches.values()):
                    self._ends.append(real.watch(key, changed))
                self._fire({key for key, _ in self._watches.values()})
            return self._real

    def _fire(self, keys: Collection[str]) -> None:
        for key, changed in list(self._watches.values()):
            if key in keys:
                changed()


class CarryingClient(LedgerClient):
    """A `LedgerClient` that begins with what was carried. Made by `open_carrying`."""

    carried: CarriedStore


@asynccontextmanager
async def open_carrying(place: Place) -> AsyncIterator[CarryingClient]:
    """A client of a cluster that asks its metadata store only when what was carried fails.

    Raises `InvalidRequest` for security that cannot be used, and for a folder.
    """
    if not place.is_cluster:
        raise InvalidRequest(f"{place.url} is no cluster: a folder's socket is its store")
    from engine.connecting import make_transport

    clock = SystemClock()
    rng = random.SystemRandom()  # noqa: TID251 (this module wires the real components together)
    settings = replace(ClientSettings(), host=socket.gethostname())
    async with AsyncExitStack() as stack:

        async def reach() -> MetadataStore:
            return (await stack.enter_async_context(open_place(place))).store

        store = CarriedStore(reach)
        bookies = Bookies(DeadlineStore(store, settings.metadata_timeout_ms))
        transport = make_transport(bookies, place.make_security(), place.wire, clock, rng)
        client = CarryingClient(
            store=store, transport=transport, clock=clock, rng=rng, settings=settings
        )
        client.carried = store
        try:
            yield client
        finally:
            await client.close()
            await store.close()


class HeldReader(Held[CarryingClient]):
    """A client that begins with what was carried, kept open."""

    @property
    def client(self) -> CarryingClient:
        """Use it on the loop, by `run`."""
        return self.opened


_readers: Final = Holding(lambda place: HeldReader(open_carrying(place)))


def held_reader(place: Place, carried: Carried) -> HeldReader | HeldClient:
    """What reads ledgers of a place in this process, and knows what was carried. Blocks.

    Without anything carried, and of a folder, that is the one client which the process has anyway:
    a second would be a second session. Raises as `open_carrying` and `engine.place.held_client`.
    """
    if not place.is_cluster or not carried.facts:
        return held_client(place)
    held = _readers.at(place)

    async def learn() -> None:
        held.client.carried.learn(carried)

    held.run(learn)
    return held
