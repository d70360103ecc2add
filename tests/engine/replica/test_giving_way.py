"""A leader that gives way answers all that it was asked, and another one leads at once."""

import asyncio

import pytest

from engine.errors import NotLeader
from engine.replica.contract import Role
from tests.engine.replica.yard import PATIENCE_MS, until, yard


async def test_who_gives_way_leaves_no_outcome_unknown_and_no_proposal_lost() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two")
        await until(lambda: two.leader == "one")
        one.defer(60.0)
        for bookie in made.cluster.bookies:
            bookie.holding = True
        asked = [asyncio.ensure_future(one.propose(b"k%d=1" % number)) for number in range(5)]
        giving = asyncio.create_task(one.give_way(PATIENCE_MS))
        await asyncio.sleep(0)
        with pytest.raises(NotLeader, match="gives way"):
            one.propose(b"late=1")
        assert one.role is Role.LEADER and not giving.done()
        for bookie in made.cluster.bookies:
            bookie.holding = False
            bookie.release()
        assert await asyncio.gather(*asked) == [b"-"] * 5
        await giving
        await two.until_leading(PATIENCE_MS)
        assert await two.propose(b"k4=2") == b"1"
        await until(lambda: one.leader == "two")
        assert one.term == 0


async def test_a_leader_accepts_proposals_again_if_the_request_to_step_down_is_cancelled() -> None:
    async with yard() as made:
        one = await made.leader("one")
        for bookie in made.cluster.bookies:
            bookie.holding = True
        asked = asyncio.ensure_future(one.propose(b"a=1"))
        giving = asyncio.create_task(one.give_way(PATIENCE_MS))
        await asyncio.sleep(0)
        giving.cancel()
        await asyncio.wait([giving])
        later = asyncio.ensure_future(one.propose(b"b=1"))
        for bookie in made.cluster.bookies:
            bookie.holding = False
            bookie.release()
        assert [await asked, await later] == [b"-", b"-"]
        assert one.role is Role.LEADER and giving.cancelled()


async def test_a_leader_that_gives_way_to_nobody_leads_again_after_its_deference() -> None:
    async with yard() as made:
        one = await made.leader("one")
        await one.propose(b"a=1")
        epoch = one.epoch
        one.defer(0.05)
        await one.give_way(PATIENCE_MS)
        await one.until_leading(PATIENCE_MS)
        assert one.epoch > epoch
        assert await one.propose(b"a=2") == b"1"


async def test_what_does_not_end_in_time_does_not_keep_a_leader_from_giving_way() -> None:
    async with yard() as made:
        one = await made.leader("one")
        one.defer(60.0)
        for bookie in made.cluster.bookies:
            bookie.holding = True
        asked = asyncio.ensure_future(one.propose(b"a=1"))
        await one.give_way(10)
        assert one.role is Role.FOLLOWER
        for bookie in made.cluster.bookies:
            bookie.holding = False
            bookie.release()
        assert (await asyncio.gather(asked, return_exceptions=True))[0] is not None


async def test_a_follower_that_is_to_give_way_goes_on() -> None:
    async with yard() as made:
        one = await made.leader("one")
        two = await made.start("two")
        await two.give_way(PATIENCE_MS)
        assert one.role is Role.LEADER and two.role is Role.FOLLOWER
