"""A bookie's registration and the session that it rests on."""

import asyncio
from collections.abc import Callable

from engine.bookie.service import BookieService
from engine.errors import MetadataUnavailable
from engine.metadata.bookies import AVAILABLE, Bookies
from engine.metadata.losses import Losses
from engine.metadata.memory import MemoryStore, MemoryTree
from tests.engine.bookie.stable import Stable, turns


class ResumingStore:
    """A store that goes on with another session, as ZooKeeper's does, when it lost one."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self._losses = Losses()
        self._watches: list[tuple[str, Callable[[], None]]] = []
        self.session: MemoryStore = tree.session()
        self.refusals = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.session, name)

    async def delete(self, key: str, version: int | None = None) -> None:
        if self.refusals:
            self.refusals -= 1
            raise MetadataUnavailable("no connection")
        await self.session.delete(key, version)

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        self._watches.append((key, changed))
        return self.session.watch(key, changed)

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        return self._losses.watch(lost)

    def resume(self) -> MemoryStore:
        """Begin another session and tell; returns the old one, which the tree still keeps."""
        old, self.session = self.session, MemoryTree.session(self._tree)
        for key, changed in self._watches:
            self.session.watch(key, changed)
        self._losses.tell(asyncio.get_running_loop())
        return old


async def start_with(yard: Stable, store: ResumingStore) -> BookieService:
    yard.tree.session = lambda: store  # type: ignore[method-assign, assignment, return-value]
    try:
        return await yard.start()
    finally:
        del yard.tree.session


async def registered(yard: Stable) -> bool:
    return bool(await Bookies(yard.tree.session()).available())


async def test_a_registration_moves_to_the_next_session_before_the_old_one_is_forgotten() -> None:
    yard = Stable()
    store = ResumingStore(yard.tree)
    service = await start_with(yard, store)
    old = store.resume()
    await turns()
    old.expire()
    assert await registered(yard)
    store.session.expire()
    assert not await registered(yard)
    await service.close()


async def test_a_registration_that_failed_in_the_next_session_is_tried_until_it_stands() -> None:
    yard = Stable()
    store = ResumingStore(yard.tree)
    service = await start_with(yard, store)
    key = f"{AVAILABLE}/{service.bookie_id}"
    moved = asyncio.Event()
    yard.tree.tree.watch(key, moved.set)
    store.refusals = 1
    old = store.resume()
    async with asyncio.timeout(10):
        await moved.wait()
    await turns()
    assert store.refusals == 0
    old.expire()
    assert await registered(yard)
    await service.close()


class EndingStore(ResumingStore):
    """A store whose session ends just when the bookie has registered in it."""

    ended: MemoryStore | None = None

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        version = await self.session.create(key, value, ephemeral=ephemeral)
        if ephemeral and self.ended is None:
            self.ended = self.resume()
            await turns()
        return version


async def test_a_session_that_ends_while_a_bookie_starts_takes_no_registration_along() -> None:
    yard = Stable()
    store = EndingStore(yard.tree)
    service = await start_with(yard, store)
    await turns()
    assert store.ended is not None
    store.ended.expire()
    assert await registered(yard)
    await service.close()


async def test_a_bookie_that_has_ended_registers_no_more() -> None:
    yard = Stable()
    store = ResumingStore(yard.tree)
    service = await start_with(yard, store)
    await service.close()
    store.resume()
    await turns()
    assert not await registered(yard)
