"""A start that fails lets go of what it opened."""

from tests.engine.bookie.stable import Stable, append, read_all, run_of


async def test_a_failed_start_closes_the_index() -> None:
    yard = Stable()
    await append(await yard.start(), run_of(7, 0, 3))
    for thread in yard.workers.threads.values():
        thread.dead = True
    yard.disk.lose_power()
    yard.index.crash()
    closed: list[bool] = []
    yard.index.close = lambda: closed.append(True)  # type: ignore[method-assign]
    for failing in range(1, 8):
        yard.disk.fail_after = failing
        closed.clear()
        try:
            service = await yard.start()
        except Exception:
            assert closed == [True]
        else:
            assert not closed
            await service.close()
    assert await read_all(await yard.start(), 7, 0, 3) == [0, 1, 2, 3]
