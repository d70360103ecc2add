"""Turns of takeovers: how many at a time, who goes first, and callers that are cancelled."""

import asyncio
import math
import random

import pytest

from engine.metadata.takeovers import Takeovers


class Room:
    """Takes turns, and knows who has one."""

    def __init__(self, at_once: int) -> None:
        self.takeovers = Takeovers(at_once)
        self.inside: list[str] = []
        self.begun: list[str] = []
        self.left = asyncio.Event()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def enter(self, name: str, written_s: float = 0.0) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._takes(name, written_s))

    async def leave(self, name: str) -> None:
        self._ends[name].set()
        await settle()

    async def _takes(self, name: str, written_s: float) -> None:
        async with self.takeovers.turn(written_s):
            self.begun.append(name)
            self.inside.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.inside.remove(name)
                self.left.set()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_more_than_the_limit_are_taken_over_at_a_time() -> None:
    room = Room(2)
    for name in "abc":
        room.enter(name)
    await settle()
    assert room.inside == ["a", "b"] and room.takeovers.free == 0
    await room.leave("a")
    assert room.inside == ["b", "c"]
    await room.leave("b")
    await room.leave("c")
    assert room.takeovers.free == 2


async def test_the_log_that_was_written_last_is_taken_over_first() -> None:
    room = Room(1)
    room.enter("first", 9.0)
    await settle()
    room.enter("old", 1.0)
    room.enter("new", 5.0)
    room.enter("old too", 1.0)
    await settle()
    for name in ("first", "new", "old", "old too"):
        await room.leave(name)
    assert room.begun == ["first", "new", "old", "old too"]


async def test_logs_that_come_again_and_again_keep_no_other_one_waiting() -> None:
    room = Room(2)
    for number in range(10):
        room.enter(f"failing {number}", 9.0)
    await settle()
    room.enter("old", 1.0)
    room.enter("older", -math.inf)
    for number in range(10, 60):
        room.enter(f"failing {number}", 9.0)
        await room.leave(room.inside[0])
    assert {"old", "older"} <= set(room.begun)


async def test_a_block_that_fails_gives_its_turn_to_the_next_one() -> None:
    room = Room(1)
    room.enter("a")
    await settle()
    room.enter("b")
    await settle()
    room.tasks["a"].cancel()
    await settle()
    assert room.inside == ["b"]


@pytest.mark.parametrize("passed_on", [False, True])
async def test_a_caller_that_is_cancelled_keeps_nobody_waiting(passed_on: bool) -> None:
    """Before it has a turn, and between the moment when it gets one and the one when it runs."""
    room = Room(1)
    room.enter("a")
    await settle()
    room.enter("b", 2.0)
    room.enter("c", 1.0)
    await settle()
    if passed_on:
        room._ends["a"].set()
        await room.left.wait()
    room.tasks["b"].cancel()
    await room.leave("a")
    assert room.begun == ["a", "c"]
    await room.leave("c")
    assert room.takeovers.free == 1


@pytest.mark.parametrize("seed", range(10))
async def test_no_turn_is_lost_when_callers_come_and_are_cancelled_at_random(seed: int) -> None:
    rng, takeovers, inside = random.Random(seed), Takeovers(3), 0

    async def take() -> None:
        nonlocal inside
        async with takeovers.turn(rng.random()):
            inside += 1
            assert inside <= 3
            try:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                inside -= 1

    tasks = [asyncio.create_task(take()) for _ in range(40)]
    while not all(task.done() for task in tasks):
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not any(task.exception() for task in tasks if not task.cancelled())
    assert takeovers.free == 3
