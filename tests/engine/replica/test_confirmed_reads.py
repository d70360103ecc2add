"""Reads of a leader whose lease has expired: in virtual time."""

import asyncio

import pytest

from engine.errors import NotLeader, OutcomeUnknown
from engine.replica import ConfirmedReads, ReadRows
from engine.replica.contract import Role
from engine.replica.replica import Replica
from tests.engine.replica.held_replicas import LEASE_S, Replicas, reached, with_replicas
from tests.simulation.virtual import elapse

A = b"a"


def _look(rows: ReadRows) -> bytes | None:
    return rows.get(A)


async def _without_leases(made: Replicas) -> Replica:
    """A leader that has written `a`, when nobody reaches the metadata store any more."""
    one = await made.leader("one")
    await made.start("two")
    await one.propose(b"a=1")
    for session in made.sessions.values():
        session.hold()
    await reached(lambda: not one.may_answer(), 2 * LEASE_S)
    return one


async def _deposed(made: Replicas) -> tuple[Replica, Replica]:
    """A leader that alone has lost the store and does not know its successor, which has written."""
    one = await made.leader("one")
    two = await made.start("two")
    await one.propose(b"a=1")
    made.session("one").hold()
    await reached(two.may_answer, 4 * LEASE_S)
    await two.propose(b"a=2")
    assert one.role is Role.LEADER
    return one, two


def test_reads_go_on_while_nobody_reaches_the_store_and_share_an_append() -> None:
    async def script(made: Replicas) -> None:
        one = await _without_leases(made)
        with pytest.raises(NotLeader):
            one.read_now(_look)
        before = one.position.entry
        assert await asyncio.gather(*(one.read(_look) for _ in range(50))) == [b"1"] * 50
        assert one.position.entry <= before + 2, "theirs, and perhaps the one of each lease"

    with_replicas(script)


def test_a_deposed_leader_answers_no_read_though_it_has_lost_only_the_store() -> None:
    async def script(made: Replicas) -> None:
        one, two = await _deposed(made)
        with pytest.raises(NotLeader):
            await one.read(_look)
        assert await two.read(_look) == b"2"

    with_replicas(script)


def test_what_follows_from_a_read_that_is_not_confirmed_is_not_raised_either() -> None:
    async def script(made: Replicas) -> None:
        one, _ = await _deposed(made)
        with pytest.raises(NotLeader):
            async with ConfirmedReads():
                if one.read_now(_look) == b"1":
                    raise KeyError("there is no cow")

    with_replicas(script)


def test_a_block_that_is_cancelled_waits_for_no_confirmation() -> None:
    async def script(made: Replicas) -> None:
        one, _ = await _deposed(made)

        async def reading() -> None:
            async with ConfirmedReads():
                assert one.read_now(_look) == b"1"
                await asyncio.Event().wait()

        task = asyncio.create_task(reading())
        await asyncio.sleep(0)
        task.cancel()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() == began_s

    with_replicas(script)


def test_a_write_of_the_block_confirms_what_was_read_before_it() -> None:
    async def script(made: Replicas) -> None:
        one = await _without_leases(made)
        before = one.position.entry
        async with ConfirmedReads():
            assert one.read_now(_look) == b"1"
            await one.propose(b"a=2")
        assert one.position.entry == before + 1
        async with ConfirmedReads():
            await one.propose(b"a=3")
            assert one.read_now(_look) == b"3"
        assert one.position.entry == before + 3

    with_replicas(script)


def test_a_block_that_has_written_is_never_said_to_have_done_nothing() -> None:
    async def script(made: Replicas) -> None:
        one = await _without_leases(made)
        with pytest.raises(OutcomeUnknown):
            async with ConfirmedReads():
                await one.propose(b"a=2")
                made.session("two").let_go()
                await reached(lambda: made.replicas[1].may_answer(), 4 * LEASE_S)
                assert one.read_now(_look) == b"2"
        assert await made.replicas[1].read(_look) == b"2"

    with_replicas(script)


def test_a_read_waits_for_an_entry_that_is_sent_after_it() -> None:
    async def script(made: Replicas) -> None:
        one = await _without_leases(made)
        sent = one.propose(b"a=2")
        await asyncio.sleep(0)
        before = one.position.entry
        async with ConfirmedReads():
            assert one.read_now(_look) == b"1"
            await sent
        assert one.position.entry == before + 2, "the write was sent before the read"

    with_replicas(script)


def test_two_reads_one_after_the_other_take_two_entries() -> None:
    async def script(made: Replicas) -> None:
        one = await _without_leases(made)
        before = one.position.entry
        first = asyncio.create_task(one.read(_look))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.create_task(one.read(_look))
        assert await first == await second == b"1"
        assert one.position.entry == before + 2

    with_replicas(script)


def test_a_task_that_outlives_its_block_reads_nothing_without_a_lease() -> None:
    async def script(made: Replicas) -> None:
        one = await _without_leases(made)
        ended = asyncio.Event()

        async def later() -> None:
            await ended.wait()
            one.read_now(_look)

        async with ConfirmedReads():
            task = asyncio.create_task(later())
            await elapse(0.01)
        ended.set()
        with pytest.raises(NotLeader):
            await task

    with_replicas(script)


def test_while_the_lease_holds_a_block_appends_nothing() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one")
        before = one.position
        async with ConfirmedReads():
            assert one.read_now(_look) is None
        assert one.position == before

    with_replicas(script)
