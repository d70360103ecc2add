"""Bytes that may be held at once."""

import asyncio

from engine.transport.byte_budget import ByteBudget


async def test_what_does_not_fit_waits_until_bytes_are_given_back() -> None:
    budget = ByteBudget(100)
    await budget.acquire(60)
    waiting = asyncio.ensure_future(budget.acquire(60))
    await asyncio.sleep(0)
    assert not waiting.done() and budget.held_bytes == 60
    budget.give(60)
    await waiting
    assert budget.held_bytes == 60


async def test_more_than_the_whole_budget_is_let_on_alone() -> None:
    budget = ByteBudget(100)
    await budget.acquire(1)
    waiting = asyncio.ensure_future(budget.acquire(500))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.give(1)
    await waiting
    assert budget.held_bytes == 500


async def test_those_who_wait_are_let_on_in_order_and_a_small_one_does_not_pass_a_big_one() -> None:
    budget = ByteBudget(100)
    await budget.acquire(90)
    order: list[int] = []

    async def ask(size_bytes: int) -> None:
        await budget.acquire(size_bytes)
        order.append(size_bytes)

    asked = [asyncio.ensure_future(ask(size_bytes)) for size_bytes in (80, 5, 6)]
    await asyncio.sleep(0)
    assert order == []
    budget.give(90)
    await asyncio.gather(*asked)
    assert order == [80, 5, 6] and budget.held_bytes == 91


async def test_one_who_gives_up_waiting_holds_nothing_and_lets_others_on() -> None:
    budget = ByteBudget(100)
    await budget.acquire(50)
    first = asyncio.ensure_future(budget.acquire(80))
    second = asyncio.ensure_future(budget.acquire(50))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert budget.held_bytes == 100


async def test_relief_comes_when_half_of_the_budget_is_free() -> None:
    budget = ByteBudget(100)
    budget.take(100)
    await budget.relief()
    budget.take(1)
    waiting = asyncio.ensure_future(budget.relief())
    for _ in range(50):
        assert not waiting.done()
        await asyncio.sleep(0)
        budget.give(1)
    budget.give(1)
    await waiting
    assert budget.held_bytes == 50
