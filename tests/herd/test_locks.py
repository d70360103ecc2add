"""Locks: who is let in, who waits, who is told to begin again, and that nothing stays behind."""

import asyncio
import itertools
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd import locks
from herd.errors import Deadlock, Error, LockTimeout, TransactionEnded
from herd.locks import Holder, LockTable

LONG_MS = 60_000

TABLE = 7


async def turns(count: int = 8) -> None:
    """Let everybody else run until they wait."""
    for _ in range(count):
        await asyncio.sleep(0)


def begun(
    table: LockTable, holder: Holder, key: str, *, exclusive: bool = True, timeout_ms: int = LONG_MS
) -> "asyncio.Task[None]":
    """A task that takes a lock."""
    return asyncio.create_task(table.lock(holder, key, timeout_ms, exclusive))


def test_one_holder_keeps_all_others_out_until_it_lets_go() -> None:
    table, one, two = LockTable(), Holder(), Holder()
    assert table.try_lock(one, "a")
    assert table.try_lock(one, "a")
    assert not table.try_lock(two, "a")
    assert not table.try_lock(two, "a", exclusive=False)
    assert table.held_by_others(two, "a") and not table.held_by_others(one, "a")
    table.release(one)
    assert table.try_lock(two, "a")
    table.release(two)
    assert len(table) == 0


def test_a_shared_lock_lets_sharers_in_and_nobody_else() -> None:
    table, one, two, three = LockTable(), Holder(), Holder(), Holder()
    assert table.try_lock(one, "a", exclusive=False)
    assert table.try_lock(two, "a", exclusive=False)
    assert not table.try_lock(three, "a")
    assert not table.try_lock(one, "a")
    table.release(two)
    assert table.try_lock(one, "a"), "the only sharer may have it alone"
    assert not table.try_lock(three, "a", exclusive=False)
    table.release(one)
    assert len(table) == 0


async def test_those_who_wait_are_served_in_their_order() -> None:
    table, first = LockTable(), Holder()
    table.try_lock(first, "a")
    served: list[int] = []

    async def take(number: int, holder: Holder) -> None:
        await table.lock(holder, "a", LONG_MS)
        served.append(number)
        table.release(holder)

    tasks = [asyncio.create_task(take(number, Holder())) for number in range(5)]
    await turns()
    assert served == []
    table.release(first)
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]
    assert len(table) == 0


async def test_a_sharer_does_not_pass_one_who_waits_for_it_alone() -> None:
    table, sharer, writer, late = LockTable(), Holder(), Holder(), Holder()
    table.try_lock(sharer, "a", exclusive=False)
    waiting = begun(table, writer, "a")
    await turns()
    assert not table.try_lock(late, "a", exclusive=False)
    latecomer = begun(table, late, "a", exclusive=False)
    await turns()
    table.release(sharer)
    await waiting
    assert not latecomer.done()
    table.release(writer)
    await latecomer
    table.release(late)
    assert len(table) == 0


async def test_several_sharers_are_let_in_at_once() -> None:
    table, first = LockTable(), Holder()
    table.try_lock(first, "a")
    sharers = [Holder() for _ in range(3)]
    tasks = [begun(table, sharer, "a", exclusive=False) for sharer in sharers]
    await turns()
    table.release(first)
    await asyncio.gather(*tasks)
    for sharer in sharers:
        table.release(sharer)
    assert len(table) == 0


async def test_a_sharer_that_wants_it_alone_goes_before_those_who_have_nothing() -> None:
    table, one, two, late = LockTable(), Holder(), Holder(), Holder()
    table.try_lock(one, "a", exclusive=False)
    table.try_lock(two, "a", exclusive=False)
    latecomer = begun(table, late, "a")
    await turns()
    upgrade = begun(table, one, "a")
    await turns()
    table.release(two)
    await upgrade
    assert not latecomer.done()
    table.release(one)
    await latecomer
    table.release(late)
    assert len(table) == 0


async def test_two_sharers_that_both_want_it_alone_are_a_deadlock() -> None:
    table, one, two = LockTable(), Holder(), Holder()
    table.try_lock(one, "a", exclusive=False)
    table.try_lock(two, "a", exclusive=False)
    upgrade = begun(table, one, "a")
    await turns()
    with pytest.raises(Deadlock):
        await table.lock(two, "a", LONG_MS)
    table.release(two)
    await upgrade
    table.release(one)
    assert len(table) == 0


@pytest.mark.parametrize("size", [2, 3, 7])
async def test_a_circle_of_waits_is_refused_as_it_closes(size: int) -> None:
    table = LockTable()
    holders = [Holder() for _ in range(size)]
    for number, holder in enumerate(holders):
        table.try_lock(holder, f"{number}")
    waits = [begun(table, holder, f"{number + 1}") for number, holder in enumerate(holders[:-1])]
    await turns()
    with pytest.raises(Deadlock):
        await table.lock(holders[-1], "0", LONG_MS)
    table.release(holders[-1])
    for waiting, holder in zip(reversed(waits), reversed(holders[:-1]), strict=True):
        await waiting
        table.release(holder)
    assert len(table) == 0


async def test_a_circle_through_one_who_waits_in_the_queue_is_refused() -> None:
    table, owner, reader, writer = LockTable(), Holder(), Holder(), Holder()
    table.try_lock(owner, "a", exclusive=False)
    table.try_lock(reader, "b")
    waiting = begun(table, writer, "a")
    await turns()
    second = begun(table, owner, "b")
    await turns()
    # `reader` could share "a" with `owner`, but `writer` waits for it before, and for `owner`.
    with pytest.raises(Deadlock):
        await table.lock(reader, "a", LONG_MS, exclusive=False)
    table.release(reader)
    await second
    table.release(owner)
    await waiting
    table.release(writer)
    assert len(table) == 0


def waited_for(wait: Any) -> list[Any]:
    """The waits of all whom somebody waits for, as the rule says it."""
    before = itertools.takewhile(lambda other: other is not wait, wait.lock.queue)
    holders = {*wait.lock.holders, *(other.holder for other in before)} - {wait.holder}
    waits = [holder.waiting for holder in holders]
    return [each for each in waits if each is not None and not each.future.done()]


def in_circle(start: Any) -> bool:
    """Whether a wait is reached from itself, each wait looked at by itself."""
    seen, ahead = set(), waited_for(start)
    while ahead:
        wait = ahead.pop()
        if wait not in seen:
            seen.add(wait)
            ahead += waited_for(wait)
    return start in seen


@pytest.mark.parametrize("seed", range(30))
async def test_circles_are_found_exactly_where_the_rule_says(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, found, quick = random.Random(seed), [], locks._circle

    def both(wait: Any) -> bool:
        found.append(in_circle(wait))
        assert quick(wait) is found[-1]
        return found[-1]

    monkeypatch.setattr(locks, "_circle", both)
    table, holders = LockTable(), [Holder() for _ in range(7)]
    tasks: list[asyncio.Task[None]] = []
    for _ in range(300):
        holder = rng.choice(holders)
        if holder.waiting is None and rng.random() < 0.8:
            tasks.append(begun(table, holder, rng.choice("abcd"), exclusive=rng.random() < 0.6))
        elif holder.waiting is None:
            table.release(holder)
        await turns(3)
        for task in [task for task in tasks if task.done()]:
            tasks.remove(task)
            assert task.exception() is None or isinstance(task.exception(), Deadlock)
    assert True in found and False in found
    for holder in holders:
        table.release(holder)
    await asyncio.gather(*tasks, return_exceptions=True)
    for holder in holders:
        table.release(holder)
    assert len(table) == 0


async def test_a_wait_costs_the_same_however_many_wait_for_that_lock() -> None:
    table, first = LockTable(), Holder()
    table.try_lock(first, "a")
    holders = [Holder() for _ in range(4_000)]
    begun_s = time.process_time()
    waits = [begun(table, holder, "a") for holder in holders]
    await turns()
    for wait in waits[::2]:
        wait.cancel()
    await asyncio.wait(waits[::2])
    table.release(first)
    for wait, holder in zip(waits[1::2], holders[1::2], strict=True):
        await wait
        table.release(holder)
    # To look at each of those who waited before, for each of them, took minutes.
    assert time.process_time() - begun_s < 5
    assert len(table) == 0


async def test_who_was_served_in_this_turn_waits_for_nobody() -> None:
    table, first, one, two = LockTable(), Holder(), Holder(), Holder()
    table.try_lock(first, "a")
    table.try_lock(two, "b")
    refused: list[Error] = []

    async def share(holder: Holder, then: str | None) -> None:
        await table.lock(holder, "a", LONG_MS, exclusive=False)
        if then is not None:
            try:
                await table.lock(holder, then, LONG_MS)
            except Deadlock as error:
                refused.append(error)

    tasks = [asyncio.create_task(share(one, "b")), asyncio.create_task(share(two, None))]
    await turns()
    table.release(first)
    await tasks[1]
    await turns()
    assert refused == [], "the one it waits for has been served and goes on"
    table.release(two)
    await tasks[0]
    table.release(one)
    assert len(table) == 0


async def test_a_wait_ends_when_its_time_is_over() -> None:
    table, one, two, three = LockTable(), Holder(), Holder(), Holder()
    table.try_lock(one, "a", exclusive=False)
    impatient = begun(table, two, "a", timeout_ms=1)
    behind = begun(table, three, "a", exclusive=False)
    with pytest.raises(LockTimeout, match="try it again"):
        await impatient
    await behind
    table.release(one)
    table.release(three)
    table.release(two)
    assert len(table) == 0


async def test_a_waiter_that_is_cancelled_leaves_nothing_and_lets_the_next_one_in() -> None:
    table, one, two, three = LockTable(), Holder(), Holder(), Holder()
    table.try_lock(one, "a", exclusive=False)
    waiting = begun(table, two, "a")
    behind = begun(table, three, "a", exclusive=False)
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await behind
    table.release(one)
    table.release(three)
    assert two.locks == []
    assert len(table) == 0


async def queued() -> tuple[LockTable, list[Holder], list["asyncio.Task[None]"]]:
    """Three who want the same row, the second and the third of them in vain so far."""
    table, holders = LockTable(), [Holder() for _ in range(3)]
    table.try_lock(holders[0], "a")
    waiting = [begun(table, holder, "a") for holder in holders[1:]]
    await turns()
    return table, holders, waiting


async def test_one_that_is_cancelled_in_the_turn_in_which_it_is_served_holds_the_lock() -> None:
    table, (one, two, three), (waiting, behind) = await queued()
    table.release(one)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await turns()
    assert not behind.done()
    table.release(two)
    await behind
    table.release(three)
    assert len(table) == 0


async def test_one_that_is_cancelled_before_it_is_served_is_passed_over() -> None:
    table, (one, two, three), (waiting, behind) = await queued()
    waiting.cancel()
    table.release(one)
    await behind
    with pytest.raises(asyncio.CancelledError):
        await waiting
    table.release(three)
    assert two.locks == []
    assert len(table) == 0


async def test_one_that_is_ended_while_it_waits_gets_nothing_afterwards() -> None:
    table, (one, two, three), (waiting, behind) = await queued()
    table.release(two)
    table.release(one)
    with pytest.raises(TransactionEnded):
        await waiting
    await behind
    assert two.locks == []
    table.release(three)
    assert len(table) == 0


async def test_one_that_is_ended_in_the_turn_in_which_it_is_served_lets_go() -> None:
    table, (one, two, three), (waiting, behind) = await queued()
    table.release(one)
    table.release(two)
    await waiting
    await behind
    table.release(three)
    assert len(table) == 0


class _Crowd:
    """Holders that lock, wait, are cancelled and let go at random; rights are checked all along."""

    def __init__(self, rng: random.Random) -> None:
        self.table = LockTable()
        self.rng = rng
        self.rights: dict[str, dict[Holder, bool]] = {}

    async def live(self, steps: int, keys: int) -> None:
        """One holder after the other."""
        for _ in range(steps):
            holder = Holder()
            for _ in range(self.rng.randint(1, 4)):
                key, exclusive = f"{self.rng.randrange(keys)}", self.rng.random() < 0.5
                if not await self._take(holder, key, exclusive):
                    break
                await turns(self.rng.randrange(3))
            for held in self.rights.values():
                held.pop(holder, None)
            self.table.release(holder)
            assert holder.waiting is None and holder.locks == []

    async def _take(self, holder: Holder, key: str, exclusive: bool) -> bool:
        timeout_ms = self.rng.choice([0, LONG_MS, LONG_MS, LONG_MS])
        task = begun(self.table, holder, key, exclusive=exclusive, timeout_ms=timeout_ms)
        if self.rng.random() < 0.15:
            await turns(self.rng.randrange(6))
            task.cancel()
        try:
            await task
        except (LockTimeout, Deadlock, asyncio.CancelledError):
            return False
        held = self.rights.setdefault(key, {})
        held[holder] = exclusive or held.get(holder, False)
        if held[holder]:
            assert set(held) == {holder}, "two hold what one wants alone"
        else:
            assert not any(held.values()), "somebody shares what another has alone"
        return True


@given(st.integers(0, 2**32))
def test_random_holders_never_collide_hang_or_leave_anything(seed: int) -> None:
    rng = random.Random(seed)

    async def crowd() -> None:
        made = _Crowd(rng)
        lives = [made.live(12, rng.randint(1, 5)) for _ in range(rng.randint(2, 6))]
        async with asyncio.timeout(20):
            await asyncio.gather(*lives)
        assert len(made.table) == 0

    asyncio.run(crowd())


async def test_a_short_write_does_not_overtake_a_waiter_for_the_table() -> None:
    table, alone = LockTable(), Holder()
    assert table.try_short(TABLE, b"first")
    waiting = asyncio.ensure_future(table.lock(alone, TABLE, 60_000))
    await asyncio.sleep(0)
    # Short writes without an end would keep it waiting for ever.
    assert not table.try_short(TABLE, b"second")
    table.release_short(TABLE, b"first")
    await waiting
    assert not table.try_short(TABLE, b"third")
    table.release(alone)
    assert table.try_short(TABLE, b"fourth")
    table.release_short(TABLE, b"fourth")
    assert len(table) == 0


async def test_the_only_holder_of_a_lock_finds_no_other_holders() -> None:
    table, one, two = LockTable(), Holder(), Holder()
    assert not table.held_by_others(one, TABLE)
    assert table.try_lock(one, TABLE, exclusive=False)
    assert not table.held_by_others(one, TABLE) and table.held_by_others(two, TABLE)
    assert table.try_lock(two, TABLE, exclusive=False)
    assert table.held_by_others(one, TABLE)
    table.release(two)
    assert not table.held_by_others(one, TABLE)
