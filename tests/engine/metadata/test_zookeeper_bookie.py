"""A bookie whose session with a real ZooKeeper ends comes back by itself."""

import asyncio

from engine.bookie.service import BookieService
from engine.metadata.bookies import AVAILABLE, Bookies
from tests.engine.bookie.stable import Stable
from tests.engine.metadata.test_zookeeper import connect, end_session
from tests.engine.metadata.zookeeper_fixture import fresh_chroot


async def test_a_bookie_whose_session_was_ended_registers_with_the_next_one() -> None:
    chroot = fresh_chroot()
    store, looker = await connect(chroot), await connect(chroot)
    yard = Stable()
    service = await BookieService.start(
        disk=yard.disk,
        open_index=lambda: yard.index,
        workers=yard.workers,
        clock=yard.clock,
        rng=yard.rng,
        store=store,
        settings=yard.settings,
    )
    bookies = Bookies(looker)
    seen = await bookies.available()
    assert list(seen) == [service.bookie_id]
    changed = asyncio.Event()
    looker.watch(f"{AVAILABLE}/{service.bookie_id}", changed.set)
    await changed.wait()
    for _ in range(2):
        before = store.session
        changed.clear()
        await end_session(store)
        async with asyncio.timeout(20):
            while before == store.session or await bookies.available() != seen:
                await changed.wait()
                changed.clear()
    await service.close()
    await looker.sync()
    assert await bookies.available() == {}
    await asyncio.gather(store.close(), looker.close())
