"""When a ledger was written last is known of each one, however many are written meanwhile."""

from engine.bookie.garbage import Collector, GarbageSettings
from tests.engine.bookie.house import House, HouseClock
from tests.simulation.virtual import elapse, virtually

DEAD = (100, 101, 102)
STEP_S = 10.0
QUICK = GarbageSettings(interval_ms=10_000, quiet_ms=60_000, share_max=1.0, unasked_ledgers_max=100)


def test_ledgers_in_steady_use_do_not_keep_others_from_being_collected() -> None:
    async def script() -> None:
        house = House(ledger_states_max=2)
        await house.start()
        store = house.tree.session()
        for ledger_id in DEAD:
            await house.stored(0, b"x", ledger_id=ledger_id)
        writers = (1, 2, 3, 4)
        for ledger_id in writers:
            await store.create(f"/ledgers/{ledger_id}", b"cow")
        collector = Collector(house.service, store, HouseClock(), QUICK)
        buried: list[int] = []
        for step in range(20):
            for ledger_id in writers:
                await house.stored(step, b"y", ledger_id=ledger_id)
            await house.indexed()
            # One more ledger makes others leave the memory.
            await store.create(f"/ledgers/{1_000 + step}", b"cow")
            await house.stored(0, b"z", ledger_id=1_000 + step)
            await house.indexed()
            await elapse(STEP_S)
            found = await collector.collect()
            buried += found.buried
        # In use, and new within the last minute.
        assert found.recent == len(writers) + 5
        assert tuple(buried) == DEAD
        await house.service.close()

    virtually(script())


def test_a_ledger_just_written_is_known_as_such_after_it_left_the_memory() -> None:
    async def script() -> None:
        house = House(ledger_states_max=1)
        await house.start()
        await elapse(7 * STEP_S)
        await house.stored(0, b"x", ledger_id=DEAD[0])
        await house.indexed()
        await elapse(1)
        for ledger_id in range(40):
            await house.stored(0, b"y", ledger_id=ledger_id)
            await house.indexed()
        now_s = HouseClock().monotonic()
        # The memory of writes is bounded, too: what it has lost counts as written later.
        assert now_s - 1 <= house.service.written_s(DEAD[0]) <= now_s
        assert len(house.service.storage.states._written_s) <= 10
        await house.service.close()

    virtually(script())
