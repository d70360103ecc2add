"""Who waits for a position: woken as it is applied, and costing nothing more once it gave up."""

import asyncio
import time

from engine.log.position import Position
from engine.replica.waiting import Waiting


def waits(waiting: Waiting, count: int) -> "list[asyncio.Task[None]]":
    """Waits for the positions from 1 on."""
    none = Position(0, 0)
    return [
        asyncio.create_task(waiting.for_position(Position(0, number), none))
        for number in range(1, count + 1)
    ]


async def cancelled(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_those_who_stay_are_woken_in_time_when_others_have_given_up() -> None:
    waiting = Waiting()
    tasks = waits(waiting, 30)
    await asyncio.sleep(0)
    await cancelled(tasks[::3] + tasks[1::3])
    waiting.reached(Position(0, 15))
    await asyncio.sleep(0)
    assert [number for number, task in enumerate(tasks, 1) if not task.done()] == [
        *range(18, 31, 3)
    ]
    waiting.reached(Position(0, 30))
    await asyncio.gather(*tasks[2::3])


async def test_to_give_up_costs_the_same_however_many_wait() -> None:
    waiting = Waiting()
    tasks = waits(waiting, 10_000)
    changes = [asyncio.create_task(waiting.for_change()) for _ in range(10_000)]
    await asyncio.sleep(0)
    begun_s = time.process_time()
    await cancelled(tasks + changes)
    # To look for each of them among all others took nine seconds.
    assert time.process_time() - begun_s < 5
