"""Who hears of a command without awaiting it: in the turn that applies it, each exactly once."""

import asyncio

import pytest

from engine.errors import EngineError, NotLeader, OutcomeUnknown
from engine.limits import ENTRY_BYTES_MAX
from engine.replica.contract import Role
from engine.replica.replica import Replica
from tests.engine.replica.yard import PATIENCE_MS, yard


class Heard:
    """Notes what it is told, and what the replica shows then."""

    def __init__(self, replica: Replica) -> None:
        self.told: list[bytes | EngineError] = []
        self.shown: list[bytes | None] = []
        self._replica = replica

    def done(self) -> bool:
        """Never."""
        return False

    def set_result(self, result: bytes, /) -> None:
        """It is applied: whoever looks sees it."""
        self.told.append(result)
        self.shown.append(self._replica.read_now(lambda rows: rows.get(b"a")))

    def set_exception(self, error: EngineError, /) -> None:
        """It failed."""
        self.told.append(error)


async def test_a_waiter_hears_when_its_command_can_be_seen() -> None:
    async with yard() as made:
        one = await made.leader("one")
        heard = Heard(one)
        one.propose_for(b"a=1", heard)
        assert heard.told == []
        await one.propose(b"b=2")
        assert len(heard.told) == 1 and isinstance(heard.told[0], bytes)
        assert heard.shown == [b"1"]


async def test_a_waiter_of_a_command_in_parts_hears_once() -> None:
    async with yard() as made:
        one = await made.leader("one")
        heard = Heard(one)
        value = b"x" * (ENTRY_BYTES_MAX + 10)
        one.propose_for(b"a=" + value, heard)
        await one.propose(b"b=2")
        assert heard.shown == [value] and len(heard.told) == 1


async def test_who_gives_way_or_is_closed_refuses_at_once_and_tells_those_who_wait() -> None:
    async with yard() as made:
        one = await made.leader("one")
        first, late = Heard(one), Heard(one)
        one.propose_for(b"a=1", first)
        giving = asyncio.create_task(one.give_way(PATIENCE_MS))
        await asyncio.sleep(0)
        with pytest.raises(NotLeader):
            one.propose_for(b"a=2", late)
        await giving
        assert len(first.told) == 1 and late.told == []


async def test_a_term_that_ends_leaves_no_waiter_without_an_answer() -> None:
    async with yard() as made:
        one = await made.leader("one")
        waiting = [Heard(one) for _ in range(5)]
        for heard in waiting:
            one.propose_for(b"a=1", heard)
        await one.close()
        assert one.role is Role.CLOSED
        for heard in waiting:
            (told,) = heard.told
            assert isinstance(told, bytes | OutcomeUnknown | NotLeader)
        with pytest.raises(NotLeader):
            one.propose_for(b"a=2", waiting[0])
